"""The program behind every installed command: read the world, answer in its words, write it back."""

import os
import pwd
import sys
import time
from typing import Any

from rota.testing.fake_cluster.personality import perform
from rota.testing.fake_cluster.processes import Processes
from rota.testing.fake_cluster.state_file import opened, rules
from rota.testing.fake_cluster.world import Caller

__all__ = ["main"]

SUBMITS = ("sbatch", "bsub", "qsub")


def main(directory: str, argv: list[str]) -> int:
    """Run one command of the batch system; returns its exit status."""
    name = argv[0].rpartition("/")[2]
    stdin = None
    if name in SUBMITS and not sys.stdin.isatty():
        stdin = sys.stdin.read()
    user = os.environ.get("ROTA_FAKE_USER") or pwd.getpwuid(os.getuid()).pw_name
    try:
        cwd = os.getcwd()
    except OSError:
        cwd = "/"
    caller = Caller(user, os.getuid(), cwd, dict(os.environ), stdin)
    plan = rules(directory)
    if plan:
        _hang_first(directory, name, plan)
    with opened(directory) as world:
        processes = Processes(directory)
        world.advance(processes, time.time())
        reply = perform(world, processes, [name, *argv[1:]], caller, plan)
    time.sleep(reply.wait_s)
    sys.stdout.buffer.write(reply.out.encode("utf-8", "surrogateescape"))
    sys.stdout.flush()
    sys.stderr.buffer.write(reply.err.encode("utf-8", "surrogateescape"))
    sys.stderr.flush()
    return 0 if reply.code is None else reply.code


def _hang_first(directory: str, name: str, plan: list[dict[str, Any]]) -> None:
    """A command that hangs before its work must not have done it when it is killed; and must not hold the lock."""
    from rota.testing.fake_cluster.faults import choose

    with opened(directory) as world:
        rule = choose(plan, name, world.calls.get(name, 0) + 1)
        if rule is None or rule["do"] != "hang":
            return
        world.calls[name] = world.calls.get(name, 0) + 1  # also counts if it is killed
    time.sleep(float(rule.get("seconds", 60)))
    plan.clear()  # it has had its fault

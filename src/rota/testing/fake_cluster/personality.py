"""What a personality is, and how one command is carried out by it."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from rota.testing.fake_cluster import faults as faulty
from rota.testing.fake_cluster.world import Caller, Command, Executor, Job, Reply, Submission, World

__all__ = ["PERSONALITIES", "Personality", "native", "perform"]

PERSONALITIES = ("slurm", "lsf", "pbs", "torque", "sge")


class Personality(Protocol):
    """The words of one batch system; a module."""

    COMMANDS: Mapping[str, Command]
    STATES: Sequence[str]
    """Native states that can be forced."""

    def down(self, command: str, how: str) -> Reply:
        """What a command says when the daemon is `refused` or `hung`."""
        ...

    def job_environment(self, world: World, submission: Submission, job: Job) -> dict[str, str]: ...

    def output_path(self, world: World, submission: Submission, job: Job) -> str: ...

    def error_path(self, world: World, submission: Submission, job: Job) -> str | None: ...


def native(world: World) -> Personality:
    """The personality of a world."""
    name = world.settings["personality"]
    if name not in PERSONALITIES:
        raise ValueError(f"no personality {name!r}; there are {', '.join(PERSONALITIES)}")
    return cast(Personality, importlib.import_module(f"rota.testing.fake_cluster.{name}"))


def perform(
    world: World,
    executor: Executor,
    argv: list[str],
    caller: Caller,
    rules: Sequence[Mapping[str, Any]] = (),
    timeout: float | None = None,
) -> Reply:
    """Carry out one command, at the world's present time: a fault may strike, or the personality answers."""
    command = argv[0].rpartition("/")[2]
    call = world.calls[command] = world.calls.get(command, 0) + 1
    rule = faulty.choose(rules, command, call)
    if rule is not None:
        instead = faulty.before(rule)
        if instead is not None:
            return instead
        if rule["do"] == "hang" and timeout is not None and float(rule.get("seconds", 60)) >= timeout:
            return Reply(code=None, wait_s=float(rule.get("seconds", 60)))
    personality = native(world)
    known = personality.COMMANDS.get(command)
    if known is None:
        return Reply("", f"{command}: command not found\n", 127)
    if world.down is not None:
        return personality.down(command, world.down)
    reply = known(world, executor, argv[1:], caller)
    world.advance(executor, world.now)  # what it made due begins now
    return reply if rule is None else faulty.spoil(rule, reply, call)

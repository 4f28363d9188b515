"""The runner's command line: `python3 -I -S …/rota/runner/__main__.py --connect … --output DIR`.

Started so, by its path, it begins in half the time of `python3 -m rota.runner`, which works too: -m loads runpy, and
without -S the interpreter looks through site-packages. Parsed by hand: argparse would take as long as all the rest.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in `typing`, which is not worth its load time before the greeting is out
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from rota.runner.devices import Gpus

if __name__ == "__main__" and not __package__:
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.path.dirname(os.path.dirname(_here)), *(part for part in sys.path if part != _here)]

USAGE = """\
usage: python3 -m rota.runner --connect unix:PATH --output DIR [options]
       python3 -m rota.runner --connect tls:HOST:PORT --ca FILE --token-file FILE [--notice FILE] --output DIR [options]
       python3 -m rota.runner --supervise --id ID --connect … --output DIR [options]
       python3 -m rota.runner --rsh HOST COMMAND…
       python3 -m rota.runner --direct DIR [--id ID] [--until EPOCH] [--until-s SECONDS]
options: --id ID  --allocation ID  --cores MILLICORES  --memory BYTES  --disk BYTES  --gpus N  --tag TAG (repeat)
         --until EPOCH  --until-s SECONDS (when the allocation ends, and in how long)  --launcher PATH|auto|none
         --guard yes (a second process ends the jobs, should this one be killed)
         --goes-on yes (another allocation goes on where this ends: no job has had all the time that there is)
         --nonce yes (the id becomes ID.NONCE, the output directory DIR/NONCE: started again, it is another runner)
--supervise starts a runner with the id ID.NONCE and the output directory DIR/NONCE, and a new one until told to leave.
--sweep TAG ends every runner here whose id begins with TAG, and all that it started; 0: nothing is left.
--rsh starts a command on another node of the job that it is called in.
--direct runs the one job of DIR/lease.json without a manager, and leaves DIR/started.json and DIR/report.json.
"""
NAMES = (
    "connect",
    "ca",
    "notice",
    "token-file",
    "id",
    "allocation",
    "output",
    "cores",
    "memory",
    "disk",
    "gpus",
    "until",
    "until-s",
    "launcher",
    "direct",
    "guard",
    "replaces",
    "supervised",
    "nonce",
    "goes-on",
)


def parse(words: List[str]) -> Dict[str, Any]:
    """Read the options; exits with 2 and the usage if they are wrong."""
    options: Dict[str, Any] = {"tag": []}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        name = name[2:] if name.startswith("--") else ""
        if name == "help":
            sys.stdout.write(USAGE)
            raise SystemExit(0)
        if name not in NAMES and name != "tag":
            _wrong("unknown option")
        if not equals:
            if not rest:
                _wrong("--%s needs a value" % name)
            value = rest.pop(0)
        if name == "tag":
            options["tag"].append(value)
        else:
            options[name] = value
    for name in () if options.get("direct") else ("connect", "output"):
        if not options.get(name):
            _wrong("--%s is needed" % name)
    return options


def _wrong(why: str) -> None:
    sys.stderr.write("rota.runner: %s\n%s" % (why, USAGE))
    raise SystemExit(2)


def _number(options: Dict[str, Any], name: str) -> Optional[int]:
    if options.get(name) is None:
        return None
    try:
        value = int(options[name])
    except ValueError:
        value = -1
    if value < 0:
        _wrong("--%s takes a whole number" % name)
    return value


def _time_left(options: Dict[str, Any]) -> Optional[float]:
    """Seconds until the allocation ends; None: nobody said."""
    left = []
    relative, absolute = _number(options, "until-s"), _number(options, "until")
    if relative is not None:
        left.append(float(relative))
    if absolute is not None:
        import time

        left.append(max(0.0, absolute - time.time()))
    return min(left) if left else None


def _token(path: Optional[str]) -> Optional[bytes]:
    """Read the token. It is in no argument and no environment, so no job and no `ps` can see it."""
    if path is None:
        return None
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise OSError("the token file %s can be read by others" % path)
        return file.read().strip()


def _gpus(count: Optional[int]) -> Optional[Gpus]:
    """The gpus of this node; most have none, and load nothing to know it."""
    told = any(name in os.environ for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_JOB_GPUS"))
    if count == 0 or (count is None and not told and not os.path.exists("/dev/nvidia0")):
        return None
    from rota.runner.devices import Gpus

    found = Gpus(os.environ, count)
    return found if found.ids else None


def main(words: Optional[List[str]] = None) -> int:
    """Run a runner until it has nothing left to do."""
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["--rsh"]:
        from rota.runner.rsh import main as rsh

        return rsh(words[1:])
    if words[:1] == ["--sweep"] and len(words) == 2:
        from rota.runner.sweep import sweep

        return sweep(words[1])
    if words[:1] == ["--outpost"]:
        from rota.runner.outpost import main as outpost

        return outpost(words[1:])
    supervise = words[:1] == ["--supervise"]
    options = parse(words[1:] if supervise else words)
    for fd in (0, 1, 2):  # a closed one would be reused by the next open file, and jobs would inherit that
        try:
            os.fstat(fd)
        except OSError:
            os.open("/dev/null", os.O_RDWR)
    until_s = _time_left(options)
    if supervise:
        import time

        from rota.runner.supervise import run as supervise_runner

        return supervise_runner(words[1:], None if until_s is None else time.time() + until_s)
    if options.get("direct"):
        from rota.runner.direct import run

        return run(os.path.abspath(options["direct"]), options.get("id"), until_s)
    from rota.runner import host
    from rota.runner.agent import Agent
    from rota.runner.connection import Target
    from rota.runner.protocol import Runner
    from rota.runner.spool import log, restore

    try:
        token = _token(options.get("token-file"))
        target = Target(options["connect"], options.get("ca"), token, options.get("notice"))
    except (OSError, ValueError) as error:
        _wrong(str(error))
        return 2
    name, output = options.get("id") or os.urandom(8).hex(), os.path.abspath(options["output"])
    if options.get("nonce") == "yes":
        nonce = os.urandom(4).hex()
        name, output = "%s.%s" % (name, nonce), os.path.join(output, nonce)
    if options.get("nonce") == "yes" or options.get("supervised") == "yes":
        from rota.runner.claim import claim

        claim(os.path.dirname(output), name)
    cores, memory = _number(options, "cores"), _number(options, "memory")
    granted = host.granted(os.environ)
    gpus = _gpus(_number(options, "gpus"))
    facts = {
        "allocation": options.get("allocation"),
        "host": host.name(),
        "pid": os.getpid(),
        "cores": min(host.cores(), granted[0]) if cores is None else cores,
        "memory": min(host.memory(), granted[1]) if memory is None else memory,
        "disk": _number(options, "disk") or 0,
        "gpus": 0 if gpus is None else len(gpus.ids),
        "tags": options["tag"],
        "output": output,
    }
    if options.get("replaces"):
        facts["replaces"] = options["replaces"]
    runner = Runner(name, facts)
    guard = None
    if options.get("guard") == "yes":
        from rota.runner.guard import Guard

        guard = Guard(runner.runner_id)
    restored = restore(runner, output)
    try:
        agent = Agent(target, runner, output, until_s, options.get("launcher") or "none", gpus)
    except OSError as error:
        log("cannot start: %s" % error)
        return 1
    agent.take_over(restored)
    if options.get("goes-on") == "yes":
        agent.jobs.began = -float("inf")
    agent.supervised = options.get("supervised") == "yes"
    code = agent.run()
    if guard is not None:
        guard.dismiss()
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception:
        from rota.runner import CRASHED

        sys.excepthook(*sys.exc_info())
        sys.exit(CRASHED)

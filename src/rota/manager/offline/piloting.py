"""Before a pilot starts: which allocation this is, and a home for its manager."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from rota.drivers.allocation import (
    FILES,
    Given,
    Node,
    asks_for_end,
    choose,
    parse_nodes,
    read_allocation,
    read_end,
    read_granted,
    reserve_core,
    seen_from,
    short,
)
from rota.drivers.transport import scrubbed
from rota.manager.daemon import start
from rota.manager.lock import FRESH_S
from rota.manager.paths import PILOT_HOME, Paths, prepare
from rota.manager.sites.given import Pilot, read_pilot, write_pilot
from rota.model.amounts import format_duration
from rota.model.errors import RefusedError, UsageError
from rota.model.needs import Needs, named_resources
from rota.runner import host

__all__ = ["Pilot", "check_home", "launch", "make_pilot", "pilot_home"]

MARGIN_S = 60.0
MARGIN_PART = 0.1
"""Of a short allocation the margin is this part of what is left."""
PROBE_S = 30.0
LOOK_S = 5.0
UNRESOLVED = "Could not resolve hostname"
"""What ssh says of a host that nobody knows."""
THIS_HOST = ("localhost", "127.0.0.1", "::1")


def pilot_home(given: str | None) -> str:
    """The home of a pilot: the one that is given, `$ROTA_HOME`, or one in this directory."""
    return os.path.abspath(given or os.environ.get("ROTA_HOME") or PILOT_HOME)


def make_pilot(
    environ: Mapping[str, str],
    *,
    nodes: str | None = None,
    reserve: bool = False,
    ends_in_s: int | None = None,
    margin_s: int | None = None,
    node_resources: Mapping[str, int] | None = None,
    resources: Mapping[str, int] | None = None,
) -> Pilot:
    """The allocation that this process is in, as far as it is to be used."""
    here = environ.get("SLURMD_NODENAME") or os.uname().nodename
    began = _session_began()
    away: tuple[str, ...] = ()
    given = read_allocation(environ, _files(environ), here, began)
    if given is not None and (command := asks_for_end(given)) is not None:
        answer = _answer(command)
        given = replace(read_granted(given, answer), until=read_end(given, answer, time.time(), began))
    if nodes is not None:
        wanted = tuple(Node(here, node.cores) if node.name in THIS_HOST else node for node in parse_nodes(nodes))
        if given is not None:
            given = choose(given, wanted)
        else:
            given, away = _by_hand(wanted, here)
    elif given is None:
        given = Given("hosts", (Node(here, max(1, host.cores() // 1000), _gpus(environ)),))
    if reserve:
        given = reserve_core(given, here)
    given = seen_from(given, here)
    now = time.time()
    if ends_in_s is not None:
        until = now + ends_in_s if given.until is None else min(given.until, now + ends_in_s)
        given = replace(given, until=until)
    left = None if given.until is None else given.until - now
    margin = float(margin_s) if margin_s is not None else min(MARGIN_S, MARGIN_PART * max(0.0, left or 0.0))
    if left is not None and left <= margin:
        ends = f"in {format_duration(int(left))}" if left > 0 else "now"
        raise UsageError(
            f"this allocation ends {ends}, and {format_duration(int(margin))} of it are the margin: nothing could run"
        )
    offers = dict(node_resources or {}), dict(resources or {})
    Needs(named=named_resources({**offers[0], **offers[1]})).check()
    if twice := sorted(offers[0].keys() & offers[1].keys()):
        raise UsageError(f"{twice[0]}: offer it of each node (--offer) or of all together (--offer-in-all), not both")
    return Pilot(given, here, margin, away=away, node_resources=offers[0], resources=offers[1])


def _files(environ: Mapping[str, str]) -> dict[str, str]:
    """The texts of the files with hosts that the environment names."""
    texts = {}
    for variable in FILES:
        if path := environ.get(variable):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    texts[variable] = file.read(16 << 20)
            except OSError as error:
                raise UsageError(f"{variable} {path}: {error.strerror or error}") from None
    return texts


def _answer(command: Sequence[str]) -> str:
    """What a batch system's command prints; "" if it fails."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_S,
            env=scrubbed(os.environ),
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _session_began() -> float | None:
    """When the first process of this session began: in a batch job that is its script."""
    with contextlib.suppress(OSError, ValueError, IndexError, StopIteration):
        with open(f"/proc/{os.getsid(0)}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        with open("/proc/stat") as file:
            boot = next(int(line.split()[1]) for line in file if line.startswith("btime"))
        return boot + ticks / os.sysconf("SC_CLK_TCK")
    return None


def _gpus(environ: Mapping[str, str]) -> int:
    from rota.runner.devices import Gpus

    told = any(environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"))
    return len(Gpus(dict(environ), None).ids) if told or os.path.exists("/dev/nvidia0") else 0


def _by_hand(wanted: Sequence[Node], here: str) -> tuple[Given, tuple[str, ...]]:
    """Hosts that are reached by ssh, each asked how many cores it has; and those that are away, with why.

    One that nobody knows, or that has fewer cores, is a mistake; one that is known and does not answer is not.
    """
    asked: list[tuple[Node, subprocess.Popen[str] | None]] = []
    for node in wanted:
        command = ["ssh", "-n", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", node.name]
        command += ["getconf", "_NPROCESSORS_ONLN"]
        try:
            asking = None if short(node.name) == short(here) else _ask(command)
        except OSError as error:
            raise UsageError(f"--nodes {node.name}: ssh cannot be started: {error.strerror or error}") from None
        asked.append((node, asking))
    problems: list[str] = []
    away: dict[Node, str] = {}
    for node, asking in asked:
        try:
            said, complaint = asking.communicate(timeout=PROBE_S) if asking is not None else (str(_own_cores()), "")
        except subprocess.TimeoutExpired:
            assert asking is not None
            asking.kill()
            said, complaint = asking.communicate()[0], "no answer"
        has = int(said) if said.strip().isdigit() else None
        if has is None:
            words = (complaint.strip().splitlines() or ["no answer"])[-1]
            if UNRESOLVED in complaint:
                problems.append(f"--nodes {node.name}: cannot be reached by ssh: {words}")
            else:
                away[node] = words
        elif node.cores > has:
            problems.append(f"--nodes {node.name}:{node.cores}: it has {has} core{'' if has == 1 else 's'}")
    there = tuple(node for node in wanted if node not in away)
    if not there:
        problems += [f"--nodes {node.name}: cannot be reached by ssh: {words}" for node, words in away.items()]
    if problems:
        raise UsageError("; ".join(problems[:4]))
    return Given("hosts", there), tuple(f"{node.name}: cannot be reached by ssh: {away[node]}" for node in away)


def _ask(command: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _own_cores() -> int:
    return max(1, host.cores() // 1000)


# ---- the manager -----------------------------------------------------------------------------------------------------


def check_home(home: str) -> Pilot | None:
    """The last pilot of a home; None: there was none. Refuses one that is another manager's."""
    paths = Paths(home)
    pilot = read_pilot(paths)
    if pilot is None and os.path.exists(paths.database):
        raise RefusedError(f"{home} is the home of an ordinary manager; give the pilot one of its own: --home DIR")
    return pilot


def launch(home: str, pilot: Pilot, say: Any = None) -> int:
    """Start the manager of a pilot; its pid. `say` is told if that has to wait for the one before it."""
    check_home(home)
    paths = prepare(home)
    write_pilot(paths, pilot)
    deadline = time.monotonic() + FRESH_S + 30
    told = False
    while True:
        try:
            return start(home, ["--embedded", "--pilot"])
        except RefusedError as error:
            holder = _holder(paths)
            if holder in (None, os.uname().nodename) or time.monotonic() > deadline:
                raise
            if not told and say is not None:
                say(f"{error}; if it is gone, that is certain after {format_duration(int(FRESH_S))}: waiting")
            told = True
            time.sleep(LOOK_S)


def _holder(paths: Paths) -> str | None:
    """The host of the manager that has the lock of a home, by its own words."""
    try:
        with open(paths.lock, "rb") as file:
            words = json.loads(file.read(4096))
    except (OSError, ValueError):
        return None
    return str(words["host"]) if isinstance(words, dict) and words.get("host") else None

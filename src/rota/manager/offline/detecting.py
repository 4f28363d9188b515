"""Finding the batch systems of this host, and a `config.toml` for them."""

import asyncio
import json
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rota.drivers.dialect import Answer, Dialect, Options, Queue
from rota.drivers.dialects import dialect_names, load_dialect
from rota.drivers.transport import LocalTransport, Transport, UnreachableError
from rota.manager.config import SiteConfig
from rota.manager.filesystem import NETWORK, kind_of
from rota.manager.paths import Paths, prepare
from rota.manager.sites.queues import queue_facts, queue_row
from rota.model.amounts import format_duration, show_size
from rota.model.errors import RefusedError, RotaError
from rota.runner import host
from rota.wire.home import write_private

__all__ = ["Found", "config_text", "find_here", "found_row", "write_config"]

ASK_S = 30.0
MANY_SLOTS = ("smp", "shm", "sharedmem", "threaded", "threads", "openmp", "multicore")
"""What sites call the parallel environment of Grid Engine that keeps all slots on one host."""


class Found(NamedTuple):
    """One batch system of this host."""

    driver: str
    version: str
    programs: dict[str, str | None]
    queues: tuple[Queue, ...]
    environments: tuple[str, ...] = ()
    """Parallel environments of Grid Engine."""
    trouble: str | None = None
    """Why the queues are not known."""

    @property
    def lacking(self) -> list[str]:
        """Programs that its driver needs and that are not there."""
        return sorted(name for name, path in self.programs.items() if path is None)


def find_here() -> tuple[list[Found], list[str]]:
    """The batch systems whose programs are on PATH, and what was seen that is none of them."""
    return asyncio.run(find(LocalTransport()))


async def find(transport: Transport) -> tuple[list[Found], list[str]]:
    """Ask the programs themselves who they are: qsub and qstat have three owners."""
    found: list[Found] = []
    strangers: list[str] = []
    asked: dict[tuple[str, ...], Answer] = {}
    for name in dialect_names():
        try:
            dialect = load_dialect(name)
        except RotaError as error:
            strangers.append(str(error))
            continue
        programs = await transport.which(dialect.programs)
        command = dialect.version()
        path = programs.get(command.argv[0]) or (await transport.which(command.argv[:1]))[command.argv[0]]
        if path is None:
            continue
        if command.argv not in asked:
            asked[command.argv] = await _ask(transport, (path, *command.argv[1:]))
        answer = asked[command.argv]
        if _is_mine(dialect, answer):
            found.append(await _look(transport, dialect, programs, answer))
    known = {program for each in found for program in each.programs}
    for argv, answer in asked.items():
        if argv[0] not in known:
            strangers.append(f"{' '.join(argv)}: no batch system that rota knows answers: {answer.words}")
    return found, list(dict.fromkeys(strangers))


async def _ask(transport: Transport, argv: Sequence[str]) -> Answer:
    try:
        return await transport.run(argv, None, ASK_S)
    except UnreachableError as error:
        return Answer(None, "", str(error))


def _is_mine(dialect: Dialect, answer: Answer) -> bool:
    try:
        return answer.code not in (None, 127) and dialect.is_mine(answer)
    except Exception:  # a dialect of somebody else may do anything
        return False


def _queues_in(dialect: Dialect, answer: Answer) -> tuple[Queue, ...]:
    try:
        return dialect.read_queues(answer) if answer.code is not None else ()
    except Exception:
        return ()


async def _details(transport: Transport, dialect: Any, queues: tuple[Queue, ...]) -> tuple[Queue, ...]:
    """The queues with what further commands say, where a dialect has any."""
    if not queues or not hasattr(dialect, "queue_details"):
        return queues
    try:
        answers = [await _ask(transport, command.argv) for command in dialect.queue_details(queues)]
        found: tuple[Queue, ...] = dialect.read_queue_details(queues, answers, Options())
        return found
    except Exception:
        return queues


async def _look(transport: Transport, dialect: Dialect, programs: dict[str, str | None], answer: Answer) -> Found:
    words = (answer.stdout.strip() or answer.stderr.strip()).splitlines()
    queues: tuple[Queue, ...] = ()
    trouble = None
    command = dialect.queues()
    if command is not None:
        said = await _ask(transport, (programs.get(command.argv[0]) or command.argv[0], *command.argv[1:]))
        queues = await _details(transport, dialect, _queues_in(dialect, said))
        if not queues:
            trouble = f"{' '.join(command.argv)}: {said.words}"
    environments: tuple[str, ...] = ()
    if dialect.name == "sge":
        place = (await transport.which(("qconf",)))["qconf"]
        said = await _ask(transport, (place, "-spl")) if place else Answer(1, "", "")
        environments = tuple(said.stdout.split()) if said.code == 0 else ()
    return Found(dialect.name, words[0].strip() if words else "", programs, queues, environments, trouble)


def found_row(found: Found) -> dict[str, Any]:
    """A batch system as `rota sites detect --json` shows it."""
    config = SiteConfig(driver=found.driver)
    return {
        "driver": found.driver,
        "version": found.version,
        "programs": found.programs,
        "queues": [queue_row(queue_facts(config, queue, "")) for queue in found.queues],
        "parallel_environments": list(found.environments),
        "trouble": found.trouble,
    }


# ---- config.toml ----------------------------------------------------------------------------------------------------


def config_text(found: Sequence[Found], strangers: Sequence[str], home: str) -> str:
    """A commented `config.toml` for what was found."""
    lines = [
        f"# Written by `rota sites detect` on {os.uname().nodename}, {time.strftime('%Y-%m-%d')}.",
        "# All keys: docs/config.md. After a change: rota reload (running jobs go on meanwhile).",
    ]
    lines += [f"# {' '.join(text.split())}" for text in strangers]
    if found:
        lines += ["", "# Where runners call back; `rota doctor SITE` tests whether they can.", '# listen = ":0"']
    for each in found:
        lines += ["", *_site(each, home)]
    cores, memory = host.cores() / 1000, host.memory()
    if found:
        lines += [
            "",
            "# This host: jobs that name no site (--on) may run here too. Not wanted on a login node: take it out.",
            "[site.local]",
            *_commented([f"cores = {cores:g}", f'memory = "{show_size(memory)}"']),
        ]
    else:
        lines += [
            "",
            "# No batch system was found: this machine is the only site. What it has, unless you want to use less:",
            "[site.local]",
            *_commented([f"cores = {cores:g}", f'memory = "{show_size(memory)}"']),
        ]
    return "\n".join(lines) + "\n"


def _site(found: Found, home: str) -> list[str]:
    lines = [f"# {' '.join(found.version.split())}"] if found.version else []
    if found.lacking:
        lines.append(f"# NOT FOUND, and needed: {', '.join(found.lacking)}")
    lines += [
        f"[site.{found.driver}]",
        f'driver = "{found.driver}"',
        "# runners: a few cluster jobs take many rota jobs each, and call back. direct: a cluster job for each job,",
        f"# for nodes that cannot call back. `rota doctor {found.driver}` says which can be used.",
        'mode = "runners"',
        *_queues(found),
        '# account = ""              # what to charge, if the site wants to know',
        '# allocation_time = "1h"    # how long runners ask for',
        '# job_time = "30m"          # how long a job may need of which nothing is known',
        "# most = 100                # allocations at once",
    ]
    if found.driver == "slurm":
        lines.append('# memory_as = "node"        # "per-cpu" or "none" where --mem is refused')
    if found.driver == "sge":
        lines += _environments(found.environments)
    kind = kind_of(home)
    if kind is not None and kind not in NETWORK:
        lines += [
            f"# The home, {home}, is on a local disk ({kind}). Nodes must see this directory:",
            f'# directory = "/shared/{os.environ.get("USER") or "you"}/rota"',
        ]
    return lines


def _queues(found: Found) -> list[str]:
    if found.trouble:
        return [f"# Its queues could not be listed: {' '.join(found.trouble.split())}", '# partition = ""']
    lines = [f"# {_queue_words(queue)}" for queue in found.queues]
    if not found.queues:
        return ['# partition = ""']
    chosen = [queue for queue in found.queues if queue.is_default]
    if chosen:
        closed = "" if chosen[0].up else ", which is closed now"
        return [*lines, f"# partition = {json.dumps(chosen[0].name)}    # without it, the default is used{closed}"]
    fitting = [queue for queue in found.queues if queue.up] or list(found.queues)
    return [*lines, f"partition = {json.dumps(fitting[0].name)}    # none of them is the default"]


def _queue_words(queue: Queue) -> str:
    parts = [f"partition {queue.name}" + (" (default)" if queue.is_default else "")]
    if not queue.up:
        parts.append("closed")
    if queue.nodes is not None:
        parts.append(f"{queue.nodes} nodes")
    if queue.cores:
        parts.append(f"{queue.cores / 1000:g} cores")
    if queue.memory:
        parts.append(f"{show_size(queue.memory)} memory")
    if queue.gpus:
        parts.append(f"{queue.gpus} gpus")
    if queue.time_s is not None:
        parts.append(f"at most {format_duration(queue.time_s)}")
    return ", ".join(parts)


def _environments(names: Sequence[str]) -> list[str]:
    """The lines about parallel environments: a job of several slots needs one."""
    lines = [f"# parallel environments: {', '.join(names)}"] if names else []
    fitting = [name for wanted in MANY_SLOTS for name in names if name.lower() == wanted]
    chosen = fitting or (list(names) if len(names) == 1 else [])
    if chosen:
        return [*lines, f"parallel_environment = {json.dumps(chosen[0])}    # for jobs of more than one core"]
    return [*lines, '# parallel_environment = "smp"    # for jobs of more than one core; must keep them on one host']


def _commented(lines: Sequence[str]) -> list[str]:
    return [f"# {line}" for line in lines]


def write_config(home: str | None, text: str, force: bool) -> tuple[str, str | None]:
    """Write `config.toml` into the home; its path, and that of the copy of an older one."""
    paths = Paths(home)
    old = os.path.lexists(paths.config)
    if old and not force:
        raise RefusedError(f"{paths.config} exists: look at it, or give --force to replace it (a copy is kept)")
    prepare(home)
    backup = None
    if old:
        backup = f"{paths.config}.{time.strftime('%Y%m%d-%H%M%S')}"
        number = 0
        while os.path.lexists(backup):
            number += 1
            backup = f"{paths.config}.{time.strftime('%Y%m%d-%H%M%S')}.{number}"
        os.rename(paths.config, backup)
    write_private(paths.config, text.encode())
    return paths.config, backup

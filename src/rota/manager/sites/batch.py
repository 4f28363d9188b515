"""Sites with a batch system: how their drivers are made, and what their nodes are told to run."""

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict, replace

from rota.drivers.api import Ask, Known, Outcome
from rota.drivers.command import CommandDriver
from rota.drivers.dialect import Answer, Options, Queue
from rota.drivers.dialects import load_dialect
from rota.drivers.gate import Health, shown
from rota.drivers.judging import UnreadableError
from rota.drivers.local import Door
from rota.drivers.script import ELEMENT, NODE, Spread, build_script
from rota.drivers.settings import Settings
from rota.drivers.ssh import SshTransport
from rota.drivers.submitting import ArrayError
from rota.drivers.transport import LocalTransport, PrefixTransport, Transport, UnreadError
from rota.manager.config import SiteConfig
from rota.manager.paths import Paths
from rota.manager.sites.api import Site
from rota.manager.sites.installing import install_runner, runner_digest, runner_place
from rota.manager.sites.queues import longest_of, node_of, queue_facts, queue_row, usual
from rota.model.allocation import Allocation, Waiting
from rota.model.amounts import format_duration
from rota.model.errors import BusyError, RotaError, UsageError
from rota.model.needs import Amounts, named_resources
from rota.model.site import SiteFacts
from rota.wire.files import BAD, BadFileError, Left, decode_left, decode_started

__all__ = ["BatchSite"]

log = logging.getLogger("rota")

MOST = 100
SCRIPT = "script.sh"
REPORT = "report.json"
ALLOCATION_S = 3600
NODES_MOST = 1_000_000
"""Batch systems themselves say how many nodes are too many."""
START_S = 180
"""How much later than its allocation a job may start, and how much too early the warning may come (Slurm: 60 s)."""
OPTION_NAMES = {"raw": "native", "signal_s": "warn_s", "state_map": "states"}
"""Options that have another name in the configuration."""


class BatchSite(Site):
    """A site with a batch system: its driver, the scripts for its nodes, and the files of direct jobs."""

    driver: CommandDriver
    answers_at_once = False
    verb_of_submitted = "pend"

    def __init__(
        self, name: str, config: SiteConfig, paths: Paths, door: Door, user: str | None = None, *, install: bool = True
    ) -> None:
        self.name = name
        self.config = config
        self.directory = os.path.normpath(config.directory or os.path.join(paths.home, "sites", name))
        self.door = door
        place = install_runner if install else runner_place
        self._program = os.path.join(place(config.directory or paths.home), "__main__.py")
        self._digest = runner_digest()
        self.node = node_of(config, ())
        self.longest_s = longest_of(config, ())
        self.queues: tuple[Queue, ...] = ()
        self._learned = False
        self.transport = make_transport(config)
        dialect = load_dialect(config.driver)
        self._spread: str | None = getattr(dialect, "spread", None)
        self._user = user or ""
        self.array_most = min(dialect.array_most, config.array_most or dialect.array_most)
        self.driver = CommandDriver(
            name,
            dialect,
            self.transport,
            self.facts(),
            options_of(config),
            Settings(
                poll_s=float(config.seconds("poll") or 30),
                poll_min_s=float(config.seconds("poll_least") or 2),
                vanish_s=float(config.seconds("vanished_after") or 300),
                own_words_s=float(config.seconds("report_within") or 0),
            ),
            array_most=self.array_most,
            user=user,
            last_words=self.last_words if config.mode == "direct" else None,
        )

        # What the site wants of every submission is wrong now, not once the first job comes.
        dialect.submit(Ask("0" * 12, "rota", ("a0",), Amounts(1000), "#!/bin/sh\n", self.directory), options_of(config))

    def facts(self) -> SiteFacts:
        """What the site offers, as far as it is known."""
        config = self.config
        allocation_s = config.seconds("allocation_time")
        return SiteFacts(
            self.node,
            tuple(config.tags),
            config.most or MOST,
            config.linger_s,
            config.mode,
            config.whole_nodes,
            self.array_most,
            ALLOCATION_S if allocation_s is None and config.mode == "runners" else allocation_s,
            config.seconds("job_time"),
            self.longest_s,
            self.directory,
            START_S + (config.seconds("warn") or 0),
            tuple(queue_facts(config, queue, self._user) for queue in self.queues),
            named_resources(config.resources),
            NODES_MOST if self._spread is not None else 1,
            cost=config.cost,
            paused=config.paused,
            reassign=config.reassign,
        )

    def first_facts(self) -> SiteFacts:
        """No allocations: the site is asked for nothing before it has said how much it takes at a time."""
        return replace(self.facts(), most=0)

    async def learn(self) -> SiteFacts:
        """Ask the batch system what queues and nodes it has, and how large arrays may be.

        The latter costs no command but the first time: where no other answer has it too, it is asked after refusals.
        What it does not say this time stays as it was.
        """
        if self._learned and self.driver.gate.is_shut:
            return self.facts()
        await self.driver.start()
        self._user = self.driver.user
        if not self._learned:
            await self._learn_arrays()
        command = self.driver.dialect.queues()
        if command is not None:
            answer = await self.driver.ask(command)
            none: tuple[Queue, ...] = ()
            queues, _ = await self.driver.read(lambda: self.driver.dialect.read_queues(answer), none, answer)
            if answer.code != 0 and not queues:  # it is asked again
                raise BusyError(f"site {self.name}: {shown(command)}: {answer.words}")
            if queues:
                self.queues = await self._learn_details(queues)
            if mine := usual(self.config, self.queues):
                self.node, self.longest_s = node_of(self.config, mine), longest_of(self.config, mine)
            if not self._learned and (strange := set(self.config.queues or ()) - {queue.name for queue in queues}):
                self.note(f"queues names {', '.join(sorted(strange))}, which the batch system does not have")
        self._learned = True
        return self.facts()

    async def _learn_details(self, queues: tuple[Queue, ...]) -> tuple[Queue, ...]:
        dialect: Any = self.driver.dialect
        if not hasattr(dialect, "queue_details"):
            return queues
        commands = dialect.queue_details(queues)
        if not self._learned:
            await self._find(command.argv[0] for command in commands)
        answers = [await self.driver.ask(command) for command in commands]
        if hasattr(dialect, "array_limit") and (limit := dialect.array_limit()) in commands:
            await self._read_array_limit(answers[commands.index(limit)])
        options = options_of(self.config)
        read, _ = await self.driver.read(lambda: dialect.read_queue_details(queues, answers, options), queues, *answers)
        return read

    async def _learn_arrays(self) -> None:
        dialect: Any = self.driver.dialect
        if hasattr(dialect, "array_limit"):
            await self._find([dialect.array_limit().argv[0]])
            await self._read_array_limit(await self.driver.ask(dialect.array_limit()))

    async def _read_array_limit(self, answer: Answer) -> None:
        if answer.code != 0 or answer.cut or not answer.stdout.strip():
            return  # it has told nothing: that is not to tell that there is no limit
        dialect: Any = self.driver.dialect
        unknown: int | None = None
        most, _ = await self.driver.read(lambda: dialect.read_array_limit(answer), unknown, answer)
        if self.driver.arrays.tell(most) and self._learned:
            self.note(f"it takes {self.driver.arrays.most} elements in one array at the most since it was asked again")
        self.array_most = self.driver.arrays.most

    async def _find(self, programs: Iterable[str]) -> None:
        """Look for programs that are of use and may be missing: not all are where a plain PATH leads."""
        known = self.driver.gate.programs
        if missing := sorted(set(programs) - known.keys()):
            found = await self.transport.which(missing)
            known.update({name: path for name, path in found.items() if path is not None})

    # ---- what a node is told ----------------------------------------------------------------------------------------

    def ask(self, tag: str, allocations: Sequence[Allocation]) -> Ask:
        """The submission for these allocations, which were planned together."""
        first = allocations[0]
        ids = tuple(allocation.id for allocation in allocations)
        directory = os.path.join(self.directory, tag)
        given = dict(first.options)
        nodes = max(first.nodes, int(given.get("nodes", 1)))
        if first.direct:
            script = self._direct_script(directory, first.time_s)
        else:
            script = self._runners_script(tag, directory, allocations, nodes)
        options = tuple(pair for pair in first.options if pair[0] not in ("exclusive", "nodes", "tasks-per-node"))
        if first.queue is not None and not {"partition", "--partition"} & given.keys():
            options += (("partition", first.queue),)
        return Ask(
            tag,
            first.name or "rota",
            ids,
            self._native(first.capacity),
            script,
            directory,
            nodes=nodes,
            tasks_per_node=int(given.get("tasks-per-node", 1)) if first.direct else 1,
            time_s=first.time_s,
            exclusive="exclusive" in given or self.config.whole_nodes,
            options=options,
        )

    def _native(self, amounts: Amounts) -> Amounts:
        """What the batch system is asked for: it does not know of resources that only we count."""
        ours = {*self.config.resources, *self.config.node_resources}
        return replace(amounts, named=tuple(pair for pair in amounts.named if pair[0] not in ours))

    def _direct_script(self, directory: str, time_s: int | None) -> str:
        words = [self._program, "--direct", os.path.join(directory, ELEMENT)]
        if time_s is not None:
            words += ["--until-s", str(time_s)]
        title = f"rota: jobs of the site {self.name}"
        return build_script(words, title=title, python=self.config.python, digest=self._digest)

    def _runners_script(self, tag: str, directory: str, allocations: Sequence[Allocation], nodes: int) -> str:
        first = allocations[0]
        spread = None
        words = [self._program, "--nonce", "yes", "--id", f"{tag}.{ELEMENT}.0"]
        words += ["--output", os.path.join(directory, ELEMENT)]
        if nodes > 1:
            if self._spread is None:
                raise UsageError(
                    f"site {self.name}: nobody has said how {self.config.driver} starts runners on {nodes} nodes"
                )
            output = os.path.join(directory, f"{tag}.{ELEMENT}.out")
            spread = Spread(self._spread, os.path.join(directory, SCRIPT), output, nodes)
            where = os.path.join(directory, ELEMENT, NODE)
            words = [self._program, "--supervise", "--id", f"{tag}.{ELEMENT}.{NODE}", "--output", where]
        if not self.config.whole_nodes:
            for name in ("cores", "memory", "disk", "gpus"):
                if amount := getattr(first.capacity, name):
                    words += [f"--{name}", str(amount)]
        if first.time_s is not None:  # the warning ends jobs, as far as they do not want to be warned
            warned = first.time_s - min(self.config.seconds("warn") or 0, first.time_s // 2)
            words += ["--until-s", str(warned)]
        for tag_word in self.config.tags:
            words += ["--tag", tag_word]
        words += ["--launcher", "none", "--guard", "yes"]
        per_element = [["--allocation", a.id, *self.door.open(a.id)] for a in allocations]
        title = f"rota: runners of the site {self.name}"
        python = self.config.python
        return build_script(
            words, title=title, python=python, per_element=per_element, spread=spread, digest=self._digest
        )

    async def submit(
        self, tag: str, allocations: Sequence[Allocation], leases: Mapping[int, dict[str, Any]]
    ) -> list[str]:
        """Submit an array, its script (to look at) and the leases of direct jobs in its directory; the native ids."""
        ask = self.ask(tag, allocations)
        await self.transport.write(os.path.join(ask.directory, SCRIPT), ask.script.encode())
        for element, lease in leases.items():
            path = os.path.join(ask.directory, str(element), "lease.json")
            await self.transport.write(path, json.dumps(lease).encode())
        try:
            return await self.driver.submit(ask)
        except ArrayError as error:
            if ask.count <= self.driver.arrays.most:  # nobody has looked into it since it was sent
                self.driver.arrays.refuse(error.most)
                self.array_most = self.driver.arrays.most
                self.note(f"it takes {self.array_most} elements in one array at the most: it refused a larger one")
                await self._learn_arrays()
            raise

    def waits(self, allocation: Allocation) -> Waiting | None:
        """Why an allocation that was submitted does not run yet, in the cluster's words."""
        native = allocation.native_id
        return self.driver.waits(native) if native is not None and allocation.state in ("PENDING", "RUNNING") else None

    # ---- what allocations leave --------------------------------------------------------------------------------------

    def _path(self, known: Known, name: str) -> str:
        """The path of a file of a direct job."""
        return os.path.join(self.directory, known.tag, str(known.element), name)

    def output_of(self, tag: str, runner: str) -> str:
        """Runners have theirs in the directory of their array."""
        return os.path.join(self.directory, tag)

    async def report_of(self, known: Known) -> tuple[str, Left] | None:
        """(directory, the report that a direct job has left), if it has."""
        path = self._path(known, REPORT)
        found = (await self.transport.read([path])).get(path)
        left = None if found is None else await self._decode(path, found)
        return None if left is None else (os.path.dirname(path), left)

    async def _decode(self, path: str, raw: bytes) -> Left | None:
        """A report; one that is none is moved aside, and says nothing."""
        try:
            left = decode_left(raw)
            if len(left.ended) + len(left.disclaimed) == 0:
                raise BadFileError("it has no end of a job")
            return left
        except BadFileError as error:
            log.warning("%s is not a report, and is moved aside: %s", path, error)
            await self.transport.run(("mv", "-f", "--", path, path + BAD))
            return None

    async def spoilt(self, known: Known) -> str | None:
        """What to say of a report of a direct job that was none."""
        path = self._path(known, REPORT)
        try:
            moved = await self.transport.read([path + BAD])
        except RotaError:
            return None
        return f"its {REPORT} was not one and is kept as {path}{BAD}" if moved else None

    async def was_restarted(self, known: Known) -> bool:
        """Whether the cluster started a direct job a second time, which then did nothing."""
        path = self._path(known, "restarted.json")
        try:
            return path in await self.transport.read([path])
        except RotaError:
            return False

    async def last_output(self, known: Known) -> str | None:
        """The last line that the batch system's own output file has: why a runner did not come up."""
        names = [f"{known.tag}.{number}.out" for number in (known.element, known.element + 1)] + [f"{known.tag}.out"]
        number = re.match(r"(\d+)(?:[.\[](\d+))?", known.native_id or "")
        if number:  # where the batch system names them: by job, and by element of an array
            task = f".{number[2]}" if number[2] else ""
            names += [f"rota-{known.tag}.{kind}{number[1]}{task}" for kind in "eo"]
        paths = [os.path.join(self.directory, known.tag, name) for name in names]
        try:
            found = await self.transport.read(paths)
        except RotaError:
            return None
        for path in paths:
            lines = found.get(path, b"").decode(errors="replace").strip().splitlines()
            if lines:
                return lines[-1][-300:]
        return None

    async def host_of(self, known: Known) -> str | None:
        """The host where a direct job says that it has started."""
        path = self._path(known, "started.json")
        found = (await self.transport.read([path])).get(path)
        try:
            return None if found is None else decode_started(found).host
        except BadFileError:
            return None

    async def last_words(self, known: Sequence[Known]) -> Mapping[str, Outcome]:
        """How direct jobs ended, by their own reports."""
        paths = {self._path(each, REPORT): each.id for each in known}
        out: dict[str, Outcome] = {}
        unread: UnreadError | None = None
        try:
            files = await self.transport.read(list(paths))
        except UnreadError as error:  # one that cannot be read must not hide the others
            files, unread = error.found, error
        for path, raw in files.items():
            left = await self._decode(path, raw)
            if left is not None and left.ended:
                row = left.ended[0]
                out[paths[path]] = Outcome(
                    row.exit_code, row.signal, None, None, row.started, row.ended, row.cpu_s, row.peak_memory
                )
        if unread is not None:
            raise UnreadableError(str(unread), out, {paths[path] for path in unread.paths})
        return out

    # ---- what people see --------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """How the batch system's commands fare."""
        return self.driver.health()

    def trouble(self, wall: float) -> str | None:
        """That the batch system's commands fail, and since when."""
        health = self.health()
        if health.state not in ("silent", "failing", "needs login"):
            return None
        since = "" if health.since is None else f" for {format_duration(max(0, round(wall - health.since)))}"
        return f"the site {self.name} is {health.state}{since}: {health.why or 'no reason known'}"

    def shown(self, wall: float) -> dict[str, Any]:
        """The commands, queues and options of the site."""
        health = self.health()
        return {
            "partition": self.config.partition,
            "last_poll": health.last_poll,
            "last_poll_s": _age(health.last_poll, wall),
            "failing_s": _age(health.since, wall),
            "commands_last_minute": health.commands_last_minute,
            "commands_per_minute": health.commands_per_minute,
            "commands": health.commands,
            "failures": health.failures,
            "last_error": health.last_error,
            "last_error_s": _age(health.last_error_at, wall),
            "version": health.version,
            "where": health.where,
            "programs": health.programs,
            "queues": [queue_row(queue) for queue in self.facts().queues],
            "options": {
                OPTION_NAMES.get(name, name): dict(value) if isinstance(value, tuple) else value
                for name, value in asdict(options_of(self.config)).items()
                if value not in (None, (), False)
            },
            "notes": list(health.notes),
        }

    def note(self, words: str) -> None:
        """Show some words with the site."""
        self.driver.gate.note(words)


def _age(at: float | None, wall: float) -> float | None:
    """How long ago a moment was."""
    return None if at is None else round(max(0.0, wall - at), 1)


def make_transport(config: SiteConfig) -> Transport:
    """The transport to where the batch system's commands are run."""
    transport: Transport = LocalTransport()
    if config.ssh is not None:
        transport = SshTransport(config.ssh)
    if config.via:
        transport = PrefixTransport(transport, config.via)
    return transport


def options_of(config: SiteConfig) -> Options:
    """The options that the site wants of every submission."""
    return Options(
        account=config.account,
        partition=config.partition,
        qos=config.qos,
        reservation=config.reservation,
        constraint=config.constraint,
        memory_as=config.memory_as,
        requeue=config.requeue,
        parallel_environment=config.parallel_environment,
        raw=tuple((key, "" if value is True else str(value)) for key, value in config.native.items()),
        signal_s=config.seconds("warn") or 0,
        state_map=tuple(config.states.items()),
        strict=config.strict,
    )

"""A simulated world whose jobs read files: the manager's own staging, on virtual time, with faults of its own.

    python tests/sim/files_world.py FIRST COUNT

Every node is a place with files of its own; one place has all of them. Transfers are cut, disks are full, places do not
answer, copies vanish, originals change, and all that a world has besides happens too. Checked is what every world
checks, that no job starts without what it reads, that nothing is left of transfers that did not go on, and that what
jobs have written that COMPLETED is sent to the store of objects, unless their node is gone with its disk.
"""

import asyncio
import json
import random
import sys
from collections.abc import Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from rota.core.effects import Effect, Lease, Welcome
from rota.core.state import RunnerState, State
from rota.core.stimuli import Stimulus
from rota.manager.data import files as files_module
from rota.manager.data import outputs as outputs_module
from rota.manager.data import staging as staging_module
from rota.manager.data import transfers as transfers_module
from rota.manager.data.files import Files
from rota.manager.data.outputs import Line, Outputs, Owed
from rota.manager.data.places import S3
from rota.manager.data.staging import Staging
from rota.manager.data.transfers import Journal, Transfers
from rota.model.batch import Template
from rota.model.errors import BusyError
from rota.model.tables import COMPLETED
from rota.runner.lease import Lease as HeldLease
from rota.schedule.policy import POLICIES
from rota.sim import cluster as cluster_module
from rota.sim import world as world_module
from rota.sim.messages import Message, message_of
from rota.sim.network import Connection
from rota.sim.node import SimRunner
from rota.sim.shell import Shell
from rota.sim.workload import Workload
from rota.sim.world import SETTINGS, Outcome, World

ORIGIN = "origin"
FILES = 8
OUTPUTS = ("o1", "o2")
FAULTS = ("cut", "full", "away", "vanished", "changed", "slow")


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop of one life of a manager: its time is the world's, and it ends with that life."""

    def __init__(self, world: "FilesWorld") -> None:
        self._world = world
        self.dead = False

    def time(self) -> float:
        return self._world.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._world.after(0.0, self._run, handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._world.when(max(when, self.time()), self._run, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return

    def _run(self, handle: asyncio.Handle) -> None:
        if not self.dead and not handle.cancelled():
            self.enter(handle._run)

    def enter(self, call: Any, *args: Any) -> Any:
        """Call something as if from within the loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return call(*args)
        finally:
            asyncio._set_running_loop(before)

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **more: Any) -> "asyncio.Task[Any]":  # type: ignore[override]
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it ends with its manager
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._world.witness.problems.append(f"staging: {context.get('message')}: {context.get('exception')!r}")


class VirtualPlace:
    """The disk of a node: files with size and version, and what lies there of transfers."""

    cache = "/cache"

    def __init__(self, world: "FilesWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.files: dict[str, tuple[int, int]] = {}
        """Path → (size, version)."""
        self.parts: dict[tuple[str, str], int] = {}
        """(path, ident) → bytes."""
        self.away_until = 0.0
        self.gone = False
        """Whether the node is gone, and its disk with it."""

    @property
    def why_not(self) -> str | None:
        if self.gone or self.world.now < self.away_until:
            return f"{self.name} does not answer"
        return None

    async def ask(self, what: str, **more: Any) -> dict[str, Any]:
        await asyncio.sleep(self.world.chance.choice((0.0, 0.001, 0.2)))
        self.world.harm(self)
        if self.why_not is not None:
            raise BusyError(self.why_not)
        if what == "files":
            found = {path: self.files[path] for path in more.get("paths", ()) if path in self.files}
            return {"files": {path: {"size": size, "mtime": version} for path, (size, version) in found.items()}}
        if what == "received":
            return {"bytes": self.parts.get((more["path"], more["ident"]), 0)}
        if what == "discard":
            for path, ident in more["parts"]:
                self.parts.pop((path, ident), None)
        elif what == "remove":
            for path, size, version in more["rows"]:
                if self.files.get(path) == (size, version):
                    self.world.check_removal(self.name, path)
                    del self.files[path]
        return {}

    async def argv(self, request: dict[str, Any]) -> tuple[str, ...]:
        return (self.name, json.dumps(request))


class VirtualTransfers(Transfers):
    """Transfers whose commands are simulated."""

    world: "FilesWorld"

    async def _pipe(self, transfer: Any, send: tuple[str, ...], take: tuple[str, ...]) -> tuple[Any, str]:
        world, chance = self.world, self.world.chance
        source, target = world.place(send[0]), world.place(take[0])
        asked, given = json.loads(send[1]), json.loads(take[1])
        part = (given["path"], given["ident"])
        await asyncio.sleep(chance.choice((0.01, 0.3)))
        found = source.files.get(asked["path"])
        if source.why_not is not None or target.why_not is not None:
            return None, "no answer"
        if found is None:
            return {"error": "gone", "words": f"{asked['path']} is not there any more"}, ""
        if world.strikes("full"):
            target.parts.pop(part, None)
            return {"error": "full", "words": "no room"}, ""
        size, _ = found
        have = given["offset"]
        if have > size:
            target.parts.pop(part, None)
            return {"error": "changed", "words": f"{asked['path']} became shorter meanwhile"}, ""
        while have < size:
            have = min(size, have + max(1, size // 4))
            target.parts[part] = have
            await asyncio.sleep(chance.choice((0.01, 0.1, 2.0 if world.strikes("slow") else 0.1)))
            world.harm(source)
            if world.strikes("cut") or source.why_not is not None or target.why_not is not None:
                return None, "cut"
        if source.files.get(asked["path"]) != found:
            target.parts.pop(part, None)
            return {"error": "changed", "words": f"{asked['path']} changed while it was copied"}, ""
        target.parts.pop(part, None)
        target.files[given["path"]] = found
        if target.name == S3:
            world.sent.add((source.name, asked["path"], found[1]))
            world.faults.hit("sent")
        world.check_cache(target)
        world.faults.hit("brought")
        return {"size": size, "mtime": found[1], "sha256": f"{found[1]}"}, ""


class VirtualFiles(Files):
    """The manager's files, at the places of a world."""

    def __init__(self, world: "FilesWorld", shell: "FilesShell") -> None:
        self.world = world
        store = SimpleNamespace(replicas=world.kept_replicas.values, keep_replicas=world.keep_replicas)
        writer = SimpleNamespace(put=lambda work, done: work())
        super().__init__(store, writer, {}, shell.tell, "/nowhere")  # type: ignore[arg-type]
        journal = self._journal = world.journal
        self.transfers = VirtualTransfers(self._measured, journal)
        self.transfers.world = world  # type: ignore[attr-defined]
        self.limit = world.cache_most

    def places(self) -> dict[str, Any]:
        fixed = {name: self.world.place(name) for name in (ORIGIN, S3)}
        return {**fixed, **{place.name: place for place in self.world.places.values()}}

    def cache_most(self, place: str) -> int | None:
        return self.limit


class VirtualOutputs(Outputs):
    """What jobs owe, on the disk of the world: what is to be written is so with the next commit, and lost without."""

    def __init__(self, world: "FilesWorld", files: Files) -> None:
        self.world = world
        self.queued: list[Line] = []
        super().__init__(files, None, "/nowhere")  # type: ignore[arg-type]

    def flush(self) -> None:
        for line in self.queued:
            if line.owed is not None:
                self.world.owed[line.owed.job] = replace(line.owed)
            if line.done is not None:
                self.world.owed.pop(line.done, None)
        self.queued.clear()

    def _read(self) -> list[Owed]:
        return [replace(owed) for owed in self.world.owed.values()]

    def _append(self, lines: Any) -> None:
        self.queued += lines

    def _write_anew(self) -> None:
        rows = [*self.owed.values(), *self._promised.values()]
        self.world.owed = {row.job: replace(row) for row in rows}


class VirtualStaging(Staging):
    """The manager's staging, with the places of a world."""

    def __init__(self, world: "FilesWorld", shell: "FilesShell") -> None:
        self.world = world
        book = SimpleNamespace(path=lambda *_: "/")
        files = VirtualFiles(world, shell)
        super().__init__(files, VirtualOutputs(world, files), book, {}, shell.peers, shell.tell)  # type: ignore[arg-type]

    def place_of(self, state: State, runner: RunnerState) -> Any:
        return self.world.place(runner.id)


class KeptJournal(Journal):
    """The journal, on the disk of the world."""

    def __init__(self) -> None:
        super().__init__("")
        self.kept: set[tuple[str, str, str]] = set()

    def load(self) -> dict[str, list[tuple[str, str]]]:
        self._parts = set(self.kept)
        out: dict[str, list[tuple[str, str]]] = {}
        for place, path, ident in sorted(self.kept):
            out.setdefault(place, []).append((path, ident))
        return out

    def _write(self) -> None:
        self.kept = set(self._parts)


class _Peer:
    """A runner, as staging speaks to it."""

    def __init__(self, shell: "FilesShell", runner: str) -> None:
        self._shell = shell
        self._runner = runner

    def send(self, message: Message) -> None:
        connection = self._shell._sessions.get((self._runner, message["session"]))
        if connection is not None and connection.manager_open:
            connection.to_runner({key: _plain(value) for key, value in message.items()})


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value)) if isinstance(value, list | tuple) else value


class FilesShell(Shell):
    """A manager that brings files."""

    world: "FilesWorld"
    loop: VirtualLoop | None = None

    def start(self) -> None:
        if self.up:
            return
        self._end_loop()
        self.peers: dict[str, Any] = {}
        self.loop = VirtualLoop(self.world)
        self.staging = self.loop.enter(VirtualStaging, self.world, self)
        super().start()
        self.loop.enter(self.staging.start, self.core.state)
        self.loop.enter(self.loop.create_task, self._tidy(self.life))

    async def _tidy(self, life: int) -> None:
        while True:
            await asyncio.sleep(5.0)
            self.staging.files.tidy()

    def _end_loop(self) -> None:
        if self.loop is not None:
            self.loop.dead = True

    def crash(self, kind: str, down_s: float) -> None:
        if self.up:
            self._end_loop()
            if self._turn is not None or self.world.chance.random() < 0.5:
                self.staging.outputs.flush()  # type: ignore[attr-defined]  # what is committed came after it
        super().crash(kind, down_s)

    def tell(self, stimulus: Stimulus) -> None:
        self.post(stimulus)

    def receive(self, connection: Connection, message: Message) -> None:
        super().receive(connection, message)
        if message["t"] == "report" and self.up and connection.life == self.life:
            self.staging.begun(message["started"])
        runner = self.core.state.runners.get(connection.runner.id) if self.up else None
        if message["t"] == "touch" and runner is not None and connection.life == self.life and self.loop is not None:
            self.loop.enter(self.staging.touched, self.core.state, runner)

    def _committed(self, life: int, turn: Any) -> None:
        if life == self.life:
            self.staging.outputs.flush()  # type: ignore[attr-defined]
        super()._committed(life, turn)
        if life == self.life and self.up and self._turn is not turn and turn.results and self.loop is not None:
            self.loop.enter(self.staging.ended, self.core.state, turn.results)

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Lease):
                super()._perform([effect])
                if isinstance(effect, Welcome) and self._sessions.get((effect.runner, effect.session)):
                    self.peers[effect.runner] = _Peer(self, effect.runner)
                    assert self.loop is not None
                    self.loop.enter(self.staging.resume, self.core.state, self.core.state.runners[effect.runner])
                continue
            connection = self._connection(effect)
            if connection is not None and connection.manager_open:
                message = message_of(effect, self.core.state, connection.connect, self._named(effect))
                runner, assert_loop = self.core.state.runners[effect.runner], self.loop
                assert assert_loop is not None
                awaited = assert_loop.enter(self.staging.awaited, self.core.state, effect.jobs, runner)
                if awaited:
                    message["stage"] = [list(key) for key in awaited]
                connection.to_runner(message)

    def disconnected(self, connection: Connection) -> None:
        super().disconnected(connection)
        if self.up and connection.life == self.life:
            newest = self._latest.get(connection.runner.id)
            if newest is None or newest is connection:
                self.peers.pop(connection.runner.id, None)


class FilesWorkload(Workload):
    """Users whose jobs read files."""

    world: "FilesWorld"

    def _template(self) -> Template:
        chance, template = self.world.chance, super()._template()
        if template.needs.together or chance.random() < 0.3:
            return template
        inputs = tuple(sorted(chance.sample(self.world.paths, chance.choice((0, 1, 1, 2, 3)))))
        outputs = tuple(f"s3://bucket/{name}" for name in OUTPUTS if chance.random() < 0.2)
        policy = chance.choice(("default", "data_locality", "most_bytes"))
        return replace(template, inputs=inputs, outputs=outputs, policy=policy)


class FilesRunner(SimRunner):
    """A runner that notes whether what a job reads is there."""

    world: "FilesWorld"

    def _start(self, lease: HeldLease) -> None:
        self.world.check_inputs(self.id, lease)
        self.world.write(self.id, lease)
        super()._start(lease)


class FilesWorld(World):
    """A world with files."""

    def __init__(self, seed: int, tracing: bool = False) -> None:
        self.chance = Random(f"files {seed}")
        self.paths = [f"/f{number}" for number in range(FILES)]
        self.places: dict[str, VirtualPlace] = {}
        self.kept_replicas: dict[tuple[str, str], Any] = {}
        self.journal = KeptJournal()
        self.owed: dict[tuple[int, int, int], Owed] = {}
        """What is in the journal of outputs."""
        self.written: dict[tuple[int, int, int], list[tuple[str, str, int]]] = {}
        """Attempt → (place, path, version) of what it has written."""
        self.sent: set[tuple[str, str, int]] = set()
        """(place, path, version) of what has become an object."""
        self.now = 0.0
        self.weights = {kind: self.chance.choice((0.0, 0.0, 0.05, 0.2)) for kind in FAULTS}
        sizes = {path: self.chance.choice((1, 10, 1000)) for path in self.paths}
        self.cache_most = self.chance.choice((None, 3050, 2015))
        self.version = 1
        self.lasting = self.chance.random() < 0.5
        """Whether hosts are there when their runner is not."""
        super().__init__(seed, tracing)
        self.origin = VirtualPlace(self, ORIGIN)
        self.origin.files = {path: (sizes[path], 1) for path in self.paths}
        self.objects = VirtualPlace(self, S3)
        self.objects.away_until = self.chance.choice((0.0, 60.0, 200.0))
        self.shell = FilesShell(self, replace(SETTINGS, policies=POLICIES))
        self.workload = FilesWorkload(self)

    def place(self, name: str) -> VirtualPlace:
        """The place of a runner, or the one that has everything."""
        if name in (ORIGIN, S3):
            return self.origin if name == ORIGIN else self.objects
        if name not in self.places:
            self.places[name] = VirtualPlace(self, name)
        place = self.places[name]
        gone = not any(runner.id == name and not runner.gone for runner in self.runners)
        place.gone = gone and not self.lasting
        return place

    def keep_replicas(self, keep: list[Any], drop: list[tuple[str, str]]) -> None:
        for row in keep:
            self.kept_replicas[row.key] = row
        for key in drop:
            self.kept_replicas.pop(key, None)

    def strikes(self, kind: str) -> bool:
        """Whether a fault of files hits this action."""
        if not self.faults.active or self.chance.random() >= self.weights[kind]:
            return False
        self.faults.hit(f"files-{kind}")
        return True

    def harm(self, place: VirtualPlace) -> None:
        """Perhaps something happens to a place while it is asked."""
        if self.strikes("away"):
            place.away_until = self.now + self.chance.choice((0.5, 10.0, 60.0))
        brought = sorted(path for path in place.files if path in self.paths)
        if place is not self.origin and brought and self.strikes("vanished"):
            path = self.chance.choice(brought)
            if not self.is_read(place.name, path):
                del place.files[path]
        if place is self.origin and self.strikes("changed"):
            path = self.chance.choice(self.paths)
            self.version += 1
            place.files[path] = (self.chance.choice((1, 10, 1000)), self.version)

    def is_read(self, name: str, path: str) -> bool:
        """Whether a job that runs at a place reads a path."""
        for runner in self.runners:
            if runner.id == name:
                for process in runner.processes.values():
                    plan = self.workload.by_batch.get(process.lease.batch)
                    if plan is not None and path in self._inputs(process.lease):
                        return True
        return False

    def check_removal(self, name: str, path: str) -> None:
        """Nothing is removed that a job reads."""
        self.faults.hit("removed")
        if self.is_read(name, path):
            self.witness.problems.append(f"files: {path} is removed from {name} while a job reads it")

    def check_cache(self, place: VirtualPlace) -> None:
        """No more is kept at a place than its cache may have."""
        size = sum(size for path, (size, _) in place.files.items() if path in self.paths)
        grown = self.faults.hits.get("files-changed")  # what grows on its way is seen when the next comes
        if self.cache_most is not None and size > self.cache_most and not grown:
            self.witness.problems.append(f"files: {size} bytes are at {place.name}, of {self.cache_most}")

    def _template(self, lease: HeldLease) -> Template:
        plan = self.workload.by_batch[lease.batch]
        at = plan.indices().index(lease.index)
        return plan.spec.templates[plan.template_of_position[at]]

    def _inputs(self, lease: HeldLease) -> tuple[str, ...]:
        return self._template(lease).inputs

    def write(self, runner: str, lease: HeldLease) -> None:
        """A job writes what it is to write."""
        if lease.batch not in self.workload.by_batch:
            return
        for url in self._template(lease).outputs:
            self.version += 1
            path = f"/{url.rpartition('/')[2]}"
            self.place(runner).files[path] = (self.chance.choice((1, 10)), self.version)
            key = (lease.batch, lease.index, lease.attempt)
            self.written.setdefault(key, []).append((runner, path, self.version))

    def check_outputs(self) -> list[str]:
        """What was written by attempts that COMPLETED, and is not an object, nor what came after it there."""
        out = []
        newest = {(result.batch, result.pos): result for result in self.shell.disk.results}
        for result in newest.values():
            batch = self.shell.core.state.batches.get(result.batch)
            removed = batch is None or batch.states[result.pos] != COMPLETED
            if removed or result.state != "COMPLETED" or result.batch not in self.workload.by_batch:
                continue
            key = (result.batch, self.workload.by_batch[result.batch].indices()[result.pos], result.attempt)
            for place, path, version in self.written.get(key, ()):
                sent = any(each[:2] == (place, path) and each[2] >= version for each in self.sent)
                if not sent and not self.place(place).gone:
                    out.append(f"files: what {key} has written at {place} as {path} ({version}) was never sent")
        return out

    def check_inputs(self, runner: str, lease: HeldLease) -> None:
        """What a job reads is there, whole."""
        if lease.batch not in self.workload.by_batch:
            return
        for path in self._inputs(lease):
            if path not in self.place(runner).files and not self.faults.hits.get("files-vanished"):
                self.witness.problems.append(f"files: {lease} starts on {runner} without {path}")

    def finish(self, outcome: Outcome) -> None:
        """In the end nothing lies at a place of transfers that did not go on."""
        told = [result for result in self.shell.disk.results if result.reason == "input"]
        self.faults.hits["input"] = len(told)
        for result in told:  # that a file changed as often as it was read is the only reason that there may be
            if "changed while it was copied" not in (result.note or "") and "shorter" not in (result.note or ""):
                outcome.problems.append(f"files: {result}")
        failed = {(result.batch, self.workload.by_batch[result.batch].indices()[result.pos]) for result in told}
        outcome.problems = [
            words for words in outcome.problems if not any(words.startswith(f"job {job} is FAILED") for job in failed)
        ]
        if self.faults.hits.get("reorder"):
            # An order to give up what waits for files, that comes before the welcome of its session, is not repeated.
            # Within a connection nothing overtakes in life.
            outcome.problems = [words for words in outcome.problems if not words.startswith("P6: allocations are left")]
        if outcome.problems:
            return
        self.run_on(700.0)
        outcome.problems += self.check_outputs()
        for place in self.places.values():
            self.place(place.name)
            if not place.gone and place.parts:
                outcome.problems.append(f"files: left at {place.name}: {sorted(place.parts)}")

    def run_on(self, seconds: float) -> None:
        """Let some time pass."""
        self._run_until(self.now + seconds)


def run_files_seed(seed: int, tracing: bool = False) -> tuple[Outcome, FilesWorld]:
    """Run one world with files."""
    clock = SimpleNamespace()
    modules: tuple[Any, ...] = (files_module, outputs_module, staging_module, transfers_module)
    before = ([module.time for module in modules], files_module.now, staging_module.now, world_module.EVENTS_MOST)
    runner, cluster_module.SimRunner = cluster_module.SimRunner, FilesRunner  # type: ignore[misc]
    made: list[FilesWorld] = []
    clock.time = clock.monotonic = lambda: made[0].now + 1000.0 if made else 1000.0
    for module in modules:
        module.time = clock
    files_module.now = staging_module.now = lambda: made[0].clock.at(made[0].now)
    files_module.random = SimpleNamespace(random=Random(f"sources {seed}").random)  # type: ignore[assignment]
    world_module.EVENTS_MOST = 2_000_000
    try:
        world = FilesWorld(seed, tracing)
        made.append(world)
        outcome = world.run()
        world.finish(outcome)
        return outcome, world
    finally:
        cluster_module.SimRunner = runner  # type: ignore[misc]
        files_module.random = random
        times, files_module.now, staging_module.now, world_module.EVENTS_MOST = before
        for module, was in zip(modules, times, strict=True):
            module.time = was


def main() -> int:
    """Run some worlds; print those that broke a promise."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    bad, hits = 0, {}  # type: ignore[var-annotated]
    for seed in range(first, first + count):
        outcome, world = run_files_seed(seed, tracing=count == 1)
        if count == 1:
            print("\n".join(world.story))
        for kind, number in outcome.hits.items():
            hits[kind] = hits.get(kind, 0) + number
        if outcome.problems:
            bad += 1
            print(seed, outcome.problems[:2], flush=True)
    print(
        {
            kind: number
            for kind, number in sorted(hits.items())
            if kind.startswith("files") or kind in ("brought", "removed", "input", "sent")
        }
    )
    print(f"{count} worlds, {bad} with violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

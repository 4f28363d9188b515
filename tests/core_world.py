"""A core with a clock, scripted runners and a log, for the tests of `rota.core`."""

from typing import Any

import msgspec

from rota.core import invariants
from rota.core.effects import Ack, Allocate, Effect, Lease, Order, Welcome
from rota.core.plan.refusals import refusals
from rota.core.snapshot import durable_view, restore, take_columns, take_snapshot
from rota.core.soft import ShapeMemo
from rota.core.state import Settings, State
from rota.core.step import Core, Step
from rota.core.stimuli import (
    AllocationSeen,
    At,
    ChangeJobs,
    Ended,
    Greet,
    LastWords,
    Report,
    RunnerBye,
    SetLimits,
    SetMode,
    SiteSeen,
    Started,
    Stimulus,
    Submit,
    Tick,
    Touch,
    Written,
)
from rota.core.turn import Turn
from rota.model.batch import BatchSpec, Dependency, Template
from rota.model.errors import RotaError
from rota.model.events import Entry, Event
from rota.model.job import Result
from rota.model.needs import Amounts, Needs
from rota.model.selector import parse_selector
from rota.model.site import SiteFacts
from rota.model.tables import JOB_STATES
from rota.model.verdict import Verdict

GIB = 1 << 30
NODE = Amounts(4000, 8 * GIB, 100 * GIB, 1, (("lic", 2),))
Job = tuple[int, int, int]
"""(batch, index, attempt), as runners name it."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Entry).decode


class FakeRunner:
    """What a runner knows: it holds what it was sent, and repeats what was not acknowledged."""

    def __init__(self, name: str, allocation: str | None) -> None:
        self.name = name
        self.allocation = allocation
        self.connect = 0
        self.session = 0
        self.seq = 0
        self.got = 0
        self.held: dict[Job, str] = {}
        """Attempt → leased, running."""
        self.orders: list[Order] = []
        self.expired = False
        self.acked = 0


class World:
    """Drives a Core. After every step the invariants are checked, and what the log would rebuild is compared."""

    def __init__(self, settings: Settings | None = None, seed: int = 1, check: bool = True, site: bool = True) -> None:
        self.settings = settings or Settings()
        self.seed = seed
        self.core = Core(self.settings, seed)
        self.wall, self.mono = 1000.0, 0.0
        self.utc_offset_s = 0
        self.log: list[bytes] = []
        self.results: list[Result] = []
        self.effects: list[Effect] = []
        self.runners: dict[str, FakeRunner] = {}
        self.checking = check
        self.collecting = True
        """Whether what an allocation left behind is found at once: `words`, by allocation."""
        self.words: dict[str, list[Written]] = {}
        self.snapshot: tuple[bytes, int] | None = None
        self.columns: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self.keys = 0
        if site:
            self.site()

    # ---- the loop of a shell ----

    @property
    def state(self) -> State:
        return self.core.state

    @property
    def at(self) -> At:
        return At(self.wall, self.mono, self.utc_offset_s)

    def step(self, stimulus: Stimulus) -> Step:
        answers: list[Step | RotaError] = []
        turn = Turn(self.core)
        turn.take([(stimulus, answers.append)])
        self._commit(turn)
        (answer,) = answers
        if isinstance(answer, RotaError):
            raise answer
        for effect in list(answer.effects):
            if self.collecting and isinstance(effect, Allocate) and effect.what == "collect":
                more = self.step(LastWords(at=self.at, id=effect.id, written=self.words.pop(effect.id, [])))
                answer.events += more.events
                answer.results += more.results
                answer.effects += more.effects
        return answer

    def schedule(self) -> Step:
        turn = Turn(self.core)
        can_wait = self.core.can_wait
        turn.schedule(self.at)
        assert not (can_wait and any(isinstance(effect, Lease) for effect in turn.effects)), "it could not wait"
        self._commit(turn)
        return Step([entry.event for entry in turn.entries], turn.results, turn.effects)

    def _commit(self, turn: Turn) -> None:
        for entry in turn.entries:
            assert entry.seq == len(self.log) + 1
            self.log.append(_pack(entry))
        assert len(self.log) == self.state.seq
        self.results += turn.results
        self.effects += turn.effects
        for effect in turn.effects:
            self._perform(effect)
        if self.checking:
            invariants.check(self.state)
        turn.answer()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Ack | Welcome | Lease | Order) and effect.runner in self.runners:
            runner = self.runners[effect.runner]
            if isinstance(effect, Welcome):
                runner.session = effect.session
            elif isinstance(effect, Ack):
                runner.acked = max(runner.acked, effect.seq)
            elif isinstance(effect, Lease):
                if effect.session == runner.session and effect.n == runner.got + 1:
                    runner.got = effect.n
                    for batch, pos, attempt, _ in effect.jobs:
                        job = (batch, self.state.batches[batch].index(pos), attempt)
                        assert job not in runner.held, f"{job} was leased twice"
                        runner.held[job] = "leased"
            elif effect.what == "expired":
                runner.expired = True
                runner.held.clear()
            else:
                runner.orders.append(effect)

    # ---- what happens ----

    def site(
        self, name: str = "local", node: Amounts = NODE, most: int = 1, linger_s: float = 1e9, **more: Any
    ) -> Step:
        return self.step(SiteSeen(at=self.at, site=name, facts=SiteFacts(node, most=most, linger_s=linger_s, **more)))

    def submit(self, count: int = 1, template: Template | None = None, **more: Any) -> int:
        """Add a batch; returns its number."""
        return int(self.submitted(count, template, **more).reply["batch"])

    def submitted(self, count: int = 1, template: Template | None = None, **more: Any) -> Step:
        self.keys += 1
        runs, key, limits = more.pop("runs", None), more.pop("key", f"k{self.keys}"), more.pop("limits", None)
        then, graph = more.pop("then", None), more.pop("graph", None)
        templates = more.pop("templates", (template or Template(argv=("true",)),))
        if "after" in more:
            more["after"] = tuple(
                Dependency(*word) if isinstance(word, tuple) else Dependency(word) if isinstance(word, str) else word
                for word in more["after"]
            )
        spec = BatchSpec(count, templates, **more)
        return self.step(
            Submit(at=self.at, by="ann", spec=spec, key=key, runs=runs, limits=limits, then=then, graph=graph)
        )

    def change(self, what: str, *words: str, **more: Any) -> dict[str, Any]:
        stimulus = ChangeJobs(
            at=self.at, by="ann", what=what, selector=parse_selector(words), **{"everything": True, **more}
        )
        return self.step(stimulus).reply

    def mode(self, mode: str) -> Step:
        return self.step(SetMode(at=self.at, by="ann", mode=mode))

    def limit(self, name: str, count: int | str | None) -> Step:
        return self.step(SetLimits(at=self.at, by="ann", counts={name: count}))

    def tick(self, seconds: float = 1.0) -> Step:
        """Time passes, in steps that a manager would take, so that no grace is given for its own absence."""
        while seconds > 10:
            self.wall, self.mono, seconds = self.wall + 10, self.mono + 10, seconds - 10
            self.step(Tick(at=self.at))
        self.wall, self.mono = self.wall + seconds, self.mono + seconds
        return self.step(Tick(at=self.at))

    def allocation(self, name: str, verb: str, reason: str | None = None) -> Step:
        return self.step(AllocationSeen(at=self.at, id=name, verb=verb, reason=reason))

    def start_runner(self, name: str = "r1", capacity: Amounts = NODE) -> FakeRunner:
        """A pass asks for an allocation; it runs, and its runner greets."""
        self.schedule()
        free = [
            a.id
            for a in self.state.allocations.values()
            if a.state in ("SUBMITTING", "PENDING", "RUNNING")
            and not any(runner.allocation == a.id for runner in self.runners.values())
        ]
        runner = self.runners[name] = FakeRunner(name, free[0] if free else None)
        self.greet(runner, capacity=capacity)
        return runner

    def greet(
        self,
        runner: FakeRunner,
        capacity: Amounts = NODE,
        connect: int | None = None,
        host: str = "host",
        **more: Any,
    ) -> Step:
        if connect is None:
            runner.connect += 1
            runner.got = 0
        return self.step(
            Greet(
                at=self.at,
                by=runner.name,
                runner=runner.name,
                allocation=runner.allocation,
                connect=runner.connect if connect is None else connect,
                clock=self.mono,
                host=host,
                pid=1,
                capacity=capacity,
                held=list(runner.held),
                **more,
            )
        )

    def report(
        self,
        runner: FakeRunner,
        started: list[Job] | None = None,
        ended: list[Ended] | None = None,
        disclaimed: list[Job] | None = None,
        seq: int | None = None,
        session: int | None = None,
    ) -> Step:
        if seq is None:
            runner.seq += 1
        for job in started or []:
            if job in runner.held:
                runner.held[job] = "running"
        for row in ended or []:
            runner.held.pop((row.batch, row.index, row.attempt), None)
        for job in disclaimed or []:
            runner.held.pop(job, None)
        return self.step(
            Report(
                at=self.at,
                by=runner.name,
                runner=runner.name,
                session=runner.session if session is None else session,
                seq=runner.seq if seq is None else seq,
                got=runner.got,
                clock=self.mono,
                started=[Started(*job) for job in started or []],
                ended=list(ended or []),
                disclaimed=[(*job, "too late") for job in disclaimed or []],
            )
        )

    def end(
        self, runner: FakeRunner, job: Job, code: int | None = 0, signal: int | None = None, reason: str | None = None
    ) -> Step:
        return self.report(runner, ended=[self.row(job, code, signal, reason)])

    def row(self, job: Job, code: int | None = 0, signal: int | None = None, reason: str | None = None) -> Ended:
        return Ended(*job, code, signal, reason, self.wall - 10.0, self.wall, 0.5, 1000, None, None)

    def touch(self, runner: FakeRunner, **more: Any) -> Step:
        name, session, got = runner.name, runner.session, runner.got
        return self.step(Touch(at=self.at, by=name, runner=name, session=session, got=got, clock=self.mono, **more))

    def bye(self, runner: FakeRunner) -> Step:
        return self.step(
            RunnerBye(at=self.at, by=runner.name, runner=runner.name, session=runner.session, reason="idle")
        )

    # ---- what is so ----

    def shape_memo(self, shape: int) -> ShapeMemo:
        """What the scheduling pass remembers of a shape."""
        return self.state.soft.planning.shapes.setdefault(shape, ShapeMemo(self.state.shapes[shape].shape))

    def refusals(self, shape: int) -> list[Verdict]:
        return refusals(self.state, self.state.shapes[shape], self.at)

    def job(self, batch: int, index: int) -> str:
        book = self.state.batches[batch]
        pos = book.position(index)
        assert pos is not None
        return JOB_STATES[book.states[pos]]

    def states(self, batch: int) -> list[str]:
        return [JOB_STATES[byte] for byte in self.state.batches[batch].states]

    def counts(self, batch: int) -> dict[str, int]:
        return {JOB_STATES[number]: count for number, count in enumerate(self.state.batches[batch].counts) if count}

    def notes(self) -> list[str]:
        return [
            f"{event.subject} {event.what}: {event.detail}"
            for event in self.events()
            if type(event).__name__ == "Noted"
        ]

    def events(self) -> list[Event]:
        return [_unpack(row).event for row in self.log]

    # ---- restarts ----

    def checkpoint(self) -> None:
        self.snapshot = (take_snapshot(self.state), self.state.seq)
        for batch, chunk, states, attempts in take_columns(self.state):
            self.columns[batch, chunk] = (states, attempts)

    def rebuilt(self, from_start: bool) -> State:
        """The state that a restart would come to."""
        entries = [_unpack(row) for row in self.log]
        if from_start or self.snapshot is None:
            return restore(self.settings, self.seed, None, 0, [], entries)
        snapshot, seq = self.snapshot
        rows = [(batch, chunk, states, attempts) for (batch, chunk), (states, attempts) in self.columns.items()]
        return restore(self.settings, self.seed, snapshot, seq, rows, entries[seq:])

    def check_restart(self) -> None:
        """Both ways of rebuilding come to what is."""
        for from_start in (True, False):
            state = self.rebuilt(from_start)
            invariants.check(state)
            assert durable_view(state) == durable_view(self.state)
            assert state.seq == self.state.seq
            assert state.next_batch == self.state.next_batch
            assert state.next_allocation == self.state.next_allocation

    def restart(self, from_start: bool = False) -> list[Effect]:
        """Go on from what a restart rebuilds."""
        state = self.rebuilt(from_start)
        self.core = Core(self.settings, self.seed, state)
        self.columns.clear() if from_start else None
        if from_start:
            self.snapshot = None
        effects = self.core.restart(self.at)
        self.site()
        return effects


def lease_all(world: World, runner: FakeRunner) -> list[Job]:
    """Schedule; what the runner holds and has not started."""
    world.schedule()
    return [job for job, what in runner.held.items() if what == "leased"]


def run_jobs(world: World, batch: int, *codes: int) -> None:
    """Run the next jobs of a batch to these exit codes; what else was leased is given back."""
    runner = world.runners.get("r1") or world.start_runner()
    left = list(codes)
    while left:
        leased = lease_all(world, runner)
        jobs = [job for job in leased if job[0] == batch][: len(left)]
        assert jobs, world.counts(batch)
        rest = [job for job in leased if job not in jobs]
        world.report(runner, ended=[world.row(job, left.pop(0)) for job in jobs], disclaimed=rest)


def cores(count: float, **more: Any) -> Template:
    """A template that asks for so many cores."""
    retries = more.pop("retries", 0)
    own = (
        "limits", "priority", "rerunnable", "retry_on", "never_retry_on", "no_retry_after_s", "group", "override",
        "set", "enforce",
    )  # fmt: skip
    fields = {name: more.pop(name) for name in own if name in more}
    return Template(argv=("true",), needs=Needs(int(count * 1000), **more), retries=retries, **fields)

"""The smallest world in which the lease protocol can go wrong, as a state that can be copied, compared and moved on.

The real Core and the real protocol.Runner; a few jobs, two runners, messages in two queues per runner, and a budget
of faults.
"""

import copy
from typing import Any

from rota.core.effects import Ack, Allocate, Effect, Lease, Order, Welcome
from rota.core.evolve import evolve
from rota.core.invariants import check
from rota.core.snapshot import restore
from rota.core.state import Settings
from rota.core.step import Core
from rota.core.stimuli import (
    AllocationSeen,
    At,
    ChangeJobs,
    Ended,
    Greet,
    Report,
    RunnerBye,
    SiteSeen,
    Stimulus,
    Submit,
    Tick,
    Touch,
)
from rota.model.batch import BatchSpec, Template
from rota.model.events import AllocationPlanned, Entry, Event
from rota.model.needs import Amounts
from rota.model.selector import parse_selector
from rota.model.tables import SETTLED
from rota.runner.lease import RUNNING
from rota.runner.protocol import Runner
from rota.sim.copying import copy_core

__all__ = ["BUDGETS", "Breach", "ModelWorld", "Move"]

Message = dict[str, Any]
Move = tuple[Any, ...]
Key = tuple[int, int, int]

MODEL_SETTINGS = Settings(
    touch_s=2,
    missing_s=5,
    start_by_s=3,
    rerun_s=1000,
    resend_s=1,
    backoff_first_s=1,
    backoff_most_s=1,
    backoff_jitter_s=0,
    ahead_s=1.0,
)
SHORT_S, LONG_S = 2, 7
"""A touch is due after a short step; after a long one start-by is past and a silent runner is MISSING."""
NAMES = ("r1", "r2")
FAULTS = ("loss", "duplicate", "reorder", "break", "manager-crash", "runner-crash", "kill")
BUDGETS = ("faults", *FAULTS, "short", "long")
_NEAR = ("loss", "duplicate", "reorder", "break", "runner-crash", "short", "long")


class Breach(AssertionError):  # noqa: N818
    """A promise is broken."""


class ModelRunner:
    """A runner process: protocol, link, and what runs on its node."""

    __slots__ = ("allocation", "closed", "dead", "down", "gone", "protocol", "running", "up")

    def __init__(self, name: str, allocation: str) -> None:
        self.allocation = allocation
        self.protocol = Runner(
            name,
            {
                "allocation": allocation,
                "host": name,
                "pid": 1,
                "cores": 1000,
                "memory": 0,
                "disk": 0,
                "gpus": 0,
                "tags": [],
                "output": "/o",
            },
        )
        self.up: tuple[Message, ...] = ()
        self.down: tuple[Message, ...] = ()
        self.running: tuple[Key, ...] = ()
        self.closed = False
        """The manager's end of the connection is gone."""
        self.dead = False
        self.gone = False
        """Dead, its processes too, and the driver has said so."""

    def copied(self) -> "ModelRunner":
        """For another branch."""
        new = ModelRunner.__new__(ModelRunner)
        for name in ModelRunner.__slots__:
            setattr(new, name, getattr(self, name))
        new.protocol = copy.deepcopy(self.protocol)
        return new


class ModelWorld:
    """One state of the whole."""

    def __init__(self, budgets: dict[str, int], jobs: int = 2, ahead: bool = False) -> None:
        self.time = 100
        self.budgets = tuple(budgets.get(name, 0) for name in BUDGETS)
        self.log: tuple[Event, ...] = ()
        self.core = Core(MODEL_SETTINGS)
        self._shared = False
        """The core is another branch's, too: it is copied before it takes a step (most moves are not its)."""
        self.executed: frozenset[Key] = frozenset()
        self.runners = [ModelRunner(name, f"a{number}") for number, name in enumerate(NAMES, 1)]
        self.tell(self._site())
        self.tell(Submit(at=self.at, spec=BatchSpec(jobs, (Template(argv=("true",), retries=1),)), key="k"))
        self.core.state.replan = True
        self.tell(Tick(at=self.at))
        for runner in self.runners:  # one job asks for one; the model begins with all of them
            if runner.allocation not in self.core.state.allocations:
                planned = AllocationPlanned(runner.allocation, "s", runner.allocation, Amounts(1000), 1e9, submit=True)
                evolve(self.core.state, planned)
                self.log += (planned,)
        if ahead:
            self.core.state.shapes[0].mean_s = 0.01
        for runner in self.runners:
            runner.up = (runner.protocol.greet(float(self.time)),)

    def copied(self) -> "ModelWorld":
        """For another branch."""
        new = ModelWorld.__new__(ModelWorld)
        self._shared = True
        new.__dict__.update(self.__dict__)
        new.runners = [runner.copied() for runner in self.runners]
        return new

    @property
    def at(self) -> At:
        """Now."""
        return At(1e9 + self.time, float(self.time))

    @property
    def settled(self) -> bool:
        """All jobs are."""
        return all(min(batch.states) >= SETTLED for batch in self.core.state.batches.values())

    def _site(self) -> SiteSeen:
        return SiteSeen(at=self.at, site="s", node=Amounts(1000), most=len(NAMES), linger_s=1e9)

    # -- the manager

    def tell(self, stimulus: Stimulus, effects_lost: bool = False) -> None:
        """One turn of the manager's loop."""
        if self._shared:
            self.core, self._shared = copy_core(self.core), False
        step = self.core.step(stimulus)
        plan = self.core.schedule(self.at)
        self.log += tuple(step.events) + tuple(plan.events)
        if step.events or plan.events:
            check(self.core.state)
        if not effects_lost:
            for effect in (*step.effects, *plan.effects):
                self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Allocate):
            return
        runner = self.runners[NAMES.index(effect.runner)]
        if runner.closed or runner.dead:
            return
        message: Message
        if isinstance(effect, Welcome):
            message = {
                "t": "welcome",
                "connect": effect.connect,
                "session": effect.session,
                "touch_s": 2,
                "start_by_s": 3,
            }
        elif isinstance(effect, Lease):
            jobs = [[slot, "s", number, pos + 1, attempt, ["true"], None] for number, pos, attempt, slot in effect.jobs]
            message = {
                "t": "lease",
                "session": effect.session,
                "n": effect.n,
                "clock": effect.clock,
                "slots": list(effect.slots.items()),
                "specs": {"s": {}},
                "jobs": jobs,
            }
        elif isinstance(effect, Ack):
            message = {"t": "ack", "seq": effect.seq}
        else:
            assert isinstance(effect, Order)
            message = {
                "t": effect.what,
                "session": effect.session,
                "jobs": effect.jobs,
                "connect": runner.protocol.connect,
            }
        runner.down += (message,)

    def _hear(self, name: str, message: Message, effects_lost: bool) -> None:
        kind = message["t"]
        if kind == "greet":
            held = [(b, i, a) for b, i, a in message["held"]]
            stimulus: Stimulus = Greet(
                at=self.at,
                runner=name,
                allocation=message["allocation"],
                connect=message["connect"],
                clock=message["clock"],
                host=name,
                pid=1,
                capacity=Amounts(1000),
                held=held,
            )
        elif kind == "report":
            stimulus = Report(
                at=self.at,
                runner=name,
                session=message["session"],
                seq=message["seq"],
                got=message["got"],
                clock=message["clock"],
                started=[(row[0], row[1], row[2]) for row in message["started"]],
                ended=[Ended(*row) for row in message["ended"]],
                disclaimed=[(b, i, a, why) for b, i, a, why in message["disclaimed"]],
            )
        elif kind == "touch":
            stimulus = Touch(
                at=self.at,
                runner=name,
                session=message["session"],
                got=message["got"],
                clock=message["clock"],
                held=[tuple(job) for job in message["held"]],
            )
        elif kind == "gone":
            stimulus = AllocationSeen(at=self.at, id=message["allocation"], verb="fail", reason="its runner was killed")
        else:
            stimulus = RunnerBye(at=self.at, runner=name, session=message["session"], reason=message["reason"])
        self.tell(stimulus, effects_lost)

    def crash_manager(self) -> None:
        """Die and start again: what was committed is there, connections are not. What was sent may still arrive."""
        entries = (Entry(number, 0.0, "", event) for number, event in enumerate(self.log, 1))
        self.core, self._shared = Core(MODEL_SETTINGS, state=restore(MODEL_SETTINGS, 1, None, 0, (), entries)), False
        for runner in self.runners:
            runner.closed = True
            runner.up = tuple(message for message in runner.up if message["t"] == "gone")
            if runner.gone and not runner.up:
                runner.up = ({"t": "gone", "allocation": runner.allocation},)  # the driver is asked again
        self.core.restart(self.at)
        self.tell(self._site())

    # -- the runners

    def pump(self, runner: ModelRunner) -> None:
        """What the agent does after anything that happens."""
        if runner.dead:
            return
        protocol = runner.protocol
        clock = float(self.time)
        for lease in protocol.startable(clock):
            self._start(runner, lease.key)
            protocol.started(lease, 0.0, 1)
        if not runner.closed:
            runner.up += tuple(protocol.outgoing(clock, True))

    def _start(self, runner: ModelRunner, key: Key) -> None:
        if key in self.executed:
            raise Breach(f"attempt {key} is executed twice")
        for other in self.runners:
            for running in other.running:
                if running[:2] == key[:2]:
                    raise Breach(f"{running} still runs on {other.protocol.runner_id} when {key} starts")
        if len(runner.running) >= 1:
            raise Breach(f"{runner.running} fills the node when {key} starts")
        self.executed |= {key}
        runner.running += (key,)

    def _finish(self, runner: ModelRunner, key: Key, signal: int | None = None) -> None:
        runner.running = tuple(other for other in runner.running if other != key)
        for lease in runner.protocol.leases():
            if lease.key == key and lease.state == RUNNING:
                reason = "killed" if signal else None
                runner.protocol.ended(lease, (None if signal else 0, signal, reason, None), 0.0, 0.0)
        self.pump(runner)

    def _obey(self, runner: ModelRunner, message: Message) -> None:
        for order in runner.protocol.receive(message, float(self.time)):
            if order[0] == "kill" and order[1].key in runner.running:
                self._finish(runner, order[1].key, 15)
        self.pump(runner)

    def _reconnect(self, runner: ModelRunner) -> None:
        runner.closed = False  # what the manager sent in the old session may still arrive, and must be ignored
        runner.up += (runner.protocol.greet(float(self.time)),)

    def must_reconnect(self, runner: ModelRunner) -> bool:
        """The connection is gone, or its greeting will never be answered."""
        if runner.dead or (not runner.closed and runner.protocol.session is not None):
            return False
        waits = any(message["t"] == "greet" for message in runner.up) or any(
            message["t"] == "welcome" for message in runner.down
        )
        return runner.closed or not waits

    # -- moves

    def moves(self) -> list[Move]:
        """Everything that can happen next, but for faults that the budget does not allow."""
        left = dict(zip(BUDGETS, self.budgets, strict=True))
        if not left["faults"]:
            left.update(dict.fromkeys(FAULTS, 0))
        if not any(left[kind] for kind in _NEAR):
            # Nothing can touch a message on its way to a runner any more, nor the runner before it
            # arrives: when it arrives changes nothing for
            # the others, and early is the worst case for an overlap. So this one move stands for all.
            for number, runner in enumerate(self.runners):
                if runner.down:
                    return [("deliver", number, "down")]
        out: list[Move] = []
        for number, runner in enumerate(self.runners):
            for way, queue in (("up", runner.up), ("down", runner.down)):
                if queue:
                    out.append(("deliver", number, way))
                    if left["loss"] and queue[0]["t"] != "gone":
                        out.append(("loss", number, way))
                    if left["duplicate"]:
                        out.append(("duplicate", number, way))
                    if left["reorder"] and len(queue) > 1:
                        out.append(("reorder", number, way))
            if runner.up and left["manager-crash"]:
                out.append(("crash-after-commit", number))
            out.extend(("finish", number, key) for key in runner.running if not runner.dead)
            if self.must_reconnect(runner):
                out.append(("reconnect", number))
            if left["break"] and not runner.closed and not runner.dead:
                out.append(("break", number))
            if left["runner-crash"] and not runner.dead:
                out.append(("runner-crash", number))
            if runner.dead and not runner.gone:
                out.append(("sweep", number))
        for kind in ("manager-crash", "short", "long", "kill"):
            if left[kind]:
                out.append((kind,))
        return out

    def after(self, move: Move) -> "ModelWorld":
        """The state that this move leads to."""
        new = self.copied()
        kind = move[0]
        spent = {"crash-after-commit": "manager-crash"}.get(kind, kind)
        if spent in BUDGETS:
            place = BUDGETS.index(spent)
            budgets = list(self.budgets)
            budgets[place] -= 1
            if spent in FAULTS:
                budgets[0] -= 1
            if not budgets[0]:
                budgets = [
                    count if name in ("short", "long") else 0 for name, count in zip(BUDGETS, budgets, strict=True)
                ]
            new.budgets = tuple(budgets)
        if len(move) == 1:
            new._move_all(kind)
        else:
            new._move_one(kind, new.runners[move[1]], move)
        return new

    def _move_all(self, kind: str) -> None:
        if kind == "manager-crash":
            self.crash_manager()
        elif kind == "kill":
            self.tell(ChangeJobs(at=self.at, what="kill", selector=parse_selector(["1.1"])))
        else:
            for _ in range(SHORT_S if kind == "short" else LONG_S):
                self.time += 1
                self.tell(Tick(at=self.at))
            for runner in self.runners:
                self.pump(runner)

    def _move_one(self, kind: str, runner: ModelRunner, move: Move) -> None:
        if kind in ("deliver", "crash-after-commit", "loss", "duplicate", "reorder"):
            self._move_message(kind, runner, move)
        elif kind == "finish":
            self._finish(runner, move[2])
        elif kind in ("reconnect", "break"):
            runner.protocol.lost_connection()
            self._reconnect(runner)
        elif kind == "runner-crash":
            runner.dead = True
            runner.down = ()
        else:
            assert kind == "sweep"
            runner.running = ()
            runner.gone = True
            runner.up += ({"t": "gone", "allocation": runner.allocation},)

    def _move_message(self, kind: str, runner: ModelRunner, move: Move) -> None:
        name = runner.protocol.runner_id
        if kind == "crash-after-commit":
            first, runner.up = runner.up[0], runner.up[1:]
            self._hear(name, first, True)
            self.crash_manager()
            return
        way = move[2]
        queue: tuple[Message, ...] = getattr(runner, way)
        place = 1 if kind == "reorder" else 0
        message = queue[place]
        rest = queue[:place] + queue[place + 1 :]
        setattr(runner, way, (*rest, message) if kind == "duplicate" else rest)
        if kind == "loss":
            return
        if way == "up":
            self._hear(name, message, False)
        else:
            self._obey(runner, message)

    # -- comparing

    def fingerprint(self) -> str:
        """Equal for states that have equal futures."""
        state = self.core.state
        core = []
        for batch in state.batches.values():
            live = sorted((pos, live.runner, live.attempt) for pos, live in batch.live.items())
            core.append(
                (bytes(batch.states), batch.attempts.tobytes(), live, batch.failures, batch.losses, batch.hold_wanted)
            )
        for runner in state.runners.values():
            core.append(
                (  # type: ignore[arg-type]
                    runner.state,
                    runner.connect,
                    runner.session,
                    runner.seq,
                    runner.slots,
                    runner.held,
                    list(runner.jobs),
                    runner.connected,
                    runner.contact,
                    runner.clock,
                    runner.lease_n,
                    runner.got,
                    runner.unacked,
                    list(runner.given_up),
                )
            )
        allocations = [(a.id, a.state) for a in state.allocations.values()]
        nodes = []
        for node in self.runners:
            p = node.protocol
            held = [(key, lease.state, lease.start_by, lease.kill_asked, lease.told) for key, lease in p._held.items()]
            nodes.append(
                (
                    node.up,
                    node.down,
                    node.running,
                    node.closed,
                    node.dead,
                    node.gone,
                    p.connect,
                    p.session,
                    p.got,
                    p.seq,
                    p.slots,
                    p.leaving,
                    p.expired,
                    held,
                    p._flight,
                    p._flight_sent,
                    p._ended,
                    p._disclaimed,
                    p._doomed,
                    list(p._done),
                    p._owes_got,
                    p._sent_at,
                )
            )
        return repr(
            (
                self.time,
                self.budgets,
                core,
                allocations,
                nodes,
                sorted(self.executed),
                self.core.last_tick,
                state.replan,
            )
        )

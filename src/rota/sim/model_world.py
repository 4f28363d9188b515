"""The smallest world in which the lease protocol can go wrong, as a state that can be copied, compared and moved on.

The real Core and the real protocol.Runner; a few jobs, two runners, messages in two queues per runner, and a budget
of faults.
"""

import copy
from abc import ABC, abstractmethod
from operator import attrgetter
from typing import Any, Self

from rota.core.effects import Allocate, Effect
from rota.core.evolve import evolve
from rota.core.invariants import check
from rota.core.snapshot import restore
from rota.core.soft import Contact, ShapeMemo
from rota.core.state import BatchState, RunnerState, Settings
from rota.core.step import Core, Step
from rota.core.stimuli import AllocationSeen, At, ChangeJobs, LastWords, SiteSeen, Stimulus, Submit, Tick
from rota.core.turn import Turn
from rota.model.batch import BatchSpec, Template
from rota.model.errors import RotaError
from rota.model.events import AllocationPlanned, Entry
from rota.model.needs import Amounts
from rota.model.selector import parse_selector
from rota.model.site import SiteFacts
from rota.model.tables import SETTLED
from rota.runner.lease import RUNNING
from rota.runner.protocol import Runner
from rota.sim.copying import copy_core
from rota.sim.messages import Message, message_of, stimulus_of

__all__ = ["BUDGETS", "Breach", "ModelWorld", "Move"]

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

# What tells states apart, besides what fingerprint() says:
_BATCH = attrgetter("failures", "losses", "hold_wanted")
_KNOWN = attrgetter("state", "connect", "session", "seq", "slots", "held")
_CONTACT = attrgetter("connected", "heard", "clock", "lease_n", "got", "unacked")
_NODE = attrgetter("up", "down", "running", "closed", "dead", "gone")
_LEASE = attrgetter("state", "start_by", "kill_asked", "told")
_PROTOCOL = attrgetter(
    "connect", "session", "got", "seq", "slots", "leaving", "expired",
    "_flight", "_flight_sent", "_ended", "_disclaimed", "_doomed", "_owes_got", "_sent_at",
)  # fmt: skip


class Breach(AssertionError):  # noqa: N818
    """A promise is broken."""


def _taken(outcome: Step | RotaError) -> None:
    if isinstance(outcome, RotaError):  # nothing that happens here can be refused
        raise outcome


def one_core(name: str, allocation: str, host: str, **facts: Any) -> Runner:
    """The protocol of a runner that has one core, and nothing else."""
    sizes = {"cores": 1000, "memory": 0, "disk": 0, "gpus": 0, "tags": []}
    return Runner(name, {"allocation": allocation, "host": host, "pid": 1, **sizes, "output": "/o", **facts})


class ModelProcess:
    """A runner process in a small world; each branch of the exploration has its own."""

    __slots__ = ("protocol",)

    def __init__(self, protocol: Runner) -> None:
        self.protocol = protocol

    def copied(self) -> Self:
        """A copy for another branch of the exploration."""
        new = object.__new__(type(self))
        for name in type(self).__slots__:
            setattr(new, name, getattr(self, name))
        new.protocol = copy.deepcopy(self.protocol)
        return new


class ModelRunner(ModelProcess):
    """A runner process: protocol, link, and what runs on its node."""

    __slots__ = ("allocation", "closed", "dead", "down", "gone", "running", "up")

    def __init__(self, name: str, allocation: str) -> None:
        self.allocation = allocation
        super().__init__(one_core(name, allocation, name))
        self.up: tuple[Message, ...] = ()
        self.down: tuple[Message, ...] = ()
        self.running: tuple[Key, ...] = ()
        self.closed = False
        """Whether the manager's end of the connection is gone."""
        self.dead = False
        self.gone = False
        """Whether it is dead, its processes too, and the driver has said so."""

    def fingerprint(self) -> tuple[Any, ...]:
        """A value that is equal for runners with equal futures."""
        return (*_NODE(self), *protocol_print(self.protocol))


def protocol_print(protocol: Runner) -> tuple[Any, ...]:
    """A value that is equal for runner processes with equal futures."""
    held = [(key, *_LEASE(lease)) for key, lease in protocol._held.items()]
    gangs = (list(protocol._holds), protocol._releasing, list(protocol._released), protocol._owes_holds)
    return (*_PROTOCOL(protocol), held, list(protocol._done), gangs)


def batch_print(batch: BatchState) -> tuple[Any, ...]:
    """A value that is equal for batches with equal futures."""
    live = sorted((pos, live.runner, live.attempt) for pos, live in batch.live.items())
    return (bytes(batch.states), batch.attempts.tobytes(), live, *_BATCH(batch))


def runner_print(runner: RunnerState) -> tuple[Any, ...]:
    """A value that is equal for what is known of runners, if that leads to the same."""
    return (*_KNOWN(runner), list(runner.jobs))


def contact_print(contact: Contact) -> tuple[Any, ...]:
    """The same of the connections to them."""
    return (*_CONTACT(contact), list(contact.given_up))


class ManagedWorld(ABC):
    """What small worlds have in common: a manager whose core other branches of the exploration may share, and time."""

    def __init__(self, budgets: tuple[int, ...]) -> None:
        self.time = 100
        self.budgets = budgets
        self.log: tuple[Entry, ...] = ()
        self.core = Core(MODEL_SETTINGS)
        self._shared = False
        """Whether another branch has the same core: it is copied before it takes a step (most moves need none)."""
        self.executed: frozenset[Key] = frozenset()

    @property
    def at(self) -> At:
        """The present moment on the manager's clocks."""
        return At(1e9 + self.time, float(self.time))

    @property
    def settled(self) -> bool:
        """Whether all jobs are settled."""
        return all(min(batch.states) >= SETTLED for batch in self.core.state.batches.values())

    def copied(self) -> Self:
        """A copy for another branch of the exploration; whoever has parts that change copies these too."""
        new = object.__new__(type(self))
        self._shared = True
        new.__dict__.update(self.__dict__)
        return new

    def tell(self, stimulus: Stimulus, effects_lost: bool = False) -> None:
        """Run one turn of the manager's loop."""
        if self._shared:
            self.core, self._shared = copy_core(self.core), False
        turn = Turn(self.core)
        turn.take([(stimulus, _taken)])
        turn.schedule(self.at)
        turn.answer()
        self.log += tuple(turn.entries)
        if turn.entries:
            check(self.core.state)
        if not effects_lost:
            for effect in turn.effects:
                self._perform(effect)

    @abstractmethod
    def _perform(self, effect: Effect) -> None:
        """Carry out an effect."""


class ModelWorld(ManagedWorld):
    """One state of the whole world: manager, runners, messages, and the faults that are left."""

    def __init__(self, budgets: dict[str, int], jobs: int = 2, ahead: bool = False) -> None:
        super().__init__(tuple(budgets.get(name, 0) for name in BUDGETS))
        self.runners = [ModelRunner(name, f"a{number}") for number, name in enumerate(NAMES, 1)]
        self.tell(self._site())
        self.tell(Submit(at=self.at, spec=BatchSpec(jobs, (Template(argv=("true",), retries=1),)), key="k"))
        self.core.state.soft.planning.wanted = True
        self.tell(Tick(at=self.at))
        for runner in self.runners:  # one job asks for one; the model begins with all of them
            if runner.allocation not in self.core.state.allocations:
                planned = AllocationPlanned(runner.allocation, "s", runner.allocation, Amounts(1000), 1e9, submit=True)
                evolve(self.core.state, planned)
                self.log += (Entry(self.core.state.seq, self.at.wall, "rota", planned),)
        if ahead:
            shape = self.core.state.shapes[0]
            self.core.state.soft.planning.shapes[0] = ShapeMemo(shape.shape, mean_s=0.01)
        for runner in self.runners:
            runner.up = (runner.protocol.greet(float(self.time)),)

    def copied(self) -> Self:
        """A copy for another branch of the exploration."""
        new = super().copied()
        new.runners = [runner.copied() for runner in self.runners]
        return new

    def _site(self) -> SiteSeen:
        return SiteSeen(at=self.at, site="s", facts=SiteFacts(Amounts(1000), most=len(NAMES), linger_s=1e9))

    # -- the manager

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Allocate):
            for runner in self.runners:
                if effect.what == "collect" and effect.id == runner.allocation:
                    runner.up += ({"t": "collected", "allocation": effect.id},)
            return
        runner = self.runners[NAMES.index(effect.runner)]
        if not runner.closed and not runner.dead:
            runner.down += (message_of(effect, self.core.state, runner.protocol.connect),)

    def _hear(self, name: str, message: Message, effects_lost: bool) -> None:
        if message["t"] == "gone":
            allocation, why = message["allocation"], "its runner was killed"
            self.tell(AllocationSeen(at=self.at, id=allocation, verb="fail", reason=why), effects_lost)
        elif message["t"] == "collected":
            self.tell(LastWords(at=self.at, id=message["allocation"]), effects_lost)
        else:
            self.tell(stimulus_of(message, name, self.at), effects_lost)

    def crash_manager(self) -> None:
        """Die and start again: what was committed is there, connections are not. What was sent may still arrive."""
        self.core, self._shared = Core(MODEL_SETTINGS, state=restore(MODEL_SETTINGS, 1, None, 0, (), self.log)), False
        for runner in self.runners:
            runner.closed = True
            runner.up = tuple(message for message in runner.up if message["t"] == "gone")
            if runner.gone and not runner.up:
                runner.up = ({"t": "gone", "allocation": runner.allocation},)  # the driver is asked again
        self.core.restart(self.at)
        self.tell(self._site())

    # -- the runners

    def pump(self, runner: ModelRunner) -> None:
        """Start and send what a runner can, as the agent does after anything that happens."""
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
        """Whether a runner's connection is gone, or its greeting will never be answered."""
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
            # Nothing can touch a message on its way to a runner any more, nor the runner before it arrives: when that
            # is changes nothing for the others, and early is the worst case for an overlap. So this move does for all.
            for number, runner in enumerate(self.runners):
                if runner.down:
                    return [("deliver", number, "down")]
        out: list[Move] = []
        for number, runner in enumerate(self.runners):
            for way, queue in (("up", runner.up), ("down", runner.down)):
                if queue:
                    out.append(("deliver", number, way))
                    if left["loss"] and queue[0]["t"] not in ("gone", "collected"):
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

    def fair_round(self) -> "ModelWorld":
        """The world after everything that can happen without faults has."""
        world = self.copied()
        for number, runner in enumerate(world.runners):
            if runner.dead and not runner.gone:
                world._move_one("sweep", runner, ("sweep", number))
            if world.must_reconnect(runner):
                world._move_one("reconnect", runner, ("reconnect", number))
        for _ in range(200):
            busy = False
            for number, runner in enumerate(world.runners):
                for way in ("up", "down"):
                    if getattr(runner, way):
                        busy = True
                        world._move_message("deliver", runner, ("deliver", number, way))
                if runner.running and not runner.dead:
                    busy = True
                    world._finish(runner, runner.running[0])
            if not busy:
                break
        world._move_all("short")
        return world

    # -- comparing

    def fingerprint(self) -> str:
        """A text that is equal for worlds with equal futures."""
        state = self.core.state
        batches = [batch_print(batch) for batch in state.batches.values()]
        known = [runner_print(runner) for runner in state.runners.values()]
        contacts = [contact_print(contact) for contact in state.soft.contacts.values()]
        allocations = [(a.id, a.state) for a in state.allocations.values()]
        nodes = [runner.fingerprint() for runner in self.runners]
        executed, core = sorted(self.executed), (self.core.last_tick, state.soft.planning.wanted)
        return repr((self.time, self.budgets, batches, known, contacts, allocations, nodes, executed, core))

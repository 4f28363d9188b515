"""The smallest world in which an allocation is watched through answers that may be older than they look.

The real Core and the real protocol.Runner; one job; a cluster that may hold an element, start it, take it back and
start it again as another process; a listing that is asked for, made and heard at three different moments.
"""

import copy
from typing import Any, Self

from msgspec.structs import replace

from rota.core.effects import Allocate, Effect, Order
from rota.core.snapshot import restore
from rota.core.step import Core
from rota.core.stimuli import AllocationSeen, Disconnected, LastWords, SiteSeen, Stimulus, Submit, Tick
from rota.model.batch import BatchSpec, Template
from rota.model.events import Ended
from rota.model.needs import Amounts
from rota.model.site import SiteFacts
from rota.runner.lease import RUNNING
from rota.sim.messages import Message, message_of, stimulus_of
from rota.sim.model_world import (
    MODEL_SETTINGS,
    Breach,
    Key,
    ManagedWorld,
    ModelProcess,
    Move,
    batch_print,
    contact_print,
    one_core,
    protocol_print,
    runner_print,
)

__all__ = ["RequeueWorld"]

SETTINGS = replace(MODEL_SETTINGS, site_retry_s=0, site_retry_most_s=0)
"""No time passes here but by what happens: a site is asked again at once."""
BUDGETS = ("requeue", "held", "cached", "earlier", "crash", "break")
PROCESSES_MOST = 4
VERBS = {"H": "held", "Q": "pend", "R": "run", "X": "complete"}


class Element:
    """One element at the cluster: H(eld), Q(ueued), R(unning) or over (X)."""

    __slots__ = ("answer", "asked", "before", "id", "killed", "phase", "runs", "submitted")

    def __init__(self, id: str, held: bool) -> None:
        self.id = id
        self.phase = "H" if held else "Q"
        self.before = self.phase
        """What a cached listing may still say."""
        self.runs = 0
        self.submitted = True
        """Whether the answer to its submission is still on its way."""
        self.killed = False
        self.asked: int | None = None
        """When the manager asked about it, if that is not answered."""
        self.answer: str | None = None
        """What the listing says that was made since."""

    def fingerprint(self) -> tuple[Any, ...]:
        """A value that is equal for elements with equal futures."""
        return tuple(getattr(self, name) for name in Element.__slots__)


class Process(ModelProcess):
    """A runner process that the cluster has started."""

    __slots__ = ("challenged", "connected", "down", "element", "lives", "running", "up")

    def __init__(self, element: str, name: str) -> None:
        self.element = element
        super().__init__(one_core(name, element, name))
        self.lives = True
        self.connected = False
        self.challenged = 0
        self.up: tuple[Message, ...] = ()
        self.down: tuple[Message, ...] = ()
        self.running: tuple[Key, ...] = ()

    def fingerprint(self) -> tuple[Any, ...]:
        """A value that is equal for processes with equal futures."""
        link = (self.element, self.lives, self.connected, self.challenged, self.up, self.down, self.running)
        return (*link, *protocol_print(self.protocol))


class RequeueWorld(ManagedWorld):
    """One state of the whole world."""

    def __init__(self, budgets: dict[str, int]) -> None:
        super().__init__(tuple(budgets.get(name, 0) for name in BUDGETS))
        self.core = Core(SETTINGS)
        self.elements: dict[str, Element] = {}
        self.processes: list[Process] = []
        self.tell(self._site())
        self.tell(Submit(at=self.at, spec=BatchSpec(1, (Template(argv=("true",)),)), key="k"))
        self.core.state.soft.planning.wanted = True
        self.tell(Tick(at=self.at))

    def _site(self) -> SiteSeen:
        return SiteSeen(at=self.at, site="s", facts=SiteFacts(Amounts(1000), most=1, linger_s=1e9))

    def copied(self) -> Self:
        """A copy for another branch of the exploration."""
        new = super().copied()
        new.elements = {name: copy.copy(element) for name, element in self.elements.items()}
        new.processes = [process.copied() for process in self.processes]
        return new

    # -- the manager

    def tell(self, stimulus: Stimulus, effects_lost: bool = False) -> None:
        """Run one turn of the manager's loop; nothing that ran may be written down as never started."""
        before = len(self.log)
        super().tell(stimulus, effects_lost)
        for entry in self.log[before:]:
            if isinstance(entry.event, Ended) and entry.event.counts_as == "nothing" and not entry.event.seq:
                for number, pos, *_ in entry.event.rows:
                    attempt = (number, pos + 1, self.core.state.batches[number].attempts[pos])
                    if attempt in self.executed:
                        raise Breach(f"history: {attempt} ran and is said to have never started")

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Allocate):
            self._allocate(effect)
            return
        for process in self.processes:
            if process.protocol.runner_id == effect.runner and process.lives and process.connected:
                process.down += (message_of(effect, self.core.state, process.protocol.connect),)
                if isinstance(effect, Order) and effect.what == "again":
                    process.down += ({"t": "closed"},)

    def _allocate(self, effect: Allocate) -> None:
        for name in effect.ids or (effect.id,):
            element = self.elements.get(name)
            if effect.what in ("submit", "find"):
                if element is None:
                    self.elements[name] = Element(name, self._spend("held"))
                else:
                    element.submitted = True
            elif element is not None and effect.what == "terminate":
                element.killed = True
            elif effect.what == "collect":
                self.tell(LastWords(at=self.at, id=name))

    def _spend(self, kind: str) -> bool:
        place = BUDGETS.index(kind)
        if not self.budgets[place]:
            return False
        self.budgets = tuple(count - (number == place) for number, count in enumerate(self.budgets))
        return True

    def _hear(self, process: Process, message: Message) -> None:
        name = process.protocol.runner_id
        if message["t"] == "closed":
            known = self.core.state.runners.get(name)
            if known is not None:
                self.tell(Disconnected(at=self.at, runner=name, session=known.session))
            return
        if message["t"] == "greet":
            self.time += 1  # so that what was asked for, or challenged, before and after it can be told apart
        self.tell(stimulus_of(message, name, self.at, float(process.challenged)))
        if message["t"] == "greet":
            self.time += 1

    def _crash(self) -> None:
        self.core, self._shared = Core(SETTINGS, state=restore(SETTINGS, 1, None, 0, (), self.log)), False
        self.time += 2
        for process in self.processes:
            self._lose_connection(process)
            process.up = process.down = ()
        for element in self.elements.values():
            element.asked = element.answer = None
        for effect in self.core.restart(self.at):
            self._perform(effect)
        self.tell(self._site())

    # -- processes

    def _lose_connection(self, process: Process) -> None:
        process.connected = False
        process.down = ()
        process.protocol.lost_connection()

    def _end(self, process: Process) -> None:
        """The cluster ends a process, with all that it ran; the manager sees the end of its connection after all."""
        process.lives, process.running, process.down = False, (), ()
        if process.connected:
            process.up += ({"t": "closed"},)

    def _pump(self, process: Process) -> None:
        protocol = process.protocol
        for lease in protocol.startable(0.0):
            self._start(process, lease.key)
            protocol.started(lease, 0.0, 1)
        if process.connected:
            process.up += tuple(protocol.outgoing(0.0, True))
        if protocol.finished and not process.running:
            self._leave(process)

    def _leave(self, process: Process) -> None:
        self._end(process)
        element = self.elements[process.element]
        if self.processes[-1] is process or not any(p.lives and p.element == element.id for p in self.processes):
            element.before, element.phase = element.phase, "X" if element.phase == "R" else element.phase

    def _start(self, process: Process, key: Key) -> None:
        if key in self.executed:
            raise Breach(f"attempt {key} is executed twice")
        for other in self.processes:
            for running in other.running:
                if running[:2] == key[:2]:
                    raise Breach(f"{running} still runs on {other.protocol.runner_id} when {key} starts")
        self.executed |= {key}
        process.running += (key,)

    def _finish(self, process: Process, key: Key, signal: int | None = None) -> None:
        process.running = tuple(other for other in process.running if other != key)
        for lease in process.protocol.leases():
            if lease.key == key and lease.state == RUNNING:
                how = (None if signal else 0, signal, "killed" if signal else None, None)
                process.protocol.ended(lease, how, 0.0, 0.0)
        self._pump(process)

    def _obey(self, process: Process, message: Message) -> None:
        if message["t"] == "closed":
            self._lose_connection(process)
            return
        for order in process.protocol.receive(message, 0.0):
            if order[0] == "kill" and order[1].key in process.running:
                self._finish(process, order[1].key, 15)
        self._pump(process)

    # -- moves

    def moves(self, fair: bool = False) -> list[Move]:
        """Everything that can happen next; `fair`: but for faults."""
        out: list[Move] = []
        for number, process in enumerate(self.processes):
            out.extend((way, number) for way in ("up", "down") if getattr(process, way))
            if process.lives and not process.connected:
                out.append(("connect", number))
            out.extend(("finish", number, key) for key in process.running)
        for name, element in self.elements.items():
            out.extend((kind, name) for kind in self._steps(element))
        if fair:
            return out
        left = dict(zip(BUDGETS, self.budgets, strict=True))
        for name, element in self.elements.items():
            if left["requeue"] and element.phase == "R" and any(self._current(name)):
                out.extend((("requeue", name, "Q"), *((("requeue", name, "H"),) if left["held"] else ())))
            if element.asked is not None and element.answer is None and element.phase != "X":
                if left["cached"] and element.before != element.phase:
                    out.append(("cached", name))
                if left["earlier"] and element.runs and element.phase in "QH":
                    out.append(("earlier", name))
        if left["crash"]:
            out.append(("crash",))
        if left["break"]:
            out.extend(("break", number) for number, p in enumerate(self.processes) if p.lives and p.connected)
        return out

    def _steps(self, element: Element) -> list[str]:
        """What can happen at the cluster, or between it and the manager, without faults."""
        out = []
        if element.submitted:
            out.append("submitted")
        if element.phase == "H":
            out.append("release")
        if element.phase == "Q" and len(self.processes) < PROCESSES_MOST:
            out.append("start")
        if element.killed:
            out.append("kill")
        known = self.core.state.allocations[element.id]
        if element.asked is None and known.state in ("PENDING", "RUNNING", "KILLING"):
            out.append("ask")
        if element.asked is not None:
            out.append("list" if element.answer is None else "answer")
        return out

    def _current(self, name: str) -> list[Process]:
        return [process for process in self.processes if process.element == name and process.lives]

    def after(self, move: Move) -> "RequeueWorld":
        """The state that this move leads to."""
        new = self.copied()
        kind = move[0]
        if kind in BUDGETS:
            new._spend(kind)
        if kind == "crash":
            new._crash()
        elif isinstance(move[1], int):
            new._move_process(kind, new.processes[move[1]], move)
        else:
            new._move_element(kind, new.elements[move[1]], move)
        return new

    def _move_process(self, kind: str, process: Process, move: Move) -> None:
        if kind == "up":
            message, process.up = process.up[0], process.up[1:]
            self._hear(process, message)
        elif kind == "down":
            message, process.down = process.down[0], process.down[1:]
            self._obey(process, message)
        elif kind == "connect":
            process.connected, process.challenged = True, self.time
            process.up += (process.protocol.greet(0.0),)
        elif kind == "finish":
            self._finish(process, move[2])
        else:
            assert kind == "break"
            self._lose_connection(process)
            process.up += ({"t": "closed"},)

    def _move_element(self, kind: str, element: Element, move: Move) -> None:
        if kind == "submitted":
            element.submitted = False
            self.tell(AllocationSeen(at=self.at, id=element.id, verb="pend", native_id="1", identity=True))
        elif kind == "release":
            element.before, element.phase = element.phase, "Q"
        elif kind == "start":
            element.before, element.phase, element.runs = element.phase, "R", element.runs + 1
            tag = self.core.state.allocations[element.id].tag
            self.processes.append(Process(element.id, f"{tag}.0.0.{len(self.processes)}"))
        elif kind in ("kill", "requeue"):
            for process in self._current(element.id):
                self._end(process)
            element.before, element.phase = element.phase, "X" if kind == "kill" else move[2]
            element.killed = False
            if kind == "requeue" and move[2] == "H":
                self._spend("held")
        elif kind == "ask":
            element.asked = self.time
        elif kind in ("list", "cached", "earlier"):
            element.answer = VERBS[{"list": element.phase, "cached": element.before, "earlier": "X"}[kind]]
        else:
            assert kind == "answer" and element.asked is not None and element.answer is not None
            asked, verb = float(element.asked), element.answer
            element.asked = element.answer = None
            seen = AllocationSeen(at=self.at, id=element.id, verb=verb, native_id="1", asked=asked)
            self.tell(seen)

    def fair_round(self) -> "RequeueWorld":
        """The world after everything that can happen without faults has, for a while."""
        world = self
        for _ in range(60):
            moves = world.moves(fair=True)
            if not moves or world.settled:
                break
            moves.sort(key=lambda move: move[0] in ("ask", "list", "answer", "connect"))
            world = world.after(moves[0])
        world = world.copied()
        world.tell(Tick(at=world.at))
        return world

    # -- comparing

    def fingerprint(self) -> str:
        """A text that is equal for worlds with equal futures."""
        state = self.core.state
        batches = [batch_print(batch) for batch in state.batches.values()]
        known = [runner_print(runner) for runner in state.runners.values()]
        contacts = [(contact_print(contact), contact.greeted) for contact in state.soft.contacts.values()]
        allocations = [(a.id, a.state, a.native_id, a.id in state.soft.ending) for a in state.allocations.values()]
        nodes = [process.fingerprint() for process in self.processes]
        elements = [element.fingerprint() for element in self.elements.values()]
        return repr((self.time, self.budgets, batches, known, contacts, allocations, nodes, elements))

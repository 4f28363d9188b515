"""The smallest world in which a gang can go wrong: a few nodes of one allocation, one job that needs two of them.

The real Core and the real protocol.Runner, as in `model_world`. Each node has a supervisor: it ends what a killed
runner left there, and starts another that says whom it replaces. Ranks that the root started elsewhere live on when it
ends.
"""

from typing import Any, Self

from rota.core.effects import Allocate, Effect
from rota.core.snapshot import restore
from rota.core.step import Core
from rota.core.stimuli import AllocationSeen, ChangeJobs, LastWords, SiteSeen, Submit, Tick
from rota.model.batch import BatchSpec, Template
from rota.model.needs import Amounts, Needs
from rota.model.selector import parse_selector
from rota.model.site import SiteFacts
from rota.runner.lease import RUNNING
from rota.runner.protocol import Runner
from rota.sim.messages import Message, message_of, stimulus_of
from rota.sim.model_world import (
    LONG_S,
    MODEL_SETTINGS,
    SHORT_S,
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

__all__ = ["GangWorld"]

_FAULTS = ("loss", "duplicate", "reorder", "break", "manager-crash", "runner-crash", "root-killed", "kill", "vanish")
_NEAR = ("loss", "duplicate", "reorder", "break", "runner-crash", "root-killed", "vanish", "short", "long")
_BUDGETS = ("faults", *_FAULTS, "rank", "short", "long")


class _Node(ModelProcess):
    """A node: the runner process that serves it now, its link, and the processes of jobs there."""

    __slots__ = ("allocation", "closed", "dead", "down", "ending", "name", "nonce", "ranks", "root", "up")

    def __init__(self, allocation: str, name: str) -> None:
        self.allocation = allocation
        self.name = name
        self.nonce = 0
        self.up: tuple[tuple[str, Message], ...] = ()
        """(runner that sent it, message)."""
        self.down: tuple[Message, ...] = ()
        self.root: Key | None = None
        self.ranks: tuple[Key, ...] = ()
        self.ending: tuple[Key, ...] = ()
        """Attempts of which everything here is being ended."""
        self.closed = False
        """Whether the manager's end of the connection is gone."""
        self.dead = False
        super().__init__(self._process())

    def _process(self) -> Runner:
        before = {"replaces": self.protocol.runner_id} if self.nonce else {}
        return one_core(f"{self.allocation}.0.{self.name}.{self.nonce}", self.allocation, self.name, **before)

    def succeed(self, clock: float) -> None:
        """The supervisor has ended everything of its runner, which is dead, and starts another."""
        self.root, self.ranks, self.ending = None, (), ()
        self.nonce += 1
        self.protocol = self._process()
        self.dead, self.closed, self.down = False, False, ()
        self.greet(clock)

    def greet(self, clock: float) -> None:
        """Open a connection."""
        self.closed = False  # what the manager sent in the old session may still arrive, and must be ignored
        self.say(self.protocol.greet(clock))

    def say(self, *messages: Message) -> None:
        """Send messages to the manager."""
        self.up += tuple((self.protocol.runner_id, message) for message in messages)

    def fingerprint(self) -> tuple[Any, ...]:
        """A value that is equal for nodes with equal futures."""
        state = (self.allocation, self.nonce, self.up, self.down, self.root, self.ranks, self.ending, self.closed)
        return (*state, self.dead, protocol_print(self.protocol))


class GangWorld(ManagedWorld):
    """One state of the whole world: manager, nodes, messages, and the faults that are left."""

    def __init__(self, budgets: dict[str, int], nodes: int = 2, jobs: int = 1) -> None:
        super().__init__(tuple(budgets.get(name, 0) for name in _BUDGETS))
        self.nodes: list[_Node] = []
        self.node_count = nodes
        self.driver: tuple[tuple[str, str], ...] = ()
        """What the driver has to say: ("gone" or "collected", allocation)."""
        self.over: frozenset[str] = frozenset()
        """Allocations that are over."""
        self.tell(self._site())
        needs = Needs(1000, nodes=2)
        spec = BatchSpec(jobs, (Template(argv=("true",), needs=needs, retries=1),))
        self.tell(Submit(at=self.at, spec=spec, key="k"))
        for node in self.nodes:  # the model begins when all have been welcomed
            self._move_message("deliver", node, ("deliver", 0, "up"))
            self._move_message("deliver", node, ("deliver", 0, "down"))

    def copied(self) -> Self:
        """A copy for another branch of the exploration."""
        new = super().copied()
        new.nodes = [node.copied() for node in self.nodes]
        return new

    @property
    def settled(self) -> bool:
        """Whether all jobs are settled, nothing is reserved any more, and nothing of them is left on a node."""
        state = self.core.state
        return (
            super().settled
            and not state.parts
            and not any(runner.slots for runner in state.runners.values())
            and not any(node.root or node.ranks or node.protocol.occupied for node in self.nodes if not node.dead)
        )

    def _site(self) -> SiteSeen:
        facts = SiteFacts(Amounts(1000), most=2, linger_s=1e9, nodes_most=self.node_count)
        return SiteSeen(at=self.at, site="s", facts=facts)

    # -- the manager

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Allocate):
            if effect.what in ("submit", "find") and not any(node.allocation == effect.id for node in self.nodes):
                for number in range(self.node_count):
                    self.nodes.append(_Node(effect.id, f"n{number + 1}"))
                    self.nodes[-1].greet(float(self.time))
            elif effect.what == "collect":
                self.driver += (("collected", effect.id),)
            return
        for node in self.nodes:
            if node.protocol.runner_id == effect.runner and not node.closed and not node.dead:
                node.down += (message_of(effect, self.core.state, node.protocol.connect),)

    def _hear(self, sender: str, message: Message, effects_lost: bool) -> None:
        self.tell(stimulus_of(message, sender, self.at), effects_lost)

    def _hear_driver(self) -> None:
        (what, name), self.driver = self.driver[0], self.driver[1:]
        if what == "gone":
            self.tell(AllocationSeen(at=self.at, id=name, verb="fail", reason="it vanished"))
        else:
            self.tell(LastWords(at=self.at, id=name))

    def crash_manager(self) -> None:
        """Die and start again: what was committed is there, connections are not. What was sent may still arrive."""
        state = restore(MODEL_SETTINGS, 1, None, 0, (), self.log)
        self.core, self._shared = Core(MODEL_SETTINGS, state=state), False
        for node in self.nodes:
            node.closed, node.up = True, ()
        effects = self.core.restart(self.at)
        known = state.allocations
        self.driver = tuple(("gone", name) for name in sorted(self.over) if known[name].state.endswith("ING"))
        self.tell(self._site())
        for effect in effects:
            self._perform(effect)

    # -- the nodes

    def pump(self, node: _Node) -> None:
        """Start and send what a runner can, as the agent does after anything that happens."""
        if node.dead:
            return
        clock = float(self.time)
        for lease in node.protocol.startable(clock):
            self._start_root(node, lease.key)
            node.protocol.started(lease, 0.0, 1)
        if not node.closed:
            node.say(*node.protocol.outgoing(clock, True))

    def _processes(self) -> list[tuple[_Node, Key]]:
        found = [(node, key) for node in self.nodes for key in node.ranks]
        return found + [(node, node.root) for node in self.nodes if node.root is not None]

    def _start_root(self, node: _Node, key: Key) -> None:
        if key in self.executed:
            raise Breach(f"attempt {key} is executed twice")
        for other, running in self._processes():
            if running[:2] == key[:2]:
                raise Breach(f"{running} still runs on {other.name} when {key} starts on {node.name}")
            if other is node:
                raise Breach(f"{running} fills {node.name} when {key} starts")
        lease = next(lease for lease in node.protocol.leases() if lease.key == key)
        if lease.gang is None:
            raise Breach(f"{key} starts and knows nothing of its gang")
        members = {each["runner"] for each in lease.gang["nodes"]} - {node.protocol.runner_id}
        for other in self.nodes:
            if other.protocol.runner_id in members and not other.dead and not self._holds(other, key):
                raise Breach(f"{key} starts though {other.name} does not hold its part")
        self.executed |= {key}
        node.root = key

    def _holds(self, node: _Node, key: Key) -> bool:
        return any(hold.key == key for hold in node.protocol.parts()) and key not in node.ending

    def _start_rank(self, node: _Node, key: Key) -> None:
        for other, running in self._processes():
            if other is node and running != key:
                raise Breach(f"{running} fills {node.name} when a rank of {key} starts")
        node.ranks += (key,)

    def _finish_root(self, node: _Node, code: int | None, signal: int | None = None) -> None:
        key, node.root = node.root, None
        for lease in node.protocol.leases():
            if lease.key == key and lease.state == RUNNING:
                reason = "killed" if signal == 15 else None
                node.protocol.ended(lease, (code, signal, reason, None), 0.0, 0.0)
        self.pump(node)

    def _obey(self, node: _Node, message: Message) -> None:
        for order in node.protocol.receive(message, float(self.time)):
            if order[0] == "kill" and order[1].key == node.root:
                self._finish_root(node, None, 15)
            elif order[0] == "release":
                if any(other.root == order[1] for other in self.nodes):
                    raise Breach(f"{node.name} is to release its part of {order[1]}, whose root runs")
                node.ending += (order[1],)
        self.pump(node)

    def _release(self, node: _Node, key: Key) -> None:
        node.ranks = tuple(rank for rank in node.ranks if rank != key)
        node.ending = tuple(other for other in node.ending if other != key)
        node.protocol.released(key)
        self.pump(node)

    def must_reconnect(self, node: _Node) -> bool:
        """Whether a runner's connection is gone, or its greeting will never be answered."""
        if node.dead or node.protocol.expired or (not node.closed and node.protocol.session is not None):
            return False
        name = node.protocol.runner_id
        waits = any(message["t"] == "greet" and sender == name for sender, message in node.up)
        waits = waits or any(message["t"] in ("welcome", "expired") for message in node.down)
        return node.closed or not waits

    # -- moves

    def moves(self) -> list[Move]:
        """Everything that can happen next, but for faults that the budget does not allow."""
        left = dict(zip(_BUDGETS, self.budgets, strict=True))
        if not left["faults"]:
            left.update(dict.fromkeys(_FAULTS, 0))
        if not any(left[kind] for kind in _NEAR):
            # As in ModelWorld: nothing can touch a message on its way to a node any more, nor the node before it
            # arrives, so this move does for all.
            for number, node in enumerate(self.nodes):
                if node.down:
                    return [("deliver", number, "down")]
        out: list[Move] = []
        for number, node in enumerate(self.nodes):
            out.extend(self._message_moves(number, node, left))
            out.extend(("end-parts", number, key) for key in node.ending if not node.dead)
            if node.dead:
                if node.allocation not in self.over:
                    out.append(("succeed", number))
                continue
            if node.root is not None:
                out.append(("finish", number))
                if left["root-killed"]:
                    out.append(("root-killed", number))
            if left["rank"]:
                key = next((key for other, key in self._processes() if key == other.root), None)
                if key is not None and self._holds(node, key) and key not in node.ranks:
                    out.append(("rank", number, key))
            if self.must_reconnect(node):
                out.append(("reconnect", number))
            out.extend((kind, number) for kind in ("break", "runner-crash") if left[kind])
        out.extend((kind,) for kind in ("manager-crash", "short", "long", "kill", "vanish") if left[kind])
        if self.driver:
            out.append(("driver",))
        return out

    def _message_moves(self, number: int, node: _Node, left: dict[str, int]) -> list[Move]:
        out: list[Move] = []
        for way, queue in (("up", node.up), ("down", node.down)):
            if queue:
                kinds = ["deliver", *(kind for kind in ("loss", "duplicate") if left[kind])]
                kinds += ["reorder"] if left["reorder"] and len(queue) > 1 else []
                out.extend((kind, number, way) for kind in kinds)
        if node.up and left["manager-crash"]:
            out.append(("crash-after-commit", number))
        return out

    def after(self, move: Move) -> "GangWorld":
        """The state that this move leads to."""
        new = self.copied()
        kind = move[0]
        spent = {"crash-after-commit": "manager-crash"}.get(kind, kind)
        if spent in _BUDGETS:
            budgets = list(self.budgets)
            budgets[_BUDGETS.index(spent)] -= 1
            budgets[0] -= spent in _FAULTS
            if not budgets[0]:
                keep = ("rank", "short", "long")
                budgets = [left if name in keep else 0 for name, left in zip(_BUDGETS, budgets, strict=True)]
            new.budgets = tuple(budgets)
        if len(move) == 1:
            new.move_all(kind)
        else:
            new.move_one(kind, new.nodes[move[1]], move)
        return new

    def move_all(self, kind: str) -> None:
        """Something happens to the manager, to time, or to the allocation."""
        if kind == "manager-crash":
            self.crash_manager()
        elif kind == "kill":
            self.tell(ChangeJobs(at=self.at, what="kill", selector=parse_selector(["1.1"])))
        elif kind == "driver":
            self._hear_driver()
        elif kind == "vanish":
            for node in self.nodes:
                node.dead, node.root, node.ranks, node.ending, node.down = True, None, (), (), ()
            gone = {node.allocation for node in self.nodes} - self.over
            self.over |= gone
            self.driver += tuple(("gone", name) for name in sorted(gone))
        else:
            for _ in range(SHORT_S if kind == "short" else LONG_S):
                self.time += 1
                self.tell(Tick(at=self.at))
            for node in self.nodes:
                self.pump(node)

    def move_one(self, kind: str, node: _Node, move: Move) -> None:
        """Something happens to a node, or to a message on its way."""
        if kind in ("deliver", "crash-after-commit", "loss", "duplicate", "reorder"):
            self._move_message(kind, node, move)
        elif kind in ("finish", "root-killed"):
            self._finish_root(node, *((0, None) if kind == "finish" else (None, 9)))
        elif kind == "rank":
            self._start_rank(node, move[2])
        elif kind == "end-parts":
            self._release(node, move[2])
        elif kind in ("reconnect", "break"):
            node.protocol.lost_connection()
            node.greet(float(self.time))
        elif kind == "runner-crash":
            node.dead, node.down = True, ()
        else:
            assert kind == "succeed"
            node.succeed(float(self.time))

    def _move_message(self, kind: str, node: _Node, move: Move) -> None:
        way = "up" if kind == "crash-after-commit" else move[2]
        queue: tuple[Any, ...] = getattr(node, way)
        place = 1 if kind == "reorder" else 0
        message = queue[place]
        rest = queue[:place] + queue[place + 1 :]
        setattr(node, way, (*rest, message) if kind == "duplicate" else rest)
        if kind == "crash-after-commit":
            self._hear(message[0], message[1], True)
            self.crash_manager()
        elif kind != "loss" and way == "up":
            self._hear(message[0], message[1], False)
        elif kind != "loss":
            self._obey(node, message)

    def fair_round(self) -> "GangWorld":
        """The world after everything that can happen without faults has."""
        world = self.copied()
        for node in world.nodes:
            if node.dead and node.allocation not in world.over:
                node.succeed(float(world.time))
            elif world.must_reconnect(node):
                world.move_one("reconnect", node, ())
        for _ in range(200):
            busy = False
            for number in range(len(world.nodes)):
                busy |= world._fair_step(number)
            if world.driver:
                world._hear_driver()
            elif not busy:
                break
        world.move_all("short")
        return world

    def _fair_step(self, number: int) -> bool:
        node = self.nodes[number]
        moves: list[Move] = [("deliver", number, way) for way in ("up", "down") if getattr(node, way)]
        if not node.dead:
            moves += [("end-parts", number, key) for key in node.ending[:1]]
            moves += [("finish", number)] if node.root is not None else []
        for move in moves:
            self.move_one(move[0], node, move)
        return bool(moves)

    # -- comparing

    def fingerprint(self) -> str:
        """A text that is equal for worlds with equal futures."""
        state = self.core.state
        batches = [(*batch_print(batch), batch.closing, batch.broken) for batch in state.batches.values()]
        known = [(*runner_print(runner), list(runner.parts)) for runner in state.runners.values()]
        contacts = [
            (*contact_print(contact), contact.confirmed, sorted(contact.strange))
            for contact in state.soft.contacts.values()
        ]
        allocations = [(a.id, a.state) for a in state.allocations.values()]
        nodes = [node.fingerprint() for node in self.nodes]
        soft = (list(state.soft.sent), list(state.soft.unsent), list(state.soft.ending), self.driver, sorted(self.over))
        core = (self.core.last_tick, state.soft.planning.wanted)
        executed = sorted(self.executed)
        return repr((self.time, self.budgets, batches, known, contacts, allocations, nodes, soft, executed, core))

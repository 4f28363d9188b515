"""The shell around the core, as manager/service is: drain, step, schedule, commit, and only then act and answer."""

from typing import TYPE_CHECKING

import msgspec

from rota.core.effects import Ack, Allocate, Effect, Hold, Lease, Order, Welcome
from rota.core.invariants import check
from rota.core.snapshot import durable_view
from rota.core.state import Settings
from rota.core.step import Core
from rota.core.stimuli import At, Disconnected, Stimulus, Tick
from rota.core.turn import PUT_OFF_S, Done, Turn
from rota.model.errors import NoSpaceError
from rota.sim.disk import Disk
from rota.sim.messages import Message, message_of, stimulus_of
from rota.sim.network import Connection
from rota.wire.messages import decode_greeting, decode_runner

if TYPE_CHECKING:
    from rota.sim.world import World

__all__ = ["Shell"]

_NOW = At(0.0, 0.0)
_json = msgspec.json.Encoder().encode


class Shell:
    """A manager that can be killed at any moment."""

    def __init__(self, world: "World", settings: Settings) -> None:
        self.world = world
        self.settings = settings
        self.disk = Disk()
        self.life = 0
        self.up = False
        self.frozen_until = 0.0
        self.slow_until = 0.0
        self.connections: list[Connection] = []
        self.core = Core(settings)
        self.turns = 0
        self._clear()

    def _clear(self) -> None:
        self._inbox: list[tuple[Stimulus, Done | None]] = []
        self._turn: Turn | None = None
        """The turn that is being committed."""
        self._waking = self._owes_pass = False
        self._at = _NOW
        """The moment of the last turn."""
        self._tick_due = 0.0
        self._tick_number = 0
        self._greeted: dict[str, Connection] = {}
        self._sessions: dict[tuple[str, int], Connection] = {}
        self._latest: dict[str, Connection] = {}
        self._specs: dict[tuple[str, int], dict[str, int]] = {}
        self._leases: dict[tuple[str, int], int] = {}

    # -- life and death

    def start(self) -> None:
        """Load what is durable, and begin."""
        if self.up:
            return
        world = self.world
        self.life += 1
        self.up = True
        self._clear()
        state = self.disk.load(self.settings, world.rng.getrandbits(63))
        if durable_view(state) != durable_view(self.disk.fold(self.settings, 1)):
            world.witness.problems.append("P9: the checkpoint with its tail is not the fold of the log")
        check(state)
        self.core = Core(self.settings, state=state)
        at = world.clock.at(world.now)
        world.say("manager", f"life {self.life}, {state.seq} entries")
        self._perform(self.core.restart(at))
        for site in world.cluster.sites.values():
            self.post(site.seen(world.linger_s))
        self.post(Tick(at=_NOW))

    def crash(self, kind: str, down_s: float) -> None:
        """Die now, and be started again later. What was being committed may have reached the disk or not."""
        if not self.up:
            return
        world = self.world
        world.say("manager", f"dies: {kind}")
        turn = self._turn
        if turn is not None and world.rng.random() < 0.5:
            self._commit(turn)
            turn = None
        if turn is None and self.core.state.seq == len(self.disk.log):
            restored = self.disk.load(self.settings, 1)
            if durable_view(restored) != durable_view(self.core.state):
                world.witness.problems.append("P9: what was restored is not what was lost")
        self.up = False
        self._drop_connections()
        world.after(down_s, self.start)

    def _reload(self) -> None:
        """Forget what is in memory, which is not true as the store could not be written; and answer nobody."""
        self.world.say("manager", "no space: reloads")
        self.up = False
        self._drop_connections()
        self.start()

    def _drop_connections(self) -> None:
        rng = self.world.rng
        for connection in self.connections:
            connection.manager_open = False
            self.world.after(rng.choice((0.001, 0.1, 1.0)) * rng.random(), connection.close_runner_end)
        self.connections = []

    # -- what arrives

    def post(self, stimulus: Stimulus, done: Done | None = None) -> bool:
        """Give the manager a stimulus. False if it is not up."""
        if not self.up:
            return False
        self._inbox.append((stimulus, done))
        self._wake()
        return True

    def receive(self, connection: Connection, message: Message) -> None:
        """A runner's message arrives."""
        if not self.up or connection.life != self.life:
            return
        if not connection.manager_open and not self.world.faults.strikes("stale"):
            return
        runner = connection.runner.id
        kind = message["t"]
        if self.world.rng.random() < 0.05:
            (decode_greeting if kind == "greet" else decode_runner)(_json(message))
        if kind == "greet":
            connection.connect = message["connect"]
            newest = self._greeted.get(runner)
            if newest is None or newest.connect < connection.connect:
                self._greeted[runner] = connection
        self.post(stimulus_of(message, runner, _NOW, connection.challenged))

    def disconnected(self, connection: Connection) -> None:
        """A runner's connection is gone."""
        if self.up and connection.life == self.life:
            if connection in self.connections:
                self.connections.remove(connection)
            if connection.session:
                self.post(Disconnected(at=_NOW, runner=connection.runner.id, session=connection.session))

    # -- the loop

    def _wake(self) -> None:
        if not self._waking and self._turn is None:
            self._waking = True
            self.world.when(max(self.world.now + 0.0001, self.frozen_until), self._drain, self.life)

    def freeze(self, seconds: float) -> None:
        """The manager is suspended."""
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)

    def _drain(self, life: int) -> None:
        world = self.world
        if life != self.life or not self.up:
            return
        if self.frozen_until > world.now:
            world.when(self.frozen_until, self._drain, life)
            return
        self._waking = False
        self.turns += 1
        inbox, self._inbox = self._inbox, []
        self._at = at = world.clock.at(world.now)
        for stimulus, _ in inbox:
            stimulus.at = at
            if world.tracing and not isinstance(stimulus, Tick):
                world.say("stimulus", stimulus)
        turn = Turn(self.core)
        turn.take(inbox)
        self._owes_pass = turn.puts_off(self._owes_pass)
        if not self._owes_pass:
            turn.schedule(at)
        if self.turns % world.check_every == 0:
            check(self.core.state)
        if turn.entries and world.faults.strikes("crash-before-commit"):
            self.crash("before commit", world.rng.uniform(0.1, 5.0))
            return
        if turn.entries or turn.results or turn.effects or turn.answers:
            self._turn = turn
            delay = 0.001 if self.slow_until < world.now else world.rng.uniform(0.1, 3.0)
            world.after(delay, self._committed, life, turn)
        else:
            self._next_tick()

    def _commit(self, turn: Turn) -> None:
        self.disk.commit(turn.entries, turn.results, self.world.clock.at(self.world.now).wall)
        self.world.durable(turn.entries, self._at)

    def _committed(self, life: int, turn: Turn) -> None:
        world = self.world
        if life != self.life or not self.up:
            return
        if self.frozen_until > world.now:
            world.when(self.frozen_until, self._committed, life, turn)
            return
        if turn.entries:
            self.disk.full = world.faults.strikes("no-space")
            try:
                self._commit(turn)
            except NoSpaceError:
                self.disk.full = False
                self._reload()
                return
        self._turn = None
        if turn.entries and world.faults.strikes("crash-after-commit"):
            self.crash("after commit", world.rng.uniform(0.1, 5.0))
            return
        if turn.effects and world.faults.strikes("crash-in-effects"):
            self._perform(turn.effects[: world.rng.randrange(len(turn.effects))])
            self.crash("in effects", world.rng.uniform(0.1, 5.0))
            return
        self._perform(turn.effects)
        turn.answer()
        if turn.entries and world.rng.random() < world.checkpoint_chance:
            self.disk.checkpoint(self.core.state)
        if self._inbox:
            self._wake()
        elif self._owes_pass:
            world.after(PUT_OFF_S, self._pass_now, life)
        self._next_tick()

    def _pass_now(self, life: int) -> None:
        if life == self.life and self.up and self._owes_pass:
            self._wake()

    def _next_tick(self) -> None:
        world = self.world
        due = max(world.clock.true_time(self.core.next_deadline(world.clock.at(world.now))), world.now + 0.001)
        if self._tick_due <= world.now or due < self._tick_due - 0.0005:
            self._tick_due = due
            self._tick_number += 1
            world.when(due, self._tick, self.life, self._tick_number)

    def _tick(self, life: int, number: int) -> None:
        if life == self.life and self.up and number == self._tick_number:
            self._inbox.insert(self.world.rng.choice((0, len(self._inbox))), (Tick(at=_NOW), None))
            self._wake()

    # -- effects

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Allocate):
                self.world.say("allocate", effect)
                self.world.cluster.perform(effect.what, effect.id, effect.site, effect.tag, effect.ids)
                continue
            connection = self._welcomed(effect) if isinstance(effect, Welcome) else self._connection(effect)
            if connection is not None and connection.manager_open:
                named = self._named(effect) if isinstance(effect, Lease) else None
                connection.to_runner(message_of(effect, self.core.state, connection.connect, named))
                if isinstance(effect, Order) and effect.what == "again":
                    connection.manager_open = False
                    self.world.after(connection.latency, connection.close_runner_end)

    def _connection(self, effect: Lease | Hold | Order | Ack) -> Connection | None:
        if isinstance(effect, Ack):
            return self._latest.get(effect.runner) or self._greeted.get(effect.runner)
        if isinstance(effect, Order) and effect.what in ("expired", "again"):
            return self._greeted.get(effect.runner)
        return self._sessions.get((effect.runner, effect.session))

    def _welcomed(self, effect: Welcome) -> Connection | None:
        """The connection of a new session; None if a later one has greeted."""
        connection = self._greeted.get(effect.runner)
        if connection is None or connection.connect != effect.connect:
            return None
        connection.session = effect.session
        self._sessions[effect.runner, effect.session] = connection
        self._latest[effect.runner] = connection
        if not connection.manager_open:
            self.post(Disconnected(at=_NOW, runner=effect.runner, session=effect.session))
        return connection

    def _named(self, effect: Lease) -> dict[str, int]:
        """The specs that the session of a lease has."""
        session = (effect.runner, effect.session)
        if effect.n <= self._leases.get(session, 0):
            # A repeat names all specs, and so does the lease after it: the one that first named them may be lost, and
            # of a repeat of what it has a runner takes nothing.
            self._specs[session] = {}
            return {}
        self._leases[session] = effect.n
        return self._specs.setdefault(session, {})

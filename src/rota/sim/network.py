"""Connections between runners and the manager, with everything that can go wrong on the way."""

from typing import TYPE_CHECKING

from rota.sim.messages import Message

if TYPE_CHECKING:
    from rota.sim.node import SimRunner
    from rota.sim.world import World

__all__ = ["Connection", "Network"]

_UP, _DOWN = "up", "down"


class Connection:
    """One connection of one runner to one life of the manager.

    Messages keep their order unless a fault says otherwise.
    """

    def __init__(self, world: "World", runner: "SimRunner", life: int, latency: float) -> None:
        self.world = world
        self.runner = runner
        self.life = life
        self.latency = latency
        self.challenged = world.clock.at(world.now).mono
        """When the manager knew of it, on its clock."""
        self.connect = 0
        self.session = 0
        self.manager_open = True
        self.runner_open = True
        self._last = {_UP: 0.0, _DOWN: 0.0}

    def to_manager(self, message: Message) -> None:
        """Send a runner's message."""
        if not self.manager_open:
            # the manager's end is gone: this is answered by a reset
            self.world.after(self.latency, self.close_runner_end)
            return
        self._send(_UP, message)

    def to_runner(self, message: Message) -> None:
        """Send a manager's message."""
        self._send(_DOWN, message)

    def _send(self, way: str, message: Message) -> None:
        world, faults = self.world, self.world.faults
        if faults.strikes("loss"):
            world.say("lost", way, self.runner.id, message)
            return
        when = world.now + self.latency * (0.5 + world.rng.random())
        if faults.strikes("delay"):
            when += world.rng.choice((0.1, 1.0, 10.0, 40.0)) * world.rng.random()
        blocked = world.network.blocked(self.runner.id, way)
        if blocked is not None:
            until, keeps = blocked
            if not keeps:
                return
            when = max(when, until + self.latency)
        if not faults.strikes("reorder"):
            when = max(when, self._last[way])
            self._last[way] = when
        self._arrive(way, when, message)
        if faults.strikes("duplicate"):
            self._arrive(way, when + world.rng.choice((0.0, 0.01, 3.0, 20.0)) * world.rng.random(), message)

    def _arrive(self, way: str, when: float, message: Message) -> None:
        if way == _UP:
            self.world.when(when, self.world.shell.receive, self, message)
        else:
            self.world.when(when, self.runner.receive, self, message)

    def close_runner_end(self) -> None:
        """The runner sees the end of the connection."""
        if self.runner_open:
            self.runner_open = False
            self.runner.disconnected(self)

    def close_manager_end(self) -> None:
        """The manager sees the end of the connection."""
        if self.manager_open:
            self.manager_open = False
            self.world.shell.disconnected(self)

    def cut(self, both: bool = True) -> None:
        """Break the connection.

        Each side learns of it in its own time; or (half open) at most the manager does, until the runner writes.
        """
        rng = self.world.rng
        if both or rng.random() < 0.5:
            self.world.after(rng.choice((0.0, 0.01, 1.0)) * rng.random(), self.close_manager_end)
        else:
            self.manager_open = False  # silently
        if both:
            self.world.after(rng.choice((0.0, 0.01, 1.0)) * rng.random(), self.close_runner_end)


class Network:
    """Which ways are blocked, and until when."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self._blocked: dict[tuple[str, str], tuple[float, bool]] = {}

    def block(self, runner_id: str, ways: tuple[str, ...], until: float, keeps: bool) -> None:
        """Let nothing pass until a time; what is sent meanwhile is kept (as TCP does) or lost."""
        for way in ways:
            self._blocked[runner_id, way] = (until, keeps)

    def blocked(self, runner_id: str, way: str) -> tuple[float, bool] | None:
        """(until, kept) if this way is blocked now."""
        block = self._blocked.get((runner_id, way))
        return block if block is not None and block[0] > self.world.now else None

    def heal(self) -> None:
        """Let everything pass."""
        self._blocked.clear()

    def open(self, runner: "SimRunner") -> Connection | None:
        """Connect a runner to the manager; None if nobody answers."""
        shell = self.world.shell
        if not shell.up or self.blocked(runner.id, _UP) or self.blocked(runner.id, _DOWN):
            return None
        connection = Connection(self.world, runner, shell.life, self.world.rng.choice((0.0001, 0.0005, 0.005, 0.05)))
        shell.connections.append(connection)
        return connection

"""What a decision is: the events and notes it makes, the results beside them, and the answer to the client."""

from typing import Any

from msgspec import Struct, field

from rota.core.effects import Effect
from rota.core.notes import Note
from rota.core.soft import chance_at
from rota.core.state import RunnerState, State
from rota.model.events import Event, RunnerMoved
from rota.model.job import Result
from rota.model.tables import RUNNER, move

__all__ = ["Decision"]


class Decision(Struct):
    """Facts to make durable, and the answer to give once they are."""

    events: list[Event] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    reply: dict[str, Any] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    """Effects that do not follow from an event: acknowledgements, repeats."""
    reconsider: set[int] = field(default_factory=set)
    """Batches whose WAITING jobs may have become ready."""
    notes: list[Note] = field(default_factory=list)
    """Changes of the soft state."""
    drawn: int = 0
    """How many random numbers the decision took."""

    def add(self, other: "Decision") -> None:
        """Add the events and results of another decision."""
        self.events.extend(other.events)
        self.results.extend(other.results)

    def drain(self, runner: RunnerState, why: str | None) -> None:
        """Drain a runner that can be, once: it may be idle, on a bad host, and stopped from outside at one moment."""
        moved = any(isinstance(event, RunnerMoved) and event.runner == runner.id for event in self.events)
        if not moved and move(RUNNER, runner.state, "drain") is not None:
            self.events.append(RunnerMoved(runner.id, "drain", why))

    def chance(self, state: State) -> float:
        """The next number in [0, 1) of the core's own generator."""
        self.drawn += 1
        return chance_at(state.soft.chance, self.drawn)

"""What a decision is: the events and notes it makes, the results beside them, and the answer to whoever asked."""

from typing import Any

from msgspec import Struct, field

from rota.core.effects import Effect
from rota.core.notes import Note
from rota.core.soft import chance_at
from rota.core.state import State
from rota.model.events import Event
from rota.model.job import Result

__all__ = ["Decision"]


class Decision(Struct):
    """Facts to make durable, and the answer to give once they are."""

    events: list[Event] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    reply: dict[str, Any] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    """Only what does not follow from an event: acknowledgements, repeats."""
    reconsider: set[int] = field(default_factory=set)
    """Batches whose WAITING jobs may have become ready."""
    notes: list[Note] = field(default_factory=list)
    """What changes about the soft state."""
    drawn: int = 0
    """How often chance was asked."""

    def add(self, more: "Decision") -> None:
        """What else comes of it: events and results."""
        self.events.extend(more.events)
        self.results.extend(more.results)

    def chance(self, state: State) -> float:
        """The next number in [0, 1) of the core's own generator."""
        self.drawn += 1
        return chance_at(state.soft.chance, self.drawn)

"""What a decision is: the events it makes, the results beside them, and the answer to whoever asked."""

from typing import Any

from msgspec import Struct, field

from rota.core.effects import Effect
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

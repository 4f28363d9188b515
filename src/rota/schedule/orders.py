"""Orders: which shape is looked at first."""

from collections.abc import Callable, Sequence

from rota.schedule.view import Want

__all__ = ["BUILT_IN"]

Order = Callable[[Sequence[Want]], list[Want]]


def priority(wants: Sequence[Want]) -> list[Want]:
    """Highest priority first, then what was submitted first."""
    return sorted(wants, key=lambda want: (-want.priority, want.first, want.shape_id))


BUILT_IN: dict[str, Order] = {"priority": priority}

"""Orders: whose jobs go first. One key of the policy, used wherever jobs are put into an order."""

from collections.abc import Callable
from typing import Any, NamedTuple

from rota.schedule.view import View, Want

__all__ = ["BUILT_IN", "Order"]


class Order(NamedTuple):
    """A key function: the want with the least key goes first."""

    key: Callable[[Want, View], tuple[Any, ...]]
    reads: tuple[str, ...] = ()
    """The facts that it looks at: wants are put into order again once a key of them changes."""
    unit: str = "shape"
    """What is ordered as a whole: `shape` (within it, what came first), or `by`: each submitter's jobs of a shape."""


def priority(want: Want, view: View) -> tuple[Any, ...]:
    """Highest priority first, then what was submitted first."""
    return (-want.priority, want.first, want.shape_id)


BUILT_IN: dict[str, Order] = {"priority": Order(priority)}
"""Name → order; those of others are entered here too."""

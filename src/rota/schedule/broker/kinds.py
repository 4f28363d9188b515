"""The registry of what vectors ask: kind → a function from a case to what we say. `rota broker verify` goes by it."""

from collections.abc import Callable, Mapping
from typing import Any

from rota.schedule.broker.config import Profile

__all__ = ["KINDS", "Ask", "kind"]

Case = Mapping[str, Any]
"""A case of a file of vectors, with `change` and `only` done: its `values`, `text`, `ask`, and what `input` names."""
Ask = Callable[[Case, Profile], Mapping[str, Any]]
"""Case, profile → what we say, in the form of an expectation. UsageError: the case cannot be understood."""

KINDS: dict[str, Ask] = {}
"""Kind → who answers."""


def kind(name: str) -> Callable[[Ask], Ask]:
    """Enter a function as the one that answers cases of a kind."""

    def enter(ask: Ask) -> Ask:
        KINDS[name] = ask
        return ask

    return enter

"""Selectors: which jobs a command means.

`7` a batch, `7.12` a job, `7.1-99` a range, `@align` a name, `:failed` a state. Words of an equal kind add, different
kinds intersect: `7 8 :failed` is what failed in 7 or 8. A name may stand without its `@` where it can be nothing else.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from rota.model.errors import UsageError

__all__ = ["Selector", "parse_selector"]

STATES = (
    "WAITING", "PENDING", "HOLDING", "STARTING", "RUNNING", "MISSING", "KILLING",
    "COMPLETED", "FAILED", "ABORTED", "OMITTED",
)  # fmt: skip
_GROUPS = {
    "live": STATES[:7],
    "settled": STATES[7:],
    "unfinished": STATES[:7],
    "done": ("COMPLETED",),
    "queued": ("WAITING", "PENDING", "HOLDING"),
    "active": ("STARTING", "RUNNING", "MISSING", "KILLING"),
    "unsuccessful": ("FAILED", "ABORTED", "OMITTED"),
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*")
_WORD = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,18})(?:-([0-9]{1,18}))?)?")


class Selector(Struct, frozen=True):
    """Parsed words. Empty fields do not restrict."""

    spans: tuple[tuple[int, int | None, int | None], ...] = ()
    """(batch, first index, last index); None: the whole batch."""
    names: tuple[str, ...] = ()
    states: frozenset[str] = frozenset()

    @property
    def empty(self) -> bool:
        """True if nothing restricts it: it selects every job."""
        return not self.spans and not self.names and not self.states


def parse_selector(words: Sequence[str]) -> Selector:
    """A Selector from command-line words."""
    spans: list[tuple[int, int | None, int | None]] = []
    names: list[str] = []
    states: set[str] = set()
    for word in words:
        if word.startswith("@") and len(word) > 1:
            names.append(word[1:])
        elif word.startswith(":"):
            states.update(_states(word))
        else:
            match = _WORD.fullmatch(word)
            if match is None:
                names.append(_bare_name(word))
                continue
            first = int(match[2]) if match[2] else None
            last = int(match[3]) if match[3] else first
            if first is not None and last is not None and last < first:
                raise UsageError(f"'{word}': the range ends below where it begins")
            spans.append((int(match[1]), first, last))
    return Selector(tuple(spans), tuple(names), frozenset(states))


def _bare_name(word: str) -> str:
    """A word that can only be a name, though it has no `@`."""
    if word.lower() in _GROUPS or word.upper() in STATES:
        raise UsageError(f"'{word}' selects nothing: a state is :{word.lower()}, a name is @{word}")
    if _NAME.fullmatch(word) is None:
        choices = "a batch 7, a job 7.12, a range 7.1-99, a name @align or a state :failed"
        raise UsageError(f"'{word}' selects nothing: write {choices}")
    return word


def _states(word: str) -> Sequence[str]:
    name = word[1:].lower()
    if name in _GROUPS:
        return _GROUPS[name]
    states = [state for state in STATES if state.lower() == name]
    if not states:
        known = ", ".join(":" + state.lower() for state in STATES)
        raise UsageError(f"'{word}' is not a state: {known}, or :{', :'.join(_GROUPS)}")
    return states

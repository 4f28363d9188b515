"""Decisions: which queues a task may use, which not and why, filter by filter, and what each weight is made of."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

__all__ = ["SKIP", "USE", "Candidate", "Decision", "Skip", "Step"]

USE, SKIP = "use", "skip"


class Skip(Struct, frozen=True):
    """A check's no to a queue."""

    tag: str | None
    """The reference's tag, as `-disk`."""
    words: str
    """Why, with the numbers."""
    lasting: bool = True
    """Whether waiting does not help."""
    numbers: Mapping[str, Any] = {}
    weight: float | None = None
    """Its weight, if it had come so far."""


class Candidate(Struct, frozen=True):
    """A queue with its weight."""

    queue: str
    weight: float
    factors: tuple[tuple[str, float], ...] = ()
    """What the weight is the product of, in order."""
    inputs: Mapping[str, Any] = {}
    """What went into it: running, activated, …"""
    bootstrap: bool = False
    """Whether it is idle, and gets jobs first."""


class Step(Struct, frozen=True):
    """What one check did."""

    name: str
    before: int
    after: int

    @property
    def cut(self) -> int:
        """Percent that were removed, rounded up."""
        return -(-100 * (self.before - self.after) // self.before) if self.before else 0


class Decision(Struct, frozen=True):
    """The outcome of one brokerage."""

    flow: str
    profile: str
    status: str
    """SUCCEEDED, FAILED (tried again after `pending_minutes`)."""
    reason: str
    """Why it failed; empty if it did not."""
    initial: int
    """How many queues there were."""
    steps: tuple[Step, ...]
    skipped: Mapping[str, Skip]
    candidates: tuple[Candidate, ...]
    """The best ones, best first."""
    pending_minutes: float = 0
    throttled: bool = False
    locality: bool | None = None
    """Whether input had to be local, in the pass that counted (analysis)."""
    warnings: tuple[str, ...] = ()
    by: Mapping[str, str] = {}
    """Queue that was skipped → the check that did."""

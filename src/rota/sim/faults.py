"""Swarm: each seed draws which kinds of fault it has, and how strong each is. In the last phase there are none."""

from random import Random

__all__ = ["KINDS", "OTHERS", "TIMED", "Faults"]

TIMED: dict[str, float] = {
    "manager-crash": 3,
    "manager-reboot": 1,
    "manager-suspended": 2,
    "wall-jump": 3,
    "slow-disk": 2,
    "partition": 3,
    "partition-one-way": 3,
    "clog": 2,
    "break": 4,
    "half-open": 3,
    "runner-killed": 2,
    "runner-stopped": 3,
    "job-killed": 2,
}
"""Faults that strike at moments → how often at most (at weight 1)."""

CHANCES: dict[str, float] = {
    "crash-before-commit": 0.02,
    "crash-after-commit": 0.02,
    "crash-in-effects": 0.02,
    "no-space": 0.03,
    "loss": 0.10,
    "duplicate": 0.15,
    "reorder": 0.20,
    "delay": 0.10,
    "stale": 0.5,
    "submit-answer-lost": 0.5,
    "submit-fails": 0.3,
    "poll-fails": 0.3,
    "reply-lost": 0.3,
    "runner-dies-young": 0.2,
    "kill-ignored": 0.5,
    "kill-exits-0": 0.3,
    "out-of-memory": 0.5,
    "node-fails": 0.3,
    "requeue": 0.2,
}
"""Faults that strike an action → their chance (at weight 1)."""

KINDS = (*TIMED, *CHANCES)
OTHERS = ("old-answer", "member-killed", "black-hole", "requeued", "begins-held", "cached-listing", "earlier-end")
"""Faults with a generator of their own."""


class Faults:
    """The fault schedule of one world."""

    def __init__(self, rng: Random, calm: bool = False) -> None:
        self.rng = rng
        self.active = not calm
        share = rng.choice((0.1, 0.3, 0.5, 0.8))
        self.weights: dict[str, float] = {}
        for kind in KINDS:
            if not calm and rng.random() < share:
                self.weights[kind] = rng.choice((0.05, 0.2, 0.5, 1.0))
        self.hits: dict[str, int] = {}

    def strikes(self, kind: str) -> bool:
        """Whether a fault hits this action."""
        if not self.active:
            return False
        weight = self.weights.get(kind)
        if weight is None or self.rng.random() >= CHANCES[kind] * weight:
            return False
        self.hit(kind)
        return True

    def hit(self, kind: str) -> None:
        """Count a fault that struck."""
        self.hits[kind] = self.hits.get(kind, 0) + 1

    def moments(self, until: float) -> list[tuple[float, str]]:
        """(time, kind) of all timed faults, in order."""
        out = []
        for kind, most in TIMED.items():
            weight = self.weights.get(kind)
            if weight is not None:
                for _ in range(self.rng.randint(1, max(1, round(most * weight)))):
                    out.append((self.rng.uniform(0.0, until), kind))
        return sorted(out)

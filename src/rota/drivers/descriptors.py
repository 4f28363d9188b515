"""How many files the manager may have open: more than a login gives it, and no more for what it starts."""

import resource
from collections.abc import Callable

__all__ = ["as_before", "raise_limit"]

MOST = 65_536
_before: list[tuple[int, int]] = []


def raise_limit(most: int = MOST) -> int:
    """Raise the soft limit as far as the hard one allows; what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _before[:] = [(soft, hard)]
        return wanted
    return soft


def as_before() -> Callable[[], None] | None:
    """What a new process must do to have the limit of before: jobs inherit it, and batch systems pass it on."""
    if not _before:
        return None
    limit = _before[0]
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit)

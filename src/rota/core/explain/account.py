"""An account of a job: why it is where it is, and what that is made of."""

import math
from collections.abc import Callable

from msgspec import Struct

from rota.core.state import BatchState
from rota.model.allocation import Allocation, Waiting
from rota.model.amounts import format_duration
from rota.model.job import Result

__all__ = ["Account", "Ahead", "Blocker", "Holder", "Link", "Records", "ago", "count_words", "said_words", "wait_words"]


class Blocker(Struct, frozen=True):
    """One thing that keeps a job from starting, or from ending."""

    kind: str
    """store, manager, policy, limit, dependency, time, back-off, held, room, kept, place, site, never, runner …"""
    words: str
    lasting: bool = False
    """True if waiting does not help."""
    until: float | None = None
    """Wall-clock time at which it is over, if that is known."""
    command: str | None = None
    """What helps."""


class Link(Struct, frozen=True):
    """One step of the chain from a job to the root of what it waits for, or failed with."""

    what: str
    """A job, a batch, or a name."""
    state: str
    words: str = ""


class Ahead(Struct, frozen=True):
    """Ready jobs of a batch that get their turns before a job."""

    batch: int
    name: str
    priority: int
    jobs: int


class Holder(Struct, frozen=True):
    """Jobs of a batch that have what is short."""

    what: str
    """cores, memory, disk, gpus, a named resource, or a limit."""
    has: str
    batch: int
    name: str
    jobs: int
    example: str
    """The first of them, as in 7.12."""


class Account(Struct):
    """All that is said of a job."""

    reason: str
    """One sentence, the cause first."""
    short: str = ""
    """The same for a column."""
    blockers: list[Blocker] = []
    chain: list[Link] = []
    ahead: list[Ahead] = []
    holders: list[Holder] = []
    start: float | None = None
    """Wall-clock time by which it can start, if that is known."""
    commands: list[str] = []
    """What helps."""


class Records(Struct):
    """What the state does not hold, and whoever asks can look up."""

    last: Callable[[int, int], Result | None] = lambda batch, pos: None
    """The last attempt of a job that ended: by batch and position."""
    line: Callable[[BatchState, int], str] = lambda batch, pos: ""
    """The last line of what a job wrote to its standard error."""
    waits: Callable[[Allocation], Waiting | None] = lambda allocation: None
    """Why an allocation does not run yet, in the words of its batch system."""
    unanswered: Callable[[Allocation], str | None] = lambda allocation: None
    """That the site of an allocation does not answer."""
    trouble: str | None = None
    """Why no new work is taken: the disk is all but full."""
    stuck: bool = False
    """Whether not even what is known of accepted work can be written down, so that nothing starts."""
    down: bool = False
    """No manager is up: this is read from its store."""


def said_words(allocation: Allocation, said: Waiting) -> str:
    """Why an allocation does not run, in the words of its batch system."""
    if said.over:
        return (
            f"the cluster says of job {allocation.native_id} that it is over ({said.words}): its report is waited for"
        )
    never = ": it can never run as it was asked for, waiting does not help" if said.lasting else ""
    return f"the cluster says of job {allocation.native_id}: {said.words}{never}"


def wait_words(wait: float) -> str:
    """A time in words: seconds below two minutes, else minutes, as nobody needs the seconds of an hour."""
    seconds = max(0, math.ceil(wait))
    return f"{seconds} s" if seconds < 120 else format_duration(-(-seconds // 60) * 60)


def ago(passed: float) -> str:
    """A time that has passed in words, not rounded up."""
    seconds = max(0, int(passed))
    return f"{seconds} s" if seconds < 120 else format_duration(seconds // 60 * 60)


def count_words(count: int, what: str = "job") -> str:
    """`1 job`, `1,000 jobs`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"

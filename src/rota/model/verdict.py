"""Verdicts: the recorded reasons why jobs of a shape do not run at a place, or not now."""

from msgspec import Struct

__all__ = ["Verdict", "Wake"]


class Wake:
    """What can change a filter's mind; a parked shape is looked at again when one of its wakes happens."""

    CAPACITY = "capacity"
    """A job ended, or a place appeared."""
    STATUS = "status"
    """A place or the manager changed what it accepts."""
    LIMIT = "limit"
    """A limit was freed or changed."""
    TIME = "time"
    """The clock: a window, a back-off."""
    FACT = "fact"
    """A fact that was looked at."""


class Verdict(Struct, frozen=True, gc=False):
    """One filter's no to one shape at one location, with the numbers."""

    location: str
    filter: str
    code: str
    detail: str
    lasting: bool = False
    """True if waiting cannot help: only a change of the job or of the place can."""
    wake_on: tuple[str, ...] = ()
    level: str = "node"
    """`node`: a place that is there; `queue`: a site, or a queue of one, that could be asked for more."""

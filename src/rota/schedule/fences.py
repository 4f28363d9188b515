"""Fences around parts of policies that other packages bring: their failures become answers that name them.

A filter that raises says no to the shape that it was asked about, and why; any other part that raises, or answers with
something else than it must, and any part that does not come back, is a PluginError: the core does without it from then
on. Nothing else can tell one's own errors from theirs.
"""

from collections.abc import Callable
from math import isfinite
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from rota.model.verdict import Wake
from rota.schedule.filters import Filter, No
from rota.schedule.orders import Order
from rota.schedule.policy import PluginError
from rota.schedule.scorers import Scorer
from rota.schedule.view import View, Want

__all__ = ["TooLongError", "Watch", "fenced"]


class TooLongError(BaseException):
    """Raised into a part that does not come back. Not an Exception, which a part might catch itself."""


class Watch:
    """Whether a foreign part is being asked, for whoever has a clock: it may raise TooLongError while one is."""

    __slots__ = ("asked", "inside")

    def __init__(self) -> None:
        self.inside: tuple[str, str] | None = None
        """(kind, name) of the part that is being asked."""
        self.asked = 0
        """How many questions were asked: a new one each time."""


def fenced(kind: str, name: str, part: Any, watch: Watch) -> Any:
    """A filter, scorer or order whose failures are those of the part, not of the manager."""
    if isinstance(part, Filter):
        check = _guarded(kind, name, part.check, watch)

        def ask(shape: Any, place: Any, view: Any) -> Any:
            try:
                answer = check(shape, place, view)
            except PluginError as error:
                if error.lasting:
                    raise
                return No("plugin", str(error), False, (Wake.STATUS,))
            if answer is None or isinstance(answer, No | float):
                return answer
            wrong = f"answered {answer!r:.60}, which is neither None, a time nor a No"
            return No("plugin", str(PluginError(kind, name, wrong)), False, (Wake.STATUS,))

        # What is bound would be asked outside the fence; static answers are kept for a class, and this one may fail.
        return part._replace(name=name, check=ask, bind=None)
    if isinstance(part, Scorer):
        return part._replace(score=_checked(kind, name, _guarded(kind, name, part.score, watch), _a_score))
    if isinstance(part, Order):
        return part._replace(key=_checked(kind, name, _guarded(kind, name, part.key, watch), _a_key))
    raise TypeError(f"a {kind} is made with rota.schedule.{kind}s.{kind.capitalize()}(…), not {type(part).__name__}")


def _guarded(kind: str, name: str, ask: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    def asked(*arguments: Any) -> Any:
        outer = watch.inside
        try:
            try:
                watch.asked += 1
                watch.inside = (kind, name)
                return ask(*map(_sealed, arguments))
            finally:
                watch.inside = outer
        except KeyboardInterrupt:
            raise
        except TooLongError as late:
            raise PluginError(kind, name, str(late), lasting=True) from None
        except BaseException as error:  # SystemExit too: it is not theirs to end the manager
            words = f"raised {type(error).__name__}: {error}".replace("\n", " ")[:300]
            raise PluginError(kind, name, words) from error

    return asked


class SealedView(View, frozen=True):  # type: ignore[misc]  # msgspec allows it
    """A View in which nothing can be set."""


def _sealed(shown: Any) -> Any:
    """What a part of others is shown: it cannot change what the core itself looks at. Shapes and places are frozen."""
    if isinstance(shown, View):
        fields = msgspec.structs.asdict(shown)
        return SealedView(**{name: _read_only(value) for name, value in fields.items()})
    return replace(shown) if isinstance(shown, Want) else shown


def _read_only(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType(value)
    return tuple(value) if isinstance(value, list) else value


def _checked(kind: str, name: str, ask: Callable[..., Any], good: Callable[[Any], bool]) -> Callable[..., Any]:
    def asked(*arguments: Any) -> Any:
        answer = ask(*arguments)
        if not good(answer):
            raise PluginError(kind, name, f"answered {answer!r:.60}, which is not {good.__doc__}")
        return answer

    return asked


def _a_score(answer: Any) -> bool:
    """a number above 0"""
    return isinstance(answer, int | float) and isfinite(answer) and answer > 0


def _a_key(answer: Any) -> bool:
    """a tuple of numbers and texts"""
    return isinstance(answer, tuple) and all(isinstance(each, int | float | str) for each in answer)

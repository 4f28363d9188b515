"""Everything that a state holds, as text: equal before and after whatever must not change it."""

from array import array
from collections import deque
from typing import Any

from msgspec import Struct

from rota.core.settled import Batches
from rota.core.state import State


def whole_print(state: State) -> str:
    """The durable and the soft state."""
    return _text(state, ())


def durable_print(state: State) -> str:
    """The durable state with its indices, without the soft one, and what the scheduler keeps in the ledger."""
    return _text(state, ("soft", "changed", "_chains", "single", "_free"))


def _text(thing: Any, without: tuple[str, ...]) -> str:
    if thing is None or isinstance(thing, str | bytes | bytearray | int | float | array):
        return repr(thing)
    if isinstance(thing, Batches):  # put away or not, a batch says the same
        thing = dict(thing.items())
    if isinstance(thing, dict):
        return "{" + ",".join(f"{_text(key, without)}:{_text(value, without)}" for key, value in thing.items()) + "}"
    if isinstance(thing, set | frozenset):
        return "{" + ",".join(sorted(_text(each, without) for each in thing)) + "}"
    if isinstance(thing, list | tuple | deque):
        return "[" + ",".join(_text(each, without) for each in thing) + "]"
    if isinstance(thing, Struct):
        names = thing.__struct_fields__
    else:
        names = getattr(type(thing), "__slots__", None) or tuple(vars(thing))
    parts = (f"{name}={_text(getattr(thing, name), without)}" for name in names if name not in without)
    return f"{type(thing).__name__}({','.join(parts)})"

"""What something costs, in lines of rota that are run: the same on every machine and beside any load.

A cost that grows where it should not is a loop, and each of its rounds is a line. What happens inside one call of C (a
slice of a million bytes, a commit) is not seen: that is for `bench/`, which has a clock.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import rota

ROTA = f"{Path(rota.__file__).parent}/"
Steps = Callable[[], int]
"""How many lines were run so far: it stands in for a clock."""


@contextmanager
def counting() -> Iterator[Steps]:
    """Count what this thread runs inside; whoever traced before goes on afterwards."""
    lines = 0

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        return count if frame.f_code.co_filename.startswith(ROTA) else None

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        if event == "line":  # also at each round of a loop that is written in one line
            lines += 1
        return count

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield lambda: lines
    finally:
        sys.settrace(before)


def lines_of(call: Callable[[], Any]) -> int:
    """How many lines one call runs."""
    with counting() as steps:
        call()
        return steps()

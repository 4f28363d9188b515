"""The manager's log: standard error, which is `manager.log`. What repeats is counted, and the file stays small."""

import logging
import os
import sys
import time
from collections.abc import Callable

__all__ = ["set_up"]

MOST_BYTES = 8 << 20
"""Then the file is renamed to `.1`, and the one before it is gone."""
EACH = 30
"""Lines of one kind that are written in each minute; of the others only the number."""
KINDS = 1_000


class Sparing(logging.Filter):
    """Lets through a bounded number of each kind of line, and says how many it kept back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        kind, now = (record.pathname, record.lineno, str(record.msg)[:200]), self._clock()
        since, count = self._seen.pop(kind, (now, 0))
        if now - since >= 60.0:
            if count > EACH:
                record.msg, record.args = f"{record.getMessage()} (and {count - EACH} more like it before)", ()
            since, count = now, 0
        self._seen[kind] = (since, count + 1)
        if len(self._seen) > KINDS:
            del self._seen[next(iter(self._seen))]
        return count < EACH


class File(logging.StreamHandler):  # type: ignore[type-arg]
    """Standard error; if that is the file at `path`, it is replaced when it has grown large."""

    def __init__(self, path: str, most: int = MOST_BYTES) -> None:
        super().__init__(sys.stderr)
        self._path = path
        self._most = most

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        super().emit(record)
        try:
            if os.fstat(2).st_size > self._most and os.path.samestat(os.fstat(2), os.lstat(self._path)):
                os.rename(self._path, self._path + ".1")
                fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                os.dup2(fd, 2)
                os.dup2(fd, 1)
                os.close(fd)
        except OSError:
            pass  # a terminal or a pipe, or no space: it goes on where it is


def set_up(path: str) -> None:
    """Make standard error the log of everything."""
    handler = File(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(Sparing())
    logging.basicConfig(level=logging.INFO, handlers=[handler])

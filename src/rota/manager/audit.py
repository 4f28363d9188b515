"""The record of who did what and what was refused: lines of JSON in `audit.jsonl`, in two files of bounded size.

Beside the queue, not in it: it must be readable when the queue is not, and a flood of refusals must cost no commit.
"""

import logging
import os
import time
from collections.abc import Callable
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

__all__ = ["Audit", "target_of"]

log = logging.getLogger("rota")

MOST_BYTES = 4 << 20
"""Then the file is renamed to `.1`, and the one before it is gone."""
FEW = 20
"""Refusals and greetings of one token, or of all strangers, that are written a minute; of the others the number."""


class Audit:
    """Writes the record of one manager."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._minute = 0
        self._counts: dict[str, int] = {}
        """Token ('': none) → what it was refused, and how often it has greeted, in this minute."""
        self._broken = False
        self._fd = -1
        self._place = (0, 0)
        """Device and number of the file that is open, which may be renamed or removed by others."""

    def note(self, by: str, address: str, action: str, target: str, outcome: str) -> None:
        """Write down one thing: `outcome` is ok, or why not."""
        self._write(
            f'{{"at": {self._clock():.3f}, "by": {quoted(by)}, "address": {quoted(address)}, '
            f'"action": {quoted(action)}, "target": {quoted(target[:200])}, "outcome": {quoted(outcome[:300])}}}\n'
        )

    def few(self, token: str, by: str, address: str, action: str, target: str, outcome: str) -> None:
        """Write down what may be said only so often: else who repeats it would push out all that is written."""
        minute = int(self._clock() // 60)
        if minute != self._minute:
            counts, self._minute, self._counts = self._counts, minute, {}
            for name, count in counts.items():
                if count > FEW:
                    of = f" of token {name}" if name else ""
                    self.note("manager", "", "greet", f"{count - FEW} more{of}", "refused; not written one by one")
        self._counts[token] = self._counts.get(token, 0) + 1
        if self._counts[token] <= FEW:
            self.note(by, address, action, target, outcome)

    def close(self) -> None:
        """Close the file; whoever notes more opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, line: str) -> None:
        try:
            size = self._open()
            if size + len(line) > MOST_BYTES:
                os.rename(self._path, self._path + ".1")
                self._open()
            os.write(self._fd, line.encode())
            self._broken = False
        except OSError as error:
            self.close()
            if not self._broken:
                log.warning("%s cannot be written: %s", self._path, error)
            self._broken = True

    def _open(self) -> int:
        """Have the file open that the path leads to now; its size."""
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            found = None
        if self._fd < 0 or found is None or (found.st_dev, found.st_ino) != self._place:
            self.close()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
            found = os.fstat(self._fd)
            self._place = (found.st_dev, found.st_ino)
        return found.st_size


def target_of(op: str, args: Any, result: dict[str, Any] | None) -> str:
    """What a request is about, in a few words."""
    if result is not None and result.get("batch") is not None:
        return f"batch {result['batch']}"
    words = list(getattr(args, "sel", ()))
    if getattr(args, "all", False):
        words.append("--all")
    if op == "limit":
        words += [f"{name}:{rule}" for name, rule in args.set.items()]
    words += [str(word) for name in ("name", "holder", "path") if (word := getattr(args, name, None))]
    return " ".join(words)

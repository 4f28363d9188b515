"""The record of who did what and what was refused: lines of JSON in `audit.jsonl`, in two files of bounded size.

Beside the queue, not in it: it must be readable when the queue is not, and a flood of refusals must cost no commit.
"""

import json
import logging
import os
import time
from collections.abc import Callable
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

    def note(self, by: str, address: str, action: str, target: str, outcome: str) -> None:
        """Write down one thing: `outcome` is ok, or why not."""
        row = {
            "at": round(self._clock(), 3),
            "by": by,
            "address": address,
            "action": action,
            "target": target[:200],
            "outcome": outcome[:300],
        }
        self._write(json.dumps(row).encode() + b"\n")

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

    def _write(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(self._path, flags, 0o600)
            try:
                if os.fstat(fd).st_size + len(line) > MOST_BYTES:
                    os.rename(self._path, self._path + ".1")
                    os.close(fd)
                    fd = os.open(self._path, flags, 0o600)
                os.write(fd, line)
            finally:
                os.close(fd)
            self._broken = False
        except OSError as error:
            if not self._broken:
                log.warning("%s cannot be written: %s", self._path, error)
            self._broken = True


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

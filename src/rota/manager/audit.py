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
REFUSALS = 20
"""Refusals of greetings that are written a minute; of the others only the number."""


class Audit:
    """Writes the record of one manager."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._minute = 0
        self._refusals = 0
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

    def refuse(self, by: str, address: str, action: str, target: str, outcome: str) -> None:
        """Write down what somebody unknown was refused, which may be said only so often."""
        minute = int(self._clock() // 60)
        if minute != self._minute:
            left_out = self._refusals - REFUSALS
            self._minute, self._refusals = minute, 0
            if left_out > 0:
                self.note("manager", "", "greet", f"{left_out} more", "refused; not written one by one")
        self._refusals += 1
        if self._refusals <= REFUSALS:
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

"""Leftovers: how much the directories of a job hold when it has ended."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from rota.placement.errors import PlacementError

__all__ = ["measured"]

MIB = 1 << 20


async def measured(connector: Any, location: Any, paths: Sequence[str]) -> dict[str, float]:
    """MiB below each of these paths of a location, without following links; what is not there is nothing."""
    if location.local:
        sizes = await asyncio.to_thread(lambda: [_below(path) for path in paths])
        return {path: size / MIB for path, size in zip(paths, sizes, strict=True)}
    out: dict[str, float] = {}
    for path in paths:
        answer = await connector.run(location=location, command=["du", "-sk", path], capture_output=True)
        text, status = answer if answer is not None else ("", 1)
        word = text.split(maxsplit=1)[0] if text.strip() else ""
        if status or not word.isdigit():
            raise PlacementError(f"du -sk {path} at {location} answered {text.strip()[:200]!r} (exit {status})")
        out[path] = int(word) / 1024
    return out


def _below(path: str) -> int:
    if os.path.isfile(path) and not os.path.islink(path):
        return os.lstat(path).st_size
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                found = os.lstat(os.path.join(directory, name))
            except OSError:  # it went away meanwhile
                continue
            total += 0 if os.path.islink(os.path.join(directory, name)) else found.st_size
    return total

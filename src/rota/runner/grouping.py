"""Groups of cores that are near each other (memory nodes, sockets): how many of which group a job gets."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Sequence

from rota.runner.host import read_text

__all__ = ["best", "core_groups", "numbers_of", "part"]

NODES = "/sys/devices/system/node"
PACKAGES = "/sys/devices/system/cpu"


def part(how: str, free: Sequence[int], count: int) -> List[int]:
    """So many cores, of which that many are free, as a number for each group.

    `cores` and `compact`: as few groups as possible, in even parts; if one will do, the fullest. `tight`: as few, the
    largest filled first. `scatter`: as many as possible, in even parts.
    """
    if how in ("cores", "compact") and max(free) >= count:
        one = min((at for at in range(len(free)) if free[at] >= count), key=lambda at: free[at])
        return [count if at == one else 0 for at in range(len(free))]
    order = sorted(range(len(free)), key=lambda at: -free[at])
    if how == "scatter":
        return _even(free, [at for at in order if free[at]][:count], count)
    used: List[int] = []
    while sum(free[at] for at in used) < count:
        used.append(order[len(used)])
    return _even(free, used, count) if how == "compact" else _filled(free, used, count)


def best(how: str, sizes: Sequence[int], count: int) -> int:
    """In how many groups a job would be if all cores were free."""
    return sum(map(bool, part(how, sizes, count)))


def _filled(free: Sequence[int], used: Sequence[int], count: int) -> List[int]:
    found = [0] * len(free)
    for at in used:
        found[at] = min(free[at], count)
        count -= found[at]
    return found


def _even(free: Sequence[int], used: Sequence[int], count: int) -> List[int]:
    """Even parts; a group with less has all of it, and the others more."""
    found = [0] * len(free)
    for done, at in enumerate(sorted(used, key=lambda at: free[at])):
        found[at] = min(free[at], count // (len(used) - done))
        count -= found[at]
    return found


# ---- this node -------------------------------------------------------------------------------------------------------


def numbers_of(text: str) -> List[int]:
    """Read `0,2-4`."""
    found: List[int] = []
    for word in text.strip().split(","):
        first, _, last = word.partition("-")
        if first.isdigit():
            found.extend(range(int(first), int(last or first) + 1))
    return found


def core_groups(nodes: str = NODES, packages: str = PACKAGES) -> List[List[int]]:
    """The cores of each memory node; if there is but one, of each socket."""
    found = [numbers_of(read_text("%s/%s/cpulist" % (nodes, name))) for name in _numbered(nodes, "node")]
    found = [group for group in found if group]  # one without cores is memory only
    return found if len(found) > 1 else _sockets(packages) or found


def _sockets(packages: str) -> List[List[int]]:
    sockets: Dict[str, List[int]] = {}
    for name in _numbered(packages, "cpu"):
        word = read_text("%s/%s/topology/physical_package_id" % (packages, name)).strip()
        if word:  # none: that core is off
            sockets.setdefault(word, []).append(int(name[3:]))
    return [sockets[word] for word in sorted(sockets, key=lambda word: (len(word), word))]


def _numbered(directory: str, word: str) -> List[str]:
    try:
        names = [name for name in os.listdir(directory) if re.fullmatch(word + r"\d+", name)]
    except OSError:
        return []
    return sorted(names, key=lambda name: int(name[len(word) :]))

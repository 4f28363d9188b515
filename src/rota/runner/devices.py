"""The cores and gpus of this node by their numbers: which of them a job has."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Callable, Collection, Dict, FrozenSet, Iterator, List, Mapping, Optional, Tuple

from rota.runner.grouping import best, core_groups, numbers_of, part

if TYPE_CHECKING:
    from rota.runner.lease import Key

__all__ = ["Bindings", "Cores", "Gpus", "numbers_of", "text_of"]

LOOK_S = 5.0
DEVICE = re.compile(r"\d+|(?:GPU|MIG)-[0-9a-fA-F/-]+")
TOLD = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_JOB_GPUS")


def text_of(numbers: List[int]) -> str:
    """Write numbers as `0,2-4`."""
    parts: List[List[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else "%d-%d" % (part[0], part[-1]) for part in parts)


class Cores:
    """The cores that this process may use, in groups that are near each other, and who has which."""

    def __init__(self, numbers: Optional[FrozenSet[int]] = None, groups: Optional[List[List[int]]] = None) -> None:
        self.all = frozenset(os.sched_getaffinity(0)) if numbers is None else numbers
        known = core_groups() if groups is None else groups
        ours = [[number for number in group if number in self.all] for group in known]
        rest = sorted(self.all - {number for group in ours for number in group})
        self._groups = [group for group in [*ours, rest] if group]
        self._free = set(self.all)
        self._shared: Dict[int, int] = {}  # core -> millicores taken of it

    def take(self, millicores: int, how: str = "cores", avoid: Collection[int] = ()) -> Optional[List[int]]:
        """Cores of one's own, by groups as `how` says; below one core a shared one. None: so many are not free.

        Groups to avoid are used last. Of a strict form (`compact!`) none at all: it is to wait, as idle cores would
        give it better ones.
        """
        if 0 < millicores < 1000:
            return self._share(millicores)
        count = max(1, millicores // 1000)
        plain = how.rstrip("!")
        free = [[number for number in group if number in self._free] for group in self._groups]
        rooms = [[0 if at in avoid else len(group) for at, group in enumerate(free)]]
        rooms += [[len(group) for group in free]] if plain == how else []
        for room in rooms:
            if sum(room) >= count:
                parts = part(plain, room, count)
                if plain == how or self._is_best(plain, parts, count):
                    taken = [number for group, size in zip(free, parts) for number in group[:size]]
                    self._free.difference_update(taken)
                    return sorted(taken)
        return None if plain == how or count > len(self.all) else []

    def _is_best(self, how: str, parts: List[int], count: int) -> bool:
        used, most = sum(map(bool, parts)), best(how, [len(group) for group in self._groups], count)
        return used >= most if how == "scatter" else used <= most

    def wanted(self, millicores: int, how: str, avoid: Collection[int] = ()) -> List[int]:
        """The groups that one which waits is to have: as many as on an idle node, where the least is missing."""
        how, count = how.rstrip("!"), max(1, millicores // 1000)
        sizes = [len(group) for group in self._groups]
        if how == "scatter":
            return []  # some of each, whoever else is there
        missing = [sum(number not in self._free for number in group) for group in self._groups]
        most = best(how, sizes, count)
        chosen = sorted(range(len(sizes)), key=lambda at: (at in avoid, missing[at]))[:most]
        if sum(sizes[at] for at in chosen) < count:
            chosen = sorted(range(len(sizes)), key=lambda at: (-sizes[at], at in avoid))[:most]
        return chosen

    def _share(self, millicores: int) -> Optional[List[int]]:
        for number in sorted(self._shared):
            if self._shared[number] + millicores <= 1000:
                self._shared[number] += millicores
                return [number]
        taken = self.take(1000)
        if taken is not None:
            self._shared[taken[0]] = millicores
        return taken

    def give_back(self, numbers: List[int], millicores: int) -> None:
        """Take back what take() gave."""
        if 0 < millicores < 1000:
            (number,) = numbers
            self._shared[number] -= millicores
            if self._shared[number] > 0:
                return
            del self._shared[number]
        self._free.update(numbers)


class Bindings:
    """Which attempts are bound to which cores, and which wait for better ones."""

    def __init__(self, cores: Optional[Cores] = None) -> None:
        self._cores = cores or Cores()
        self._bound: Dict[Key, Tuple[List[int], int]] = {}  # with the millicores that were asked for
        self._wishes: Dict[Key, List[int]] = {}  # the groups that those which wait are to have, in their order

    def __contains__(self, key: Key) -> bool:
        return key in self._bound

    def take(self, key: Key, millicores: int, how: str = "cores") -> bool:
        """Bind an attempt to free cores, if there are so many; False: it is to wait for better ones.

        What comes later stays out of the groups that an earlier one waits for, so that its turn comes.
        """
        others = {at for other, groups in self._wishes.items() if other != key for at in groups}
        if key in self._wishes:  # it stands behind those alone that began to wait before it
            earlier = list(self._wishes)[: list(self._wishes).index(key)]
            others = {at for other in earlier for at in self._wishes[other]}
        taken = self._cores.take(millicores, how, others)
        if taken is not None and not taken:
            self._wishes.setdefault(key, self._cores.wanted(millicores, how, others))
            return False
        self._wishes.pop(key, None)
        if taken is not None:
            self._bound[key] = (taken, millicores)
        return True

    def forget_all_but(self, held: Callable[[Key], bool]) -> None:
        """Forget those that waited and are not here any more."""
        for key in [key for key in self._wishes if not held(key)]:
            del self._wishes[key]

    def give_back(self, key: Key) -> None:
        """Take back the cores of an attempt that is over, if it was bound to any."""
        if key in self._bound:
            self._cores.give_back(*self._bound.pop(key))

    def variables(self, key: Key) -> Dict[bytes, bytes]:
        """What an attempt is told of its cores."""
        return {b"ROTA_CORE_IDS": text_of(self._bound[key][0]).encode()} if key in self._bound else {}

    @contextmanager
    def of(self, key: Key) -> Iterator[None]:
        """Be on the cores of an attempt: what is started here inherits them."""
        if key not in self._bound:
            yield
            return
        os.sched_setaffinity(0, self._bound[key][0])
        try:
            yield
        finally:
            os.sched_setaffinity(0, self._cores.all)


class Gpus:
    """The gpus of this node, in the order in which the manager counts them."""

    def __init__(self, environ: Mapping[str, str], count: Optional[int] = None) -> None:
        self.ids = _told(environ)
        if count is not None and len(self.ids) < count:
            self.ids = [str(number) for number in range(count)]
        elif count is not None:
            self.ids = self.ids[:count]
        elif not self.ids and not any(name in environ for name in TOLD):
            self.ids = _listed()
        self._known: Dict[str, Dict[bytes, bytes]] = {}

    def variables(self, slot: str) -> Dict[bytes, bytes]:
        """What a job in this slot is told: its gpus are the fifth field of the slot's name, none if it has but four."""
        known = self._known.get(slot)
        if known is None:
            fields = slot.split(":")
            known = {}
            if len(fields) >= 4:
                ids = b",".join(os.fsencode(self._id(index)) for index in numbers_of("".join(fields[4:5])))
                known = {b"ROTA_GPUS": ids, b"CUDA_VISIBLE_DEVICES": ids, b"ROCR_VISIBLE_DEVICES": ids}
            self._known[slot] = known
        return known

    def _id(self, index: int) -> str:
        return self.ids[index] if index < len(self.ids) else str(index)


def _told(environ: Mapping[str, str]) -> List[str]:
    """What the batch system, or the user, left visible."""
    for name in TOLD:
        value = environ.get(name)
        if value is None:
            continue
        words = [word.strip() for word in value.split(",")]
        if name == "SLURM_JOB_GPUS":
            return [str(number) for number in numbers_of(value)]
        found: List[str] = []
        for word in words:
            if not DEVICE.fullmatch(word):
                break  # as CUDA reads it: what follows a word that is no device does not count
            found.append(word)
        return found
    return []


def _listed() -> List[str]:
    """What the driver lists."""
    if not os.path.exists("/dev/nvidia0"):
        return []
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=LOOK_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    lines: List[Tuple[str, str]] = re.findall(r"(?m)^GPU (\d+):(.*)$", done.stdout.decode("utf-8", "replace"))
    return [number for number, _ in lines]

"""Shapes that wait, in forests: the first in order that has room at a place is found without looking at all of them.

After a pass every shape that waits is refused everywhere. A forest is a tree, in order, of shapes that may use the same
groups of places and name the same limits: while one of these is full, the whole forest is closed. A limit that only
one batch has is not worth a forest: while it is full, its shapes are out of their trees, and come back with it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from rota.model.shape import Shape
from rota.schedule import limits
from rota.schedule.fewest import Fewest
from rota.schedule.tree import ANY, NONE, Key, Tree, Vector
from rota.schedule.view import Limit, View, Want

__all__ = ["Entry", "Forest", "Waiting", "in_order", "must_s", "vector_of"]


Queue = tuple[str, str]
"""(site, queue; "": its own)."""


class Forest:
    """Shapes that may use the same places and name the same limits, in order."""

    __slots__ = ("closed", "groups", "limits", "names", "oldest", "size", "tree")

    def __init__(self, groups: tuple[int, ...], shared: tuple[str, ...], names: tuple[str, ...]) -> None:
        self.groups = groups
        self.limits = shared
        self.names = names
        """Named resources that its shapes ask for."""
        self.tree = Tree()
        self.size = 0
        """How many shapes it has, in its tree or out of it."""
        self.oldest = math.inf
        """No shape that it has, or had, waits since an earlier time."""
        self.closed = False
        """Whether a limit was full at the end of the last pass: its shapes may have room where nothing has changed."""

    def open(self, now: Mapping[str, Limit]) -> bool:
        """Whether all its limits let a job start."""
        return all(name not in now or limits.room(now[name]) != 0 for name in self.limits)


class Entry:
    """A shape that has ready jobs."""

    __slots__ = ("forest", "key", "out", "own", "vector", "want")

    def __init__(self, want: Want, key: Key, forest: Forest, vector: Vector) -> None:
        self.want = want
        """As it was when the shape was last looked at; its number of ready jobs may be another now."""
        self.key = key
        self.forest = forest
        self.vector = vector
        self.own = tuple([name for name in want.shape.limits if name.startswith("#")])
        """The limits of its batch alone."""
        self.out = False
        """Whether it is not in the tree, because such a limit is full."""


class Waiting:
    """All shapes that have ready jobs."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.forests: dict[tuple[object, ...], Forest] = {}
        self.members: dict[str, dict[int, None]] = {}
        """Limit → shapes that name it."""
        self.learners: dict[str, dict[int, None]] = {}
        """Learning group → shapes of it."""
        self.gangs: dict[int, None] = {}
        """Shapes that ask for several nodes."""
        self.odd: set[int] = set()
        """Shapes that forests do not know how to place: for their policy, or since it takes all nodes together."""
        self.fewest: dict[str, Fewest] = {}
        """Limit → who of its shapes is next."""
        self.equals: dict[tuple[str, int], int] = {}
        """(limit, priority) → how many shapes have both."""
        self._mixed: dict[str, int] = {}
        """Limit → how many of its shapes name others too."""
        self._by_group: dict[int, list[Forest]] = {}
        self._by_limit: dict[str, list[Forest]] = {}

    def put(self, want: Want, key: Key, groups: tuple[int, ...], view: View, queues: Iterable[Queue]) -> Entry:
        """Add a shape, or put it where it belongs now."""
        self.drop(want.shape_id)
        shape = want.shape
        names = tuple([name for name, count in shape.needs.named if count])
        shared = tuple([name for name in shape.limits if not name.startswith("#")])
        forest = self.forests.get((groups, shared, names))
        if forest is None:
            forest = self.forests[groups, shared, names] = Forest(groups, shared, names)
            for group in groups:
                self._by_group.setdefault(group, []).append(forest)
            for name in shared:
                self._by_limit.setdefault(name, []).append(forest)
        entry = self.entries[want.shape_id] = Entry(want, key, forest, vector_of(want, view, queues))
        forest.tree.put(key, entry.vector)
        forest.size += 1
        if want.since < forest.oldest:
            forest.oldest = want.since
        for name in shape.limits:
            self.members.setdefault(name, {})[want.shape_id] = None
            self._mixed[name] = self._mixed.get(name, 0) + (len(shape.limits) > 1)
        for name in shared:
            self.held_less(name, key, want.slots)
            self.equals[name, want.priority] = self.equals.get((name, want.priority), 0) + 1
        if shape.group:
            self.learners.setdefault(shape.group, {})[want.shape_id] = None
        if shape.needs.nodes > 1:
            self.gangs[want.shape_id] = None
        return entry

    def drop(self, shape_id: int) -> None:
        """Take a shape away, if it is there."""
        self.odd.discard(shape_id)
        self.gangs.pop(shape_id, None)
        entry = self.entries.pop(shape_id, None)
        if entry is None:
            return
        forest, shape = entry.forest, entry.want.shape
        if not entry.out:
            forest.tree.drop(entry.key)
        forest.size -= 1
        if not forest.size:
            self._cut_down(forest)
        for name in shape.limits:
            _take_out(self.members, name, shape_id)
            self._mixed[name] -= len(shape.limits) > 1
            if name in forest.limits:
                self._uncount(name, entry.want.priority)
            if name not in self.members:
                del self._mixed[name]
                self.fewest.pop(name, None)
        if shape.group:
            _take_out(self.learners, shape.group, shape_id)

    def _uncount(self, name: str, priority: int) -> None:
        self.equals[name, priority] -= 1
        if not self.equals[name, priority]:
            del self.equals[name, priority]

    def _cut_down(self, forest: Forest) -> None:
        del self.forests[forest.groups, forest.limits, forest.names]
        for group in forest.groups:
            self._by_group[group].remove(forest)
        for name in forest.limits:
            self._by_limit[name].remove(forest)

    def at(self, group: int) -> Sequence[Forest]:
        """The forests whose shapes may use places of a group."""
        return self._by_group.get(group, ())

    def naming(self, names: Iterable[str]) -> Iterator[Forest]:
        """The forests with any of these limits."""
        for name in names:
            yield from self._by_limit.get(name, ())

    def sharing(self, numbers: Iterable[int]) -> set[int]:
        """These shapes, and all that share limits with them, directly or through others."""
        found, names = set(numbers), set[str]()
        todo = list(found)
        while todo:
            entry = self.entries.get(todo.pop())
            for name in () if entry is None else entry.want.shape.limits:
                if name not in names:
                    names.add(name)
                    fresh = self.members[name].keys() - found
                    found |= fresh
                    todo += fresh
        return found

    def held_less(self, name: str, key: Key, slots: int) -> None:
        """Say how many slots of a limit a shape holds that is new, or holds fewer than before."""
        fewest = self.fewest.get(name)
        if fewest is None:
            fewest = self.fewest[name] = Fewest()
        fewest.put(key, slots)
        fewest.trim(2 * len(self.members[name]) + 64)

    def is_alone(self, name: str) -> bool:
        """Whether a limit is all that its shapes name."""
        return not self._mixed.get(name)

    def asking(self, names: Iterable[str]) -> list[Forest]:
        """The forests whose shapes ask for any of these named resources."""
        asked = set(names)
        return [forest for forest in self.forests.values() if not asked.isdisjoint(forest.names)]

    def shut(self, entry: Entry, now: Mapping[str, Limit]) -> None:
        """Take a shape out of its tree while a limit of its batch is full."""
        if entry.own and not entry.out and limits.fits_names(entry.own, now, 1) == 0:
            entry.out = True
            entry.forest.tree.drop(entry.key)

    def reopen(self, entry: Entry) -> None:
        """Put a shape back into its tree."""
        if entry.out:
            entry.out = False
            entry.forest.tree.put(entry.key, entry.vector)


def _take_out(index: dict[str, dict[int, None]], name: str, shape_id: int) -> None:
    members = index[name]
    del members[shape_id]
    if not members:
        del index[name]


Source = Callable[[Key | None], Key | None]
"""Says which shape, after this key, may have found a place; None: no more."""


def in_order(sources: Iterable[Source]) -> Iterator[Key]:
    """The keys that any of the sources says, ascending, each once.

    A source is asked again before its key is used: while places are taken, what it says can only move on.
    """
    heap = [(key, number, source) for number, source in enumerate(sources) if (key := source(None)) is not None]
    heapify(heap)
    last: Key | None = None
    while heap:
        key, number, source = heappop(heap)
        again = key if last is None else source(last)
        if again is not None and again == key:
            yield key
            last = key
            again = source(last)
        if again is not None:
            heappush(heap, (again, number, source))


def vector_of(want: Want, view: View, queues: Iterable[Queue]) -> Vector:
    """What a shape asks for, as forests compare it: amounts, time, time if it is known, age, named resources."""
    needs = want.shape.needs
    amounts = needs.amounts()
    times = [must_s(want.shape, queue, view) for queue in queues]
    fill_s = [needs.time_s or view.job_times.get(site) or NONE for site, _ in queues]
    return (
        amounts.cores or ANY,
        amounts.memory or ANY,
        amounts.disk or ANY,
        amounts.gpus or ANY,
        amounts.gpu_share or ANY,
        min(times, default=ANY),
        min(fill_s, default=NONE),
        want.since,
        *[count for _, count in needs.named if count],
    )


def must_s(shape: Shape, queue: Queue, view: View) -> float:
    """Seconds that must be left at a place of a queue for a job to start there."""
    time_s = shape.needs.time_s if shape.needs.time_s is not None else view.job_times.get(queue[0])
    must, most = time_s or 1, view.longest.get(queue)
    return most[1] if most is not None and most[1] < must <= most[0] else must

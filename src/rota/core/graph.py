"""The graph of a batch as it stands: what each node has come to, and how many of its links each job still waits for.

Columns, not objects: a link is a number in two arrays, once from the job and once from the node. When a node is
settled, or opened again, those that wait for it are counted up or down; nobody else is looked at. All of it follows
from the states of jobs, so a restart works it out anew.
"""

import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterator

from rota.model.batch import Dependency
from rota.model.graph import ANY, CONDITIONS, FAILURE, MEMBER, SUCCESS, Graph, words
from rota.model.tables import COMPLETED, JOB_STATES, REMOVED

__all__ = ["BAD", "CLASSES", "GONE", "GOOD", "OPEN", "Gate", "GraphState", "Token", "spans"]

Token = tuple[int, int]
"""Who is told when something is settled: (batch, gate); gate -1: the batch as a whole."""

OPEN, GOOD, BAD, GONE = range(4)
"""What a node has come to: not settled; all succeeded; some did not; nothing of it is left."""
MET, WAITS, NEVER = range(3)
CODES = {SUCCESS: (WAITS, MET, NEVER, MET), ANY: (WAITS, MET, MET, MET), FAILURE: (WAITS, NEVER, MET, NEVER)}
"""Condition → for each class of a node: met, open or never. Nobody waits for a removed job."""
CLASSES = bytes(
    GOOD if byte == COMPLETED else GONE if byte == REMOVED else BAD if COMPLETED < byte < len(JOB_STATES) else OPEN
    for byte in range(256)
)
"""State byte of a job → its class."""


class Gate:
    """Something outside of the batch that jobs of it wait for: a batch, a range of jobs, or a name.

    It is told of one thing at a time, as a batch is that waits as a whole.
    """

    __slots__ = ("after", "edges", "epoch", "id", "known_until", "met", "node", "number", "seen", "waits")

    def __init__(self, batch: int, number: int, node: int, dependency: Dependency) -> None:
        self.id = batch
        self.number = number
        self.node = node
        self.after = (dependency,)
        self.edges: tuple[tuple[int, int, int], ...] = ()
        self.met = 0
        self.seen = -1
        self.epoch = 0
        self.known_until = 0
        self.waits: tuple[int, int] | tuple[int, str] | str | None = None

    @property
    def token(self) -> Token:
        """By what it is known to those that tell it."""
        return self.id, self.number


class GraphState:
    """The links of a batch, and how they stand."""

    __slots__ = (
        "bad",
        "children",
        "classes",
        "count",
        "ends",
        "epoch",
        "first",
        "gates",
        "given",
        "good",
        "groups",
        "jobs",
        "left",
        "links",
        "never",
        "offsets",
        "starts",
        "todo",
        "told",
    )  # fmt: skip

    def __init__(self, batch: int, count: int, given: Graph) -> None:
        self.given = given
        self.count = count
        self.offsets, self.links = given.columns()
        self.first = count + len(given.names)
        """The node of the first gate."""
        self.gates = [Gate(batch, at, self.first + at, dependency) for at, dependency in enumerate(given.after)]
        self.groups = {name: count + at for at, name in enumerate(given.names)}
        """Name that some of its jobs have → node."""
        self.jobs: list[tuple[int, int, array[int]]] = []
        """(first node, batch, positions) of jobs elsewhere."""
        nodes = self.first + len(self.gates)
        for number, column in given.jobs:
            positions = words(column)
            self.jobs.append((nodes, number, positions))
            nodes += len(positions)
        self.classes = bytearray(nodes)
        self.starts, self.children = self._reversed(nodes)
        """Where the links to each node begin, and these links: the job that waits, with the two bits."""
        self.left = words(given.degrees)
        """How many links of each job are open …"""
        self.never = array("I", (0,)) * count
        """… and how many can never be met."""
        self.ends = array("I", (0,)) * len(given.names)
        """How many jobs of each name are not settled; below it how many succeeded, and how many did not."""
        self.good, self.bad = self.ends[:], self.ends[:]
        if given.names:
            for pos in range(count):
                for link in self.parents(pos):
                    if link & 3 == MEMBER:
                        self.ends[(link >> 2) - count] += 1
                        self.left[pos] -= 1
        self.told: dict[str, set[Token]] = {}
        """Name → who is told when all its jobs here are settled."""
        self.todo = set(range(len(self.gates)))
        """Gates to look at."""
        self.epoch = 0
        """The `State.epoch` as of which gates on names are known."""

    def _reversed(self, nodes: int) -> tuple["array[int]", "array[int]"]:
        fan = array("I", (0,)) * (nodes + 1)
        for link in self.links:
            fan[(link >> 2) + 1] += 1
        starts = array("I", itertools.accumulate(fan))
        free, children = starts[:], array("I", (0,)) * len(self.links)
        offsets, links = self.offsets, self.links
        for pos in range(self.count):
            for link in links[offsets[pos] : offsets[pos + 1]]:
                node = link >> 2
                children[free[node]] = pos << 2 | link & 3
                free[node] += 1
        return starts, children

    def parents(self, pos: int) -> "array[int]":
        """The links of a job."""
        return self.links[self.offsets[pos] : self.offsets[pos + 1]]

    def waiting(self, node: int) -> Iterator[int]:
        """Positions of the jobs that wait for a node."""
        for link in self.children[self.starts[node] : self.starts[node + 1]]:
            if link & 3 != MEMBER:
                yield link >> 2

    def members(self, name: str) -> list[int]:
        """Positions of the jobs that have a name, ascending."""
        node = self.groups[name]
        return [link >> 2 for link in self.children[self.starts[node] : self.starts[node + 1]] if link & 3 == MEMBER]

    def names_of(self, pos: int) -> list[str]:
        """The names that a job has of its own."""
        return [self.given.names[(link >> 2) - self.count] for link in self.parents(pos) if link & 3 == MEMBER]

    def nodes_of(self, number: int, low: int, high: int) -> Iterator[tuple[int, int]]:
        """(node, position) of the jobs of another batch among these positions that are waited for one by one."""
        for first, batch, positions in self.jobs:
            if batch == number:
                start, end = bisect_left(positions, low), bisect_left(positions, high)
                for at in range(start, end):
                    yield first + at, positions[at]

    def set(self, node: int, new: int, freed: list[int], names: list[str]) -> None:
        """Take it that a node has come to this; adds jobs that may go on to `freed`, and names that have changed."""
        todo = [(node, new)]
        left, never = self.left, self.never
        while todo:
            node, new = todo.pop()
            old = self.classes[node]
            if old == new:
                continue
            self.classes[node] = new
            for link in self.children[self.starts[node] : self.starts[node + 1]]:
                if link & 3 == MEMBER:
                    continue
                codes = CODES[link & 3]
                was, now = codes[old], codes[new]
                if was == now:
                    continue
                child = link >> 2
                if was == WAITS:
                    left[child] -= 1
                elif was == NEVER:
                    never[child] -= 1
                if now == WAITS:
                    left[child] += 1
                elif now == NEVER:
                    never[child] += 1
                if not left[child] or never[child]:
                    freed.append(child)
            if node < self.count and self.groups:
                self._count(node, old, new, todo, names)

    def _count(self, pos: int, old: int, new: int, todo: list[tuple[int, int]], names: list[str]) -> None:
        """Count a job among those of its names."""
        for link in self.parents(pos):
            if link & 3 == MEMBER:
                at = (link >> 2) - self.count
                for column, which in ((self.ends, OPEN), (self.good, GOOD), (self.bad, BAD)):
                    column[at] += (new == which) - (old == which)
                todo.append((link >> 2, self.stands(at)))
                names.append(self.given.names[at])

    def stands(self, at: int) -> int:
        """What the name of this number has come to."""
        return OPEN if self.ends[at] else BAD if self.bad[at] else GOOD if self.good[at] else GONE

    def tally(self, name: str) -> tuple[int, int, int]:
        """How many jobs of a name are not settled, succeeded, and did not."""
        at = self.groups[name] - self.count
        return self.ends[at], self.good[at], self.bad[at]

    def codes(self, low: int, high: int) -> bytes:
        """For each job: 0 all its links are met, 1 some are open, 2 some can never be met, 3 both."""
        left, never = self.left[low:high], self.never[low:high]
        return bytes([(1 if a else 0) | (2 if b else 0) for a, b in zip(left, never, strict=True)])

    def links_of(self, pos: int) -> Iterator[tuple[str, str, int]]:
        """(what, condition, code) of everything that a job waits for: 3 a position here, @name, 7.12, 7 …"""
        for link in self.parents(pos):
            if link & 3 != MEMBER:
                node, condition = link >> 2, link & 3
                yield self.word(node), CONDITIONS[condition], CODES[condition][self.classes[node]]

    def word(self, node: int) -> str:
        """A node in words: `#` and a position for a job of this batch or of another, else a dependency's target."""
        if node < self.count:
            return f"#{node}"
        if node < self.first:
            return f"@{self.given.names[node - self.count]}"
        if node < self.first + len(self.gates):
            return self.given.after[node - self.first].target
        first, number, positions = next(row for row in reversed(self.jobs) if row[0] <= node)
        return f"{number}#{positions[node - first]}"


def spans(positions: list[int]) -> list[int]:
    """Ascending positions as spans."""
    out: list[int] = []
    for pos in positions:
        if out and out[-1] == pos:
            out[-1] = pos + 1
        else:
            out += (pos, pos + 1)
    return out

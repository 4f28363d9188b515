"""A tree of vectors in an order: the first that is nowhere greater than a bound is found without looking at all.

Each node keeps the componentwise least of what is below it. That may be too small after something was taken out, never
too large: a search that finds nothing below a node brings its figures up to date.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import le
from typing import Any

__all__ = ["ANY", "NONE", "Key", "Tree", "Vector"]

Vector = tuple[float, ...]
Key = tuple[Any, ...]
ANY = float("-inf")
"""As a component of a vector: below any bound."""
NONE = float("inf")
"""As a component of a bound: above any vector."""
_MOST = 16


class _Node:
    __slots__ = ("below", "firsts", "least")

    def __init__(self, firsts: list[Key], least: list[Vector], below: "list[_Node] | None") -> None:
        self.firsts = firsts
        """Keys; of an inner node none above the first key below each child, and ascending."""
        self.least = least
        """Vectors; of an inner node none above those below each child."""
        self.below = below
        """The children; None: a leaf."""


class Tree:
    """Vectors of equal length by distinct keys."""

    __slots__ = ("_root", "count")

    def __init__(self) -> None:
        self._root = _Node([], [], None)
        self.count = 0

    def put(self, key: Key, vector: Vector) -> None:
        """Add a vector; the key must be new."""
        self.count += 1
        split = _put(self._root, key, vector)
        if split is not None:
            nodes = [self._root, split]
            self._root = _Node([node.firsts[0] for node in nodes], [_least(node) for node in nodes], nodes)

    def drop(self, key: Key) -> None:
        """Take out what has this key, which must be there."""
        self.count -= 1
        _drop(self._root, key)
        while self._root.below is not None and len(self._root.below) == 1:
            self._root = self._root.below[0]
        if self._root.below is not None and not self._root.below:
            self._root = _Node([], [], None)

    def first(self, bound: Vector, after: Key | None = None) -> Key | None:
        """The least key, above `after`, whose vector is nowhere greater than the bound."""
        return _first(self._root, bound, after)

    def fitting(self, bound: Vector, after: Key | None = None) -> Iterator[Key]:
        """All such keys, in order; the tree may change meanwhile."""
        key = self.first(bound, after)
        while key is not None:
            yield key
            key = self.first(bound, key)

    def least(self) -> Vector | None:
        """The componentwise least, or below it; None: the tree is empty."""
        return _least(self._root) if self._root.firsts else None


def _least(node: _Node) -> Vector:
    rows = node.least
    return rows[0] if len(rows) == 1 else tuple(map(min, *rows))


def _put(node: _Node, key: Key, vector: Vector) -> _Node | None:
    """Add to a node; returns its new right neighbour if it had to be split."""
    if node.below is None:
        at = bisect_left(node.firsts, key)
        assert at == len(node.firsts) or node.firsts[at] != key, f"{key} is there already"
        node.firsts.insert(at, key)
        node.least.insert(at, vector)
    else:
        at = max(0, bisect_right(node.firsts, key) - 1)
        child = node.below[at]
        split = _put(child, key, vector)
        if key < node.firsts[at]:
            node.firsts[at] = key
        if split is None:
            node.least[at] = tuple(map(min, node.least[at], vector))
        else:
            node.least[at] = _least(child)
            node.firsts.insert(at + 1, split.firsts[0])
            node.least.insert(at + 1, _least(split))
            node.below.insert(at + 1, split)
    if len(node.firsts) <= _MOST:
        return None
    half = len(node.firsts) // 2
    right = _Node(node.firsts[half:], node.least[half:], None if node.below is None else node.below[half:])
    del node.firsts[half:], node.least[half:]
    if node.below is not None:
        del node.below[half:]
    return right


def _drop(node: _Node, key: Key) -> None:
    if node.below is None:
        at = bisect_left(node.firsts, key)
        assert node.firsts[at] == key, f"{key} is not there"
    else:
        at = bisect_right(node.firsts, key) - 1
        child = node.below[at]
        _drop(child, key)
        if child.firsts:
            return
        del node.below[at]
    del node.firsts[at], node.least[at]


def _first(node: _Node, bound: Vector, after: Key | None) -> Key | None:
    least, below = node.least, node.below
    start = 0
    if after is not None:
        start = bisect_right(node.firsts, after)
        if below is not None:
            start = max(0, start - 1)
    for at in range(start, len(least)):
        if all(map(le, least[at], bound)):
            if below is None:
                return node.firsts[at]
            found = _first(below[at], bound, after if at == start else None)
            if found is not None:
                return found
            least[at] = _least(below[at])
    return None

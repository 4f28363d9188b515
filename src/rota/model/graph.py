"""Graphs: which jobs of one batch wait for which, and the names that single jobs have, as columns.

A *node* is what can be waited for: the jobs of the batch by position, then the names that some of them have, then what
is outside of the batch. A *link* of a job is one number: a node, and below it in two bits how it is linked with it.
"""

import itertools
from array import array
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from rota.model.batch import MAX_AFTER, Dependency
from rota.model.errors import UsageError

__all__ = ["ANY", "CONDITIONS", "FAILURE", "MEMBER", "SUCCESS", "Graph", "pack_links"]

SUCCESS, ANY, FAILURE, MEMBER = range(4)
"""The two bits of a link: the job waits for the node on this condition, or it is one of those of that name."""
CONDITIONS: Final[tuple[Literal["success", "any", "failure"], ...]] = ("success", "any", "failure")
MAX_LINKS = 50_000_000
MAX_NAMES = 100_000
"""The most names in the lines of one batch."""
SHOWN = 12
"""How many jobs of a circle are shown."""


class Graph(Struct, frozen=True, array_like=True):
    """The links of all jobs of a batch."""

    degrees: bytes
    """How many links each job has, four bytes each."""
    links: bytes
    """The links, job by job, four bytes each."""
    names: tuple[str, ...] = ()
    """Names that jobs have: the nodes after those of jobs."""
    after: tuple[Dependency, ...] = ()
    """What jobs wait for outside of the batch, of whatever condition: the nodes after those of names."""
    jobs: tuple[tuple[int, bytes], ...] = ()
    """(batch, positions) of single jobs elsewhere: the nodes after those."""

    def columns(self) -> tuple["array[int]", "array[int]"]:
        """(where the links of each job begin, and after the last one their end; the links)."""
        offsets = array("I", itertools.accumulate(words(self.degrees), initial=0))
        return offsets, words(self.links)

    def check(self, count: int) -> None:
        """Raise UsageError for columns that do not fit a batch of this size, and for circles."""
        if len(self.degrees) != 4 * count or len(self.links) % 4:
            raise UsageError(f"the links: {len(self.degrees) // 4} jobs have links, and there are {count}")
        if len(self.links) // 4 > MAX_LINKS:
            raise UsageError(f"{len(self.links) // 4:,} links in one batch: the most is {MAX_LINKS:,}")
        if len(self.names) > MAX_NAMES or len(set(self.names)) != len(self.names):
            raise UsageError(f"the lines of one batch have at most {MAX_NAMES:,} names, each of them once")
        if len(self.after) > MAX_AFTER:
            raise UsageError(
                f"its lines wait for {len(self.after):,} different things outside of this batch; the most is "
                f"{MAX_AFTER:,}: wait for whole batches (7), ranges (7.1-999), names (@align) or with --each=value"
            )
        nodes = count + len(self.names) + len(self.after) + sum(len(positions) // 4 for _, positions in self.jobs)
        offsets, links = self.columns()
        if offsets[-1] != len(links) or (links and max(links) >> 2 >= nodes):
            raise UsageError("the links name jobs that are not there")
        low, high = count, count + len(self.names)
        named = {link >> 2 for link in links if link & 3 == MEMBER}
        if named and not low <= min(named) <= max(named) < high:
            raise UsageError("the links: a job is one of those of a name, and of nothing else")
        if len(named) < len(self.names):
            raise UsageError("the links: there is a name that no job has")
        if circle := find_circle(count, offsets, links):
            shown = circle if len(circle) <= SHOWN else [*circle[: SHOWN // 2], -1, *circle[-SHOWN // 2 :]]
            path = " → ".join("…" if pos < 0 else str(pos + 1) for pos in shown)
            raise UsageError(f"jobs wait for each other and could never run: {path}")


def words(column: bytes) -> "array[int]":
    """A column of four bytes each as numbers."""
    out = array("I")
    out.frombytes(column)
    return out


def pack_links(rows: Sequence[Sequence[int]]) -> tuple[bytes, bytes]:
    """(degrees, links) of rows of links, one for each job."""
    degrees = array("I", map(len, rows))
    return degrees.tobytes(), array("I", itertools.chain.from_iterable(rows)).tobytes()


def with_name(graph: Graph | None, count: int, name: str, positions: Sequence[int]) -> Graph:
    """The graph, or an empty one, in which these jobs have a name too."""
    graph = graph or Graph(bytes(4 * count), b"")
    offsets, links = graph.columns()
    names = graph.names if name in graph.names else (*graph.names, name)
    limit, shift = count + len(graph.names), len(names) - len(graph.names)
    member = (count + names.index(name)) << 2 | MEMBER
    rows = [
        [link if link >> 2 < limit else link + (shift << 2) for link in links[offsets[pos] : offsets[pos + 1]]]
        for pos in range(count)
    ]
    for pos in positions:
        if member not in rows[pos]:
            rows[pos].append(member)
    degrees, flat = pack_links(rows)
    return Graph(degrees, flat, names, graph.after, graph.jobs)


def find_circle(count: int, offsets: Sequence[int], links: Sequence[int]) -> list[int]:
    """Positions of jobs that wait for each other, the first one again at the end; empty if there are none."""
    if not _goes_forward(count, offsets, links):
        members: dict[int, list[int]] = {}
        for pos in range(count):
            for link in links[offsets[pos] : offsets[pos + 1]]:
                if link & 3 == MEMBER:
                    members.setdefault(link >> 2, []).append(pos)
        state = bytearray(count)  # 0 new, 1 on the way, 2 done
        done: set[int] = set()
        for start in range(count):
            if not state[start] and (found := _walk(start, count, offsets, links, members, state, done)):
                return found
    return []


def _goes_forward(count: int, offsets: Sequence[int], links: Sequence[int]) -> bool:
    """Whether each job waits only for jobs before it, and for names that no job has from there on."""
    if not links or max(links) >> 2 < count:  # there are no names, nor anything outside
        low = 0
        for pos in range(count):
            high = offsets[pos + 1]
            if low < high and max(links[low:high]) >> 2 >= pos:
                return False
            low = high
        return True
    last: dict[int, int] = {}
    for pos in range(count):
        for link in links[offsets[pos] : offsets[pos + 1]]:
            if link & 3 == MEMBER:
                last[link >> 2] = pos
    for pos in range(count):
        for link in links[offsets[pos] : offsets[pos + 1]]:
            node = link >> 2
            if link & 3 != MEMBER and (node if node < count else last.get(node, -1)) >= pos:
                return False
    return True


def _walk(
    start: int,
    count: int,
    offsets: Sequence[int],
    links: Sequence[int],
    members: dict[int, list[int]],
    state: bytearray,
    done: set[int],
) -> list[int]:
    """Go from job to job that is waited for, depth first; the circle that this meets."""
    path, ways = [start], [list(links[offsets[start] : offsets[start + 1]])]
    names: set[int] = set()
    state[start] = 1
    while path:
        if not ways[-1]:
            ways.pop()
            gone = path.pop()
            if gone < count:
                state[gone] = 2
            else:
                done.add(gone)
                names.discard(gone)
            continue
        link = ways[-1].pop()
        node = link >> 2
        if link & 3 == MEMBER:
            continue
        if node >= count:
            if node in names:
                return _jobs_only(path, node, count)
            if node not in done:
                names.add(node)
                path.append(node)
                ways.append([member << 2 for member in members.get(node, ())])
        elif state[node] == 1:
            return _jobs_only(path, node, count)
        elif not state[node]:
            state[node] = 1
            path.append(node)
            ways.append(list(links[offsets[node] : offsets[node + 1]]))
    return []


def _jobs_only(path: list[int], node: int, count: int) -> list[int]:
    circle = [each for each in path[path.index(node) :] if each < count]
    return [*circle, circle[0]]

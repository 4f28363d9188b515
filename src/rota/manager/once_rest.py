"""The rest of a workflow of which a part is there already (`rota add --once`): who waits for that part waits for it."""

from array import array
from collections.abc import Mapping

from rota.model.graph import MEMBER, Graph, pack_links

__all__ = ["named", "rest"]


def rest(graph: Graph, count: int, there: Mapping[int, tuple[int, int]]) -> Graph | None:
    """The graph of the jobs that are not there already, by their new positions; None: none has links.

    `there`: position of a job that is left out → the batch and position of the one that is there in its place.
    """
    offsets, links = graph.columns()
    kept = [pos for pos in range(count) if pos not in there]
    members: dict[int, list[int]] = {}
    for pos in range(count):
        for link in links[offsets[pos] : offsets[pos + 1]]:
            if link & 3 == MEMBER:
                members.setdefault(link >> 2, []).append(pos)
    names = [at for at in range(len(graph.names)) if any(pos not in there for pos in members[count + at])]
    at = {pos: new for new, pos in enumerate(kept)}
    at |= {count + old: len(kept) + new for new, old in enumerate(names)}
    outside, first = count + len(graph.names), len(kept) + len(names)
    beyond = len(graph.after) + sum(len(column) // 4 for _, column in graph.jobs)
    at |= {outside + old: first + old for old in range(beyond)}
    jobs, elsewhere = _elsewhere(there, first + beyond)

    def nodes(node: int) -> list[int]:
        """What a node has become: itself, and of a name also those of its jobs that are there."""
        gone = [pos for pos in (members.get(node, ()) if node >= count else (node,)) if pos in there]
        return [*([at[node]] if node in at else []), *(elsewhere[there[pos]] for pos in gone)]

    rows = []
    for pos in kept:
        row: dict[int, None] = {}
        for link in links[offsets[pos] : offsets[pos + 1]]:
            if link & 3 == MEMBER:
                row[at[link >> 2] << 2 | MEMBER] = None
            else:
                row |= dict.fromkeys(node << 2 | link & 3 for node in nodes(link >> 2))
        rows.append(list(row))
    if not any(rows):
        return None
    degrees, flat = pack_links(rows)
    return Graph(degrees, flat, tuple(graph.names[old] for old in names), graph.after, (*graph.jobs, *jobs))


def named(graph: Graph, count: int, there: Mapping[int, tuple[int, int]]) -> dict[str, dict[int, list[int]]]:
    """Name of some of its jobs → those of them that are there, as positions by batch."""
    offsets, links = graph.columns()
    out: dict[str, dict[int, list[int]]] = {}
    for pos, (batch, its) in there.items():
        for link in links[offsets[pos] : offsets[pos + 1]]:
            if link & 3 == MEMBER:
                out.setdefault(graph.names[(link >> 2) - count], {}).setdefault(batch, []).append(its)
    return out


def _elsewhere(
    there: Mapping[int, tuple[int, int]], node: int
) -> tuple[list[tuple[int, bytes]], dict[tuple[int, int], int]]:
    """(Columns of the jobs that are there; the node of each.)"""
    columns, at = [], {}
    for batch in sorted({batch for batch, _ in there.values()}):
        positions = sorted({pos for its, pos in there.values() if its == batch})
        columns.append((batch, array("I", positions).tobytes()))
        for pos in positions:
            at[batch, pos] = node
            node += 1
    return columns, at

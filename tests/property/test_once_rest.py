"""The rest of a workflow: every job that is added waits for the same jobs as in the whole of it, wherever they are."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rota.manager.once_rest import named, rest
from rota.model.batch import Dependency
from rota.model.graph import MEMBER, Graph, pack_links, words


@st.composite
def cases(draw: st.DrawFn):
    count = draw(st.integers(2, 8))
    names = tuple(f"n{at}" for at in range(draw(st.integers(0, 3))))
    after = tuple(Dependency(str(at + 50)) for at in range(draw(st.integers(0, 2))))
    jobs = tuple((90 + at, pack_links([[3, 5]])[1]) for at in range(draw(st.integers(0, 2))))
    outside = range(count + len(names), count + len(names) + len(after) + 2 * len(jobs))
    rows: list[list[int]] = []
    member = [draw(st.sets(st.integers(0, count - 1), min_size=1)) for _ in names]
    for pos in range(count):
        targets = [*range(pos), *outside, *(count + at for at in range(len(names)) if max(member[at]) < pos)]
        chosen = draw(st.sets(st.tuples(st.sampled_from(targets), st.integers(0, 2)))) if targets else set()
        row = [node << 2 | how for node, how in sorted(chosen)]
        rows.append(row + [(count + at) << 2 | MEMBER for at in range(len(names)) if pos in member[at]])
    gone = draw(st.sets(st.integers(0, count - 1), max_size=count - 1))
    there = {pos: (draw(st.sampled_from((7, 9))), 10 * draw(st.integers(0, 3))) for pos in sorted(gone)}
    return Graph(*pack_links(rows), names, after, jobs), count, there


def meaning(graph: Graph, count: int, who) -> list[set]:
    """What each job waits for and is, in words; `who` names a job of the batch."""
    offsets, links = graph.columns()
    elsewhere = [(batch, pos) for batch, column in graph.jobs for pos in words(column)]
    members: dict[int, list[int]] = {}
    for pos in range(count):
        for link in links[offsets[pos] : offsets[pos + 1]]:
            if link & 3 == MEMBER:
                members.setdefault(link >> 2, []).append(pos)
    first = count + len(graph.names)

    def of(node: int) -> set:
        if node < count:
            return {who(node)}
        if node < first:
            return {who(pos) for pos in members[node]}
        if node < first + len(graph.after):
            return {graph.after[node - first].target}
        return {elsewhere[node - first - len(graph.after)]}

    return [
        {("is", graph.names[(link >> 2) - count]) for link in links[low:high] if link & 3 == MEMBER}
        | {(each, link & 3) for link in links[low:high] if link & 3 != MEMBER for each in of(link >> 2)}
        for low, high in itertools.pairwise(offsets)
    ]


@given(cases())
def test_who_is_added_waits_for_the_same(case) -> None:
    graph, count, there = case
    graph.check(count)
    kept = [pos for pos in range(count) if pos not in there]
    wanted = [meaning(graph, count, lambda pos: there.get(pos, f"#{pos}"))[pos] for pos in kept]
    less = rest(graph, count, there)
    if less is None:
        assert not any(wanted)
        return
    less.check(len(kept))
    assert meaning(less, len(kept), lambda pos: f"#{kept[pos]}") == wanted
    assert all(list(words(column)) == sorted(words(column)) for _, column in less.jobs), "they are looked for by halves"
    for name, batches in named(graph, count, there).items():
        its = {who for row, who in zip(meaning(graph, count, str), range(count), strict=True) if ("is", name) in row}
        found = {(batch, pos) for batch, at in batches.items() for pos in at}
        assert found == {there[pos] for pos in its & there.keys()}

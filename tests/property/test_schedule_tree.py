"""A tree finds what going through a list in order finds."""

from operator import le

from hypothesis import given
from hypothesis import strategies as st

from rota.schedule.tree import Tree

VECTORS = st.tuples(*[st.integers(0, 5)] * 3)
STEPS = st.lists(st.tuples(st.integers(0, 60), VECTORS, st.integers(-1, 60)), max_size=200)


@given(STEPS)
def test_it_finds_the_first_in_order_that_fits(steps: list[tuple[int, tuple[int, int, int], int]]) -> None:
    tree, rows = Tree(), dict[tuple[int], tuple[int, int, int]]()
    for number, vector, after in steps:
        key = (number,)
        if key in rows:
            tree.drop(key)
            del rows[key]
        else:
            tree.put(key, vector)
            rows[key] = vector
        start = None if after < 0 else (after,)
        found = [key for key in sorted(rows) if all(map(le, rows[key], vector)) and (start is None or key > start)]
        assert tree.first(vector, start) == (found[0] if found else None)
        assert list(tree.fitting(vector, start)) == found
        assert tree.count == len(rows)
        least = tree.least()
        assert least is None if not rows else all(all(map(le, least or (), row)) for row in rows.values())

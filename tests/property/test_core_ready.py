"""The ready queue against a set of numbers."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core.ready import ReadyQueue
from rota.model.tables import PENDING, STARTING, WAITING

SIZE = 24
STEPS = st.lists(
    st.tuples(st.sampled_from(("push", "leave", "take")), st.integers(0, SIZE - 1), st.integers(1, 8)), max_size=40
)


@settings(max_examples=300)
@given(STEPS)
def test_take_gives_the_least_that_are_pending(steps: list[tuple[str, int, int]]) -> None:
    queue = ReadyQueue()
    states = bytearray([WAITING] * SIZE)
    for what, at, size in steps:
        span = range(at, min(SIZE, at + size))
        if what == "push":
            if all(states[pos] != PENDING for pos in span):
                for pos in span:
                    states[pos] = PENDING
                queue.push(span.start, span.stop)
        elif what == "leave":
            for pos in span:
                if states[pos] == PENDING:
                    states[pos] = WAITING
        else:
            spans = queue.take(size, states)
            taken = [pos for low, high in zip(spans[::2], spans[1::2], strict=True) for pos in range(low, high)]
            assert spans == sorted(spans)
            assert all(low < high for low, high in zip(spans[::2], spans[1::2], strict=True))
            assert taken == [pos for pos in range(SIZE) if states[pos] == PENDING][:size]
            for pos in taken:
                states[pos] = STARTING

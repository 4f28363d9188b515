"""Limits are never overdrawn and are shared fairly; a rate holds in every window of its period."""

from hypothesis import given
from hypothesis import strategies as st

from rota.model.needs import Needs
from rota.model.shape import Shape
from rota.schedule.fewest import Fewest
from rota.schedule.limits import Starts, room, share
from rota.schedule.view import Limit, Want

NAMES = ("a", "b", "c")


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Want], dict[str, Limit], dict[str, Starts]]:
    wants = []
    for number in range(draw(st.integers(1, 12))):
        names = tuple(sorted(draw(st.sets(st.sampled_from(NAMES), max_size=2))))
        priority, slots = draw(st.integers(0, 2)), draw(st.integers(0, 20))
        wants.append(Want(number, Shape(Needs(), names), draw(st.integers(1, 50)), priority, number, slots))
    wants.sort(key=lambda want: (-want.priority, want.first))
    limits = {}
    for name in NAMES:
        used = sum(want.slots for want in wants if name in want.shape.limits) + draw(st.integers(0, 3))
        left = draw(st.none() | st.integers(0, 30))
        limits[name] = Limit(
            draw(st.none() | st.integers(0, 120)),
            used,
            None if left is None else 30,
            60,
            None,
            left,
            draw(st.sampled_from((None, None, None, "until 22:00"))),
        )
    starts = {name: Starts() for name in NAMES}
    for name in NAMES:
        starts[name].served = {number: draw(st.integers(0, 40)) for number in range(12)}
    return wants, limits, starts


@given(worlds())
def test_together_they_never_take_more(world: tuple[list[Want], dict[str, Limit], dict[str, Starts]]) -> None:
    wants, limits, starts = world
    most, over = share(wants, limits, starts)
    for want, count in zip(wants, most, strict=True):
        assert 0 <= count <= want.ready
        if not want.shape.limits:
            assert count == want.ready
        assert want.slots > 0 or want.shape_id not in over
    for name, limit in limits.items():
        left = room(limit)
        taken = sum(count for want, count in zip(wants, most, strict=True) if name in want.shape.limits)
        assert left is None or taken <= left


@given(worlds(), st.integers(0, 100))
def test_one_limit_is_used_up_and_shared_evenly(
    world: tuple[list[Want], dict[str, Limit], dict[str, Starts]], count: int
) -> None:
    wants = [
        Want(want.shape_id, Shape(Needs(), ("a",)), want.ready, want.priority, want.first, want.slots)
        for want in world[0]
    ]
    used = sum(want.slots for want in wants)
    most, over = share(wants, {"a": Limit(count, used)}, {})
    free = max(0, count - used)
    assert sum(most) == min(free, sum(want.ready for want in wants))
    for one, got in zip(wants, most, strict=True):
        for other, had in zip(wants, most, strict=True):
            if one.priority < other.priority and got:
                assert had == other.ready, "the higher priority has all that it wants first"
            if one.priority == other.priority and got and had < other.ready:
                assert one.slots + got <= other.slots + had + 1, "nobody is above another that wants more"
    for want in wants:
        if want.shape_id in over:
            assert used + sum(want.ready for want in wants) > count


def test_who_holds_much_already_gets_what_the_others_leave() -> None:
    wants = [Want(0, Shape(Needs(), ("a",)), 6, 1, 0, 0), Want(1, Shape(Needs(), ("a",)), 20, 1, 1, 9),
             Want(2, Shape(Needs(), ("a",)), 5, 0, 2, 13)]  # fmt: skip
    assert share(wants, {"a": Limit(47, 22)}, {})[0] == [6, 19, 0]


@given(
    st.integers(1, 30),
    st.sampled_from((1, 60, 3600)),
    st.lists(st.tuples(st.floats(0, 0.4), st.integers(1, 20)), max_size=120),
)
def test_a_rate_holds_in_every_period(rate: int, per_s: int, tries: list[tuple[float, int]]) -> None:
    starts = Starts()
    now = 1_760_000_000.0
    taken: list[tuple[float, int]] = []
    for wait, wanted in tries:
        now += wait * per_s
        count = min(wanted, rate - starts.counted(now, per_s))
        frees = starts.frees(now, per_s, rate)
        assert (count <= 0) == (frees is not None)
        if count <= 0:
            assert frees is not None and now < frees <= now + per_s
            now = frees
            count = min(wanted, rate - starts.counted(now, per_s))
            assert count > 0, "it said when the next may start"
        starts.take(1, count, now, per_s)
        taken.append((now, count))
        assert len(starts.rows) <= 70
    for begin, _ in taken:
        assert sum(count for at, count in taken if begin <= at < begin + per_s) <= rate
    if taken:
        now += 2 * per_s
        assert starts.counted(now, per_s) == 0


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 6), st.integers(0, 9)), max_size=12),
    st.integers(0, 40),
)
def test_whoever_holds_the_fewest_is_next_as_shares_say(rows: list[tuple[int, int, int, int]], left: int) -> None:
    """What a shape held when it was put there may be less than it holds now; what it is told again is more."""
    fewest, now = Fewest(), dict[tuple[int, ...], tuple[int, int]]()
    for number, (priority, slots, more, ready) in enumerate(rows):
        key = (-priority, number, number)
        fewest.put(key, slots + more if number % 2 else slots)
        fewest.put(key, slots)
        now[key] = (slots if number % 2 else slots + more, ready)
    fewest.put((0, 99, 99), 0)  # it waits no more
    order = sorted(key for key in now if now[key][1])
    wants = [Want(key[-1], Shape(Needs(), ("a",)), now[key][1], -key[0], key[1], now[key][0]) for key in order]
    used = sum(slots for slots, _ in now.values())
    most, _ = share(wants, {"a": Limit(used + left, used)}, {})
    for _ in range(2):  # what is said changes nothing
        parts = fewest.parts(left, now.get)
        assert parts == {key: count for key, count in zip(order, most, strict=True) if count}

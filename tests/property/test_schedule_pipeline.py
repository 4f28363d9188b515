"""The pass with its memo yields what a pass without any memory would, whatever changed between passes."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rota.model.location import Kind, Location
from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.model.verdict import Verdict
from rota.schedule import filters, scorers
from rota.schedule.ledger import Ledger
from rota.schedule.pipeline import Memo, Parked, Placement, place
from rota.schedule.policy import Policy, check_policy_names
from rota.schedule.view import Limit, Place, View, Want

STATUSES = ("SERVING", "SERVING", "SERVING", "MISSING", "not connected")


# ---- the same in the plainest way -----------------------------------------------------------------------------------


def plain_no(shape: Shape, candidate: Place, view: View, names: Sequence[str]) -> Verdict | None:
    for name in names:
        no = filters.BUILT_IN[name].check(shape, candidate, view)
        if isinstance(no, filters.No):
            return Verdict(candidate.location.id, name, no.code, no.detail, no.lasting, no.wake_on)
    return None


def plain_count(want: Want, candidate: Place, view: View, left: int) -> tuple[int, int]:
    needs, path = want.shape.needs, list(view.ledger.path(candidate.location.id))
    frees = [view.ledger.free(location.id) for location in path if location.capacity is not None]
    cores, ranged = needs.cores, needs.cores_most > needs.cores
    if ranged:
        free = min((free.cores for free in frees), default=needs.cores_most)
        cores = max(needs.cores, min(needs.cores_most, free // 1000 * 1000))
    counts = [left, *(needs.amounts(cores).times_in(free) for free in frees)]
    for name in want.shape.limits:
        limit = view.limits.get(name)
        if limit is not None and limit.count is not None:
            counts.append(limit.count - limit.used)
    return min(*counts, 1 if ranged else 1 << 40), cores


def plain_place(view: View, wants: Sequence[Want], policy: Policy) -> Iterator[Placement | Parked]:
    for want in sorted(wants, key=lambda want: (-want.priority, want.first, want.shape_id)):
        left = want.ready
        names, relax = list(policy.filters), list(policy.relax)
        while True:
            said = [plain_no(want.shape, candidate, view, names) for candidate in view.places]
            if None in said or not relax:
                break
            names.remove(relax.pop(0))
        verdicts = [no for no in said if no is not None]
        candidates = [candidate for candidate, no in zip(view.places, said, strict=True) if no is None]
        score = {
            candidate.location.id: math.prod(
                scorers.BUILT_IN[name].score(want.shape, candidate, view) ** weight
                for name, weight in policy.scorers.items()
            )
            for candidate in candidates
        }
        for candidate in sorted(candidates, key=lambda one: score[one.location.id], reverse=True):
            while left > 0:
                count, cores = plain_count(want, candidate, view, left)
                if count <= 0:
                    break
                yield Placement(want, candidate, count, cores)
                left -= count
            if left <= 0:
                break
            no = plain_no(want.shape, candidate, view, names)
            if no is not None:
                verdicts.append(no)
        if left > 0:
            yield Parked(want, left, verdicts)


# ---- worlds ---------------------------------------------------------------------------------------------------------

SHAPES = st.builds(
    Shape,
    st.builds(
        Needs,
        st.sampled_from((0, 500, 1000, 2000, 3000)),
        st.sampled_from((0, 0, 4000)),
        st.sampled_from((1, 1, 1, 2)),
        st.sampled_from((None, 10, 30)),
        st.sampled_from((None, 5)),
        st.sampled_from((None, 60, 3600)),
        st.sampled_from((0, 0, 1)),
        st.sampled_from(((), (("lic", 1),))),
        st.sampled_from(((), ("ssd",))),
        st.sampled_from((None, None, "s0")),
    ),
    st.sampled_from(((), (), ("l1",), ("l1", "l2"))),
)
NODES = st.builds(
    Amounts, st.sampled_from((1000, 4000)), st.sampled_from((20, 100)), st.just(50), st.integers(0, 1), st.just((("lic", 2),))
)
POLICIES = st.sampled_from(
    (
        Policy(),
        Policy(scorers={"spread": 1.0}),
        Policy(scorers={"pack": 2.0, "spread": 0.5}),
        Policy(scorers={}),
        Policy(relax=("tags", "until")),
        Policy(relax=("limits", "room", "site")),
        Policy(filters=("room", "fits", "status", "limits", "until", "tags", "site"), relax=("tags",)),
    )
)


class World:
    """One of two equal clusters: the one is scheduled with a memo, the other plainly."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.limits: dict[str, Limit] = {}
        self.places: dict[str, Place] = {}
        self.wall = 1000.0
        self.mode = "serving"
        self.kinds: dict[Any, int] = {}
        self.given: list[tuple[str, Amounts, int, tuple[str, ...]]] = []

    def add_node(self, name: str, site: str, capacity: Amounts, tags: tuple[str, ...], until: float | None, status: str) -> None:
        location = Location(name, Kind.NODE, site, capacity, True, tags, until, site)
        self.ledger.add(location)
        kind = self.kinds.setdefault((site, tags, capacity), len(self.kinds))
        self.places[name] = Place(location, name, status, kind)

    def charge(self, item: Placement, sign: int = 1) -> None:
        amounts = item.want.shape.needs.amounts(item.cores)
        self.give(item.place.location.id, amounts, item.count, item.want.shape.limits)
        self.given.append((item.place.location.id, amounts, item.count, item.want.shape.limits))

    def give(self, name: str, amounts: Amounts, count: int, limits: tuple[str, ...]) -> None:
        self.ledger.charge(name, amounts, count)
        for limit in limits:
            old = self.limits.get(limit, Limit(None, 0))
            self.limits[limit] = Limit(old.count, old.used + count)

    def view(self) -> View:
        return View(self.wall, self.wall, self.mode, list(self.places.values()), self.ledger, self.limits)


def record(items: Iterator[Placement | Parked], world: World) -> list[tuple[Any, ...]]:
    out: list[tuple[Any, ...]] = []
    for item in items:
        if isinstance(item, Parked):
            out.append((item.want.shape_id, item.left, list(item.verdicts)))
        else:
            assert item.count > 0
            out.append((item.want.shape_id, item.place.location.id, item.count, item.cores))
            world.charge(item)
            for name in item.want.shape.limits:
                limit = world.limits[name]
                assert limit.count is None or limit.used <= limit.count
    return out


CHANGES = ("nothing", "time", "back", "end", "status", "node", "gone", "resize", "limit", "mode", "root")


@settings(max_examples=150)
@given(st.data())
def test_a_memo_changes_nothing(data: st.DataObject) -> None:
    worlds = (World(), World())
    shapes = data.draw(st.lists(SHAPES, min_size=1, max_size=5, unique=True))
    policy = data.draw(POLICIES)
    check_policy_names(policy)
    memo: Memo = {}
    root = data.draw(st.sampled_from((None, Amounts(6000, 150, 500, 1, (("lic", 3),)))))
    for world in worlds:
        for site in ("s0", "s1"):
            world.ledger.add(Location(site, Kind.SITE, None, root, True, (), None, site))

    def node(number: int) -> None:
        arguments = (
            f"n{number}",
            f"s{number % 2}",
            data.draw(NODES),
            data.draw(st.sampled_from(((), ("ssd",)))),
            data.draw(st.sampled_from((None, None, 1030.0, 1500.0, 5000.5))),
            data.draw(st.sampled_from(STATUSES)),
        )
        for world in worlds:
            world.add_node(*arguments)

    for number in range(data.draw(st.integers(0, 5))):
        node(number)
    made = 5
    for _ in range(data.draw(st.integers(1, 6))):
        wants = [
            Want(number, shape, data.draw(st.integers(1, 6)), data.draw(st.integers(0, 1)), data.draw(st.integers(1, 3)))
            for number, shape in enumerate(shapes)
            if data.draw(st.booleans())
        ]
        kept = record(place(worlds[0].view(), wants, policy, memo), worlds[0])
        plain = record(plain_place(worlds[1].view(), wants, policy), worlds[1])
        assert kept == plain
        change = data.draw(st.sampled_from(CHANGES))
        names = list(worlds[0].places)
        if change == "time":
            later = data.draw(st.sampled_from((0.5, 1.0, 30.0, 600.0)))
            for world in worlds:
                world.wall += later
        elif change == "back":
            for world in worlds:
                world.wall -= 400.0
        elif change == "end" and worlds[0].given:
            which = data.draw(st.integers(0, len(worlds[0].given) - 1))
            for world in worlds:
                name, amounts, count, limits = world.given.pop(which)
                world.give(name, amounts, -count, limits)
        elif change == "status" and names:
            name, status = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(STATUSES))
            for world in worlds:
                old = world.places[name]
                world.places[name] = Place(old.location, old.runner, status, old.kind)
        elif change == "node":
            made += 1
            node(made)
        elif change == "gone" and names:
            name = data.draw(st.sampled_from(names))
            for world in worlds:
                for where, amounts, count, limits in [row for row in world.given if row[0] == name]:
                    world.give(where, amounts, -count, limits)
                world.given = [row for row in world.given if row[0] != name]
                world.ledger.drop(name)
                del world.places[name]
        elif change == "resize" and names:
            name, size = data.draw(st.sampled_from(names)), data.draw(NODES)
            tags, until = data.draw(st.sampled_from(((), ("ssd",)))), data.draw(st.sampled_from((None, 1100.0)))
            for world in worlds:
                world.add_node(name, world.places[name].location.site, size, tags, until, world.places[name].status)
        elif change == "limit":
            name, most = data.draw(st.sampled_from(("l1", "l2"))), data.draw(st.sampled_from((None, 0, 1, 3)))
            for world in worlds:
                world.limits[name] = Limit(most, world.limits.get(name, Limit(None, 0)).used)
        elif change == "mode":
            mode = data.draw(st.sampled_from(("serving", "paused")))
            for world in worlds:
                world.mode = mode
        elif change == "root":
            capacity = data.draw(st.sampled_from((None, Amounts(9000, 200, 500, 2, (("lic", 9),)))))
            for world in worlds:
                world.ledger.add(Location("s0", Kind.SITE, None, capacity, True, (), None, "s0"))

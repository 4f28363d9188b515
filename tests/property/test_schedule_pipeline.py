"""The pass with its memo yields what a pass without any memory would, whatever changed between passes."""

import math
import random
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


def a_shape(chance: random.Random) -> Shape:
    needs = Needs(
        cores=chance.choice((500, 1000, 2000, 3000)),
        cores_most=chance.choice((0, 0, 0, 4000)),
        nodes=2 if chance.random() < 0.03 else 1,
        memory=chance.choice((None, None, 10, 30)),
        disk=chance.choice((None, None, 5)),
        time_s=chance.choice((None, 60, 3600)),
        gpus=chance.choice((0, 0, 0, 1)),
        named=chance.choice(((), (), (("lic", 1),))),
        tags=chance.choice(((), (), (), ("ssd",))),
        site=chance.choice((None, None, None, "s0")),
    )
    return Shape(needs, chance.choice(((), (), ("l1",), ("l1", "l2"))))


def a_node(chance: random.Random) -> Amounts:
    return Amounts(
        chance.choice((2000, 4000, 8000)), chance.choice((20, 100)), 50, chance.choice((0, 1)), (("lic", 2),)
    )


POLICIES = (
    Policy(),
    Policy(),
    Policy(scorers={"spread": 1.0}),
    Policy(scorers={"pack": 2.0, "spread": 0.5}),
    Policy(scorers={}),
    Policy(relax=("tags", "until")),
    Policy(relax=("until", "fits", "site")),
    Policy(filters=("room", "fits", "status", "limits", "until", "tags", "site"), relax=("tags",)),
)


class World:
    """One of two equal clusters: the one is scheduled with a memo, the other plainly."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.limits: dict[str, Limit] = {}
        self.places: dict[str, Place] = {}
        self.wall = 1000.0
        self.mode = "serving"
        self.classes: dict[Any, int] = {}
        self.given: list[tuple[str, Amounts, int, tuple[str, ...]]] = []

    def add_node(
        self, name: str, site: str, capacity: Amounts, tags: tuple[str, ...], until: float | None, status: str
    ) -> None:
        location = Location(name, Kind.NODE, site, capacity, True, tags, until, site)
        self.ledger.add(location)
        kind = self.classes.setdefault((site, tags, capacity), len(self.classes))
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
        return View(self.wall, self.wall, self.mode, list(self.places.values()), self.ledger.view, self.limits)


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


CHANGES = (
    "nothing",
    "time",
    "time",
    "back",
    "end",
    "end",
    "status",
    "node",
    "gone",
    "resize",
    "limit",
    "limit",
    "mode",
    "root",
)


@settings(max_examples=400)
@given(st.integers(0, 2**40))
def test_a_memo_changes_nothing(seed: int) -> None:
    chance = random.Random(seed)
    worlds = (World(), World())
    shapes = list(dict.fromkeys(a_shape(chance) for _ in range(chance.randint(1, 6))))
    policy = chance.choice(POLICIES)
    check_policy_names(policy)
    memo: Memo = {}
    root = chance.choice((None, None, Amounts(9000, 250, 500, 1, (("lic", 3),))))
    for world in worlds:
        for site in ("s0", "s1"):
            world.ledger.add(Location(site, Kind.SITE, None, root, True, (), None, site))
    for number in range(chance.randint(0, 5)):
        new_node(chance, worlds, number)
    for number in range(chance.randint(2, 9)):
        wants = [
            Want(which, shape, chance.randint(1, 6), chance.randint(0, 1), chance.randint(1, 3))
            for which, shape in enumerate(shapes)
            if chance.random() < 0.8
        ]
        kept = record(place(worlds[0].view(), wants, policy, memo, worlds[0].ledger.changed), worlds[0])
        plain = record(plain_place(worlds[1].view(), wants, policy), worlds[1])
        assert kept == plain
        for _ in range(chance.randint(0, 2)):
            change(chance, worlds, number)


def new_node(chance: random.Random, worlds: tuple[World, World], number: int) -> None:
    arguments = (
        f"n{number}",
        f"s{number % 2}",
        a_node(chance),
        chance.choice(((), (), ("ssd",))),
        chance.choice((None, None, 1030.0, 1500.0, 5000.5)),
        chance.choice(STATUSES),
    )
    for world in worlds:
        world.add_node(*arguments)


def change(chance: random.Random, worlds: tuple[World, World], number: int) -> None:
    """The same in both."""
    what = chance.choice(CHANGES)
    names = list(worlds[0].places)
    name = chance.choice(names) if names else ""
    if what == "time":
        later = chance.choice((0.5, 1.0, 30.0, 600.0))
        for world in worlds:
            world.wall += later
    elif what == "back":
        for world in worlds:
            world.wall -= 400.0
    elif what == "end" and worlds[0].given:
        which = chance.randrange(len(worlds[0].given))
        for world in worlds:
            where, amounts, count, limits = world.given.pop(which)
            world.give(where, amounts, -count, limits)
    elif what == "status" and names:
        status = chance.choice(STATUSES)
        for world in worlds:
            old = world.places[name]
            world.places[name] = Place(old.location, old.runner, status, old.class_number)
    elif what == "node":
        new_node(chance, worlds, 10 + number)
    elif what == "gone" and names:
        for world in worlds:
            for where, amounts, count, limits in [row for row in world.given if row[0] == name]:
                world.give(where, amounts, -count, limits)
            world.given = [row for row in world.given if row[0] != name]
            world.ledger.drop(name)
            del world.places[name]
    elif what == "resize" and names:
        size, tags, until = a_node(chance), chance.choice(((), ("ssd",))), chance.choice((None, 1100.0))
        for world in worlds:
            world.add_node(name, world.places[name].location.site, size, tags, until, world.places[name].status)
    elif what == "limit":
        limit, most = chance.choice(("l1", "l2")), chance.choice((None, 0, 1, 3, 6))
        for world in worlds:
            world.limits[limit] = Limit(most, world.limits.get(limit, Limit(None, 0)).used)
    elif what == "mode":
        mode = chance.choice(("serving", "serving", "paused"))
        for world in worlds:
            world.mode = mode
    elif what == "root":
        capacity = chance.choice((None, Amounts(9000, 200, 500, 2, (("lic", 9),))))
        for world in worlds:
            world.ledger.add(Location("s0", Kind.SITE, None, capacity, True, (), None, "s0"))

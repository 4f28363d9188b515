"""The one loop, rule by rule. That its memory changes nothing is in tests/property."""

from collections.abc import Iterable

from msgspec.structs import replace

from rota.model.location import Kind, Location
from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.schedule.ledger import Ledger
from rota.schedule.pipeline import Memo, Parked, Placement, place
from rota.schedule.policy import DEFAULT, Policy
from rota.schedule.view import Limit, Place, View, Want


class World:
    """Nodes of so many cores, charged as placements come."""

    def __init__(self, *cores: int, root: Amounts | None = None, tags: tuple[str, ...] = ()) -> None:
        self.ledger = Ledger()
        self.ledger.add(Location("root", Kind.SITE, None, root, True, (), None, "root"))
        self.places = []
        self.limits: dict[str, Limit] = {}
        self.memo: Memo = {}
        self.wall = 1000.0
        for number, count in enumerate(cores, 1):
            node = Location(f"n{number}", Kind.NODE, "root", Amounts(count * 1000, 100), True, tags, None, "root")
            self.ledger.add(node)
            self.places.append(Place(node, f"r{number}", "SERVING", count))

    def run(
        self, wants: Iterable[Want], policy: Policy = DEFAULT, mode: str = "serving"
    ) -> tuple[list[str], dict[int, Parked]]:
        """What was placed, in words, and what was parked."""
        placed, parked = [], {}
        view = View(self.wall, 0.0, mode, self.places, self.ledger.view, self.limits)
        for item in place(view, list(wants), policy, self.memo, self.ledger.changed):
            if isinstance(item, Parked):
                parked[item.want.shape_id] = item
                continue
            self.charge(item)
            placed.append(f"{item.count}×{item.want.shape_id}:{item.cores}@{item.place.location.id}")
        return placed, parked

    def charge(self, item: Placement) -> None:
        self.ledger.charge(item.place.location.id, item.want.shape.needs.amounts(item.cores), item.count)
        for name in item.want.shape.limits:
            old = self.limits[name]
            self.limits[name] = Limit(old.count, old.used + item.count)


def want(number: int, ready: int, needs: Needs | None = None, priority: int = 0, first: int = 1, *limits: str) -> Want:
    return Want(number, Shape(needs or Needs(), limits), ready, priority, first)


def reasons(parked: Parked) -> list[str]:
    return [f"{verdict.location} {verdict.filter}/{verdict.code}: {verdict.detail}" for verdict in parked.verdicts]


def test_priority_then_first_come_then_number() -> None:
    placed, _ = World(100).run(
        [
            want(4, 1, first=2),
            want(3, 1, priority=5, first=9),
            want(2, 1, first=1),
            want(1, 1, first=2),
            want(0, 1, priority=7, first=9),
        ]
    )
    assert [text.split("×")[1][0] for text in placed] == ["0", "3", "2", "1", "4"]


def test_the_first_no_wins_and_there_is_one_for_each_place() -> None:
    world = World(1, 2)
    world.places[1] = replace(world.places[1], status="MISSING")
    _, parked = world.run([want(0, 3, Needs(2000, tags=("ssd",)))])
    assert reasons(parked[0]) == [
        "n1 tags/tag: asks for ssd; the tags here are none",
        "n2 tags/tag: asks for ssd; the tags here are none",
    ]
    _, parked = world.run([want(1, 3, Needs(2000))])
    assert reasons(parked[1]) == [
        "n1 fits/too-small: asks for 2 cores, has 1 core",
        "n2 status/missing: its runner is MISSING",
    ]
    assert parked[1].left == 3


def test_the_order_of_filters_is_the_policys() -> None:
    world = World(1)
    world.places[0] = replace(world.places[0], status="MISSING")
    names = Policy(filters=("status", "fits"))
    _, parked = world.run([want(0, 1, Needs(2000))], names)
    assert reasons(parked[0]) == ["n1 status/missing: its runner is MISSING"]
    world.places[0] = replace(world.places[0], status="SERVING")
    _, parked = world.run([want(0, 1, Needs(2000))], names)
    assert reasons(parked[0]) == ["n1 fits/too-small: asks for 2 cores, has 1 core"]


def test_what_does_not_fit_any_more_is_parked_with_the_numbers() -> None:
    world = World(2, 1)
    placed, parked = world.run([want(0, 5)])
    assert placed == ["2×0:1000@n1", "1×0:1000@n2"]
    assert parked[0].left == 2
    assert reasons(parked[0]) == [
        "n1 room/busy: asks for 1 core, 0 cores free now",
        "n2 room/busy: asks for 1 core, 0 cores free now",
    ]


def test_without_places_a_shape_is_parked_with_no_reasons() -> None:
    _, parked = World().run([want(0, 5)])
    assert (parked[0].left, parked[0].verdicts) == (5, [])


def test_relaxing_goes_in_order_and_stops_at_the_first_place() -> None:
    policy = Policy(relax=("tags", "fits"))
    placed, parked = World(2).run([want(0, 1, Needs(tags=("ssd",)))], policy)
    assert placed == ["1×0:1000@n1"] and not parked
    placed, parked = World(2).run([want(0, 1, Needs(3000, tags=("ssd",)))], policy)
    assert placed == []
    assert reasons(parked[0]) == ["n1 room/busy: asks for 3 cores, 2 cores free now"]
    _, parked = World(2).run([want(0, 1, Needs(3000, tags=("ssd",)))], Policy(relax=("fits",)))
    assert reasons(parked[0]) == ["n1 tags/tag: asks for ssd; the tags here are none"]


def test_relaxing_is_not_needed_where_one_place_says_yes() -> None:
    world = World(2, 2)
    world.places[0] = Place(
        Location("n1", Kind.NODE, "root", Amounts(2000, 100), True, ("ssd",), None, "root"), "r1", "SERVING", 77
    )
    placed, parked = world.run([want(0, 5, Needs(tags=("ssd",)))], Policy(relax=("tags",)))
    assert placed == ["2×0:1000@n1"]
    assert "n2 tags/tag: asks for ssd; the tags here are none" in reasons(parked[0])


def test_scores_multiply() -> None:
    world = World(4, 4, 8)
    world.ledger.charge("n2", Amounts(2000), 1)
    world.ledger.charge("n3", Amounts(2000), 1)
    assert world.run([want(0, 1)])[0] == ["1×0:1000@n2"]  # pack: the fullest
    world.ledger.charge("n2", Amounts(1000), -1)
    assert world.run([want(0, 1)], Policy(scorers={"spread": 1.0}))[0] == ["1×0:1000@n1"]
    even = World(4, 4)
    even.ledger.charge("n2", Amounts(2000), 1)
    # pack 1.0 and 1.5, spread 2.0 and 1.5: the product is 2.0 against 2.25, with weight 3 on spread 8.0 against 5.06
    assert even.run([want(0, 1)], Policy(scorers={"pack": 1.0, "spread": 1.0}))[0] == ["1×0:1000@n2"]
    even.ledger.charge("n2", Amounts(1000), -1)
    assert even.run([want(0, 1)], Policy(scorers={"pack": 1.0, "spread": 3.0}))[0] == ["1×0:1000@n1"]


def test_equal_scores_keep_the_order_of_the_view() -> None:
    assert World(2, 2, 2).run([want(0, 6)])[0] == ["2×0:1000@n1", "2×0:1000@n2", "2×0:1000@n3"]
    assert World(2, 2).run([want(0, 3)], Policy(scorers={}))[0] == ["2×0:1000@n1", "1×0:1000@n2"]


def test_stacked_parents_count() -> None:
    placed, parked = World(4, 4, root=Amounts(5000, 1000)).run([want(0, 9)])
    assert placed == ["4×0:1000@n1", "1×0:1000@n2"]
    assert reasons(parked[0])[1] == "n2 room/busy: asks for 1 core, 0 cores free now"


def test_limits_are_shared_by_shapes_and_kept_within_one_pass() -> None:
    world = World(10, 10)
    world.limits = {"a": Limit(5, 1), "b": Limit(None, 0)}
    placed, parked = world.run(
        [want(0, 3, None, 0, 1, "a"), want(1, 9, Needs(2000), 0, 2, "a", "b"), want(2, 9, Needs(1000), 0, 3, "b")]
    )
    assert placed[:2] == ["3×0:1000@n1", "1×1:2000@n1"]
    assert world.limits["a"].used == 5
    assert reasons(parked[1]) == [
        "n1 limits/limit: limit a is full: 5 of 5 in use",
        "n2 limits/limit: limit a is full: 5 of 5 in use",
    ]
    assert 2 not in parked
    _, parked = world.run([want(3, 2, Needs(500), 0, 1, "a")])
    assert len(parked[3].verdicts) == 2


def test_a_lowered_limit_gives_nothing_out() -> None:
    world = World(10)
    world.limits = {"a": Limit(2, 7)}
    placed, parked = world.run([want(0, 3, None, 0, 1, "a")])
    assert placed == []
    assert reasons(parked[0]) == ["n1 limits/limit: limit a is full: 7 of 2 in use"]


def test_a_range_of_cores_takes_what_is_free_in_whole_cores() -> None:
    ranged = Needs(2000, 4000)
    assert World(8).run([want(0, 1, ranged)])[0] == ["1×0:4000@n1"]
    assert World(7).run([want(0, 3, ranged)])[0] == ["1×0:4000@n1", "1×0:3000@n1"]
    world = World(3)
    world.ledger.charge("n1", Amounts(500), 1)
    assert world.run([want(0, 1, ranged)])[0] == ["1×0:2000@n1"]
    assert World(8, root=Amounts(3500, 100)).run([want(0, 1, ranged)])[0] == ["1×0:3000@n1"]
    assert World(1).run([want(0, 1, ranged)])[0] == []
    assert World(1).run([want(0, 1, Needs(500, 2500))])[0] == ["1×0:1000@n1"]


def test_memory_of_one_shape_is_not_anothers() -> None:
    world = World(4)
    _, parked = world.run([want(0, 1, Needs(tags=("ssd",)))])
    assert parked
    assert world.run([want(1, 1)])[0] == ["1×1:1000@n1"]
    # the same number for another shape, as after a restart: nothing of the old is believed
    assert world.run([want(0, 1)])[0] == ["1×0:1000@n1"]


def test_nothing_starts_while_paused_and_all_does_afterwards() -> None:
    world = World(4)
    placed, parked = world.run([want(0, 1)], mode="paused")
    assert placed == [] and reasons(parked[0]) == ["n1 status/paused: the manager is paused"]
    assert world.run([want(0, 1)])[0] == ["1×0:1000@n1"]


def test_needs_of_nothing_fit_everywhere() -> None:
    assert World(1).run([want(0, 1000, Needs(0))])[0] == ["1000×0:0@n1"]


def test_a_filter_is_asked_again_only_where_something_changed() -> None:
    world = World(1, 1, 1)
    world.run([want(0, 3), want(1, 5, Needs(500))])
    before = world.memo[1, 0].answers
    first = [id(no) for no in before]
    world.ledger.charge("n2", Amounts(1000), -1)
    world.ledger.charge("n2", Amounts(1000), 1)
    world.run([want(1, 5, Needs(500))])
    assert [id(no) for no in world.memo[1, 0].answers] == first
    world.ledger.charge("n2", Amounts(200), -1)
    _, parked = world.run([want(1, 5, Needs(500))])
    assert [id(no) == old for no, old in zip(world.memo[1, 0].answers, first, strict=True)] == [True, False, True]
    assert reasons(parked[1])[1] == "n2 room/busy: asks for 0.5 cores, 0.2 cores free now"


def test_a_limit_that_changed_is_seen() -> None:
    world = World(4)
    world.limits = {"a": Limit(0, 0)}
    _, parked = world.run([want(0, 1, None, 0, 1, "a")])
    assert reasons(parked[0]) == ["n1 limits/limit: limit a is full: 0 of 0 in use"]
    world.limits = {"a": Limit(1, 0)}
    assert world.run([want(0, 2, None, 0, 1, "a")])[0] == ["1×0:1000@n1"]


def test_time_that_ran_out_is_seen() -> None:
    world = World()
    node = Location("n1", Kind.NODE, "root", Amounts(4000, 100), True, (), 1100.0, "root")
    world.ledger.add(node)
    world.places = [Place(node, "r1", "SERVING", 1)]
    asks = Needs(1000, time_s=60)
    assert world.run([want(0, 1, asks)])[0] == ["1×0:1000@n1"]
    world.wall = 1041.0
    placed, parked = world.run([want(0, 1, asks)])
    assert placed == [] and reasons(parked[0]) == ["n1 until/too-short: asks for 1m, its allocation ends in 59s"]
    world.wall = 1042.0
    _, parked = world.run([want(0, 1, asks)])
    assert reasons(parked[0]) == ["n1 until/too-short: asks for 1m, its allocation ends in 58s"]


def test_scores_follow_what_the_pass_itself_places() -> None:
    world = World(4, 4)
    placed, _ = world.run([want(0, 1), want(1, 1, Needs(2000), first=2)], Policy(scorers={"spread": 1.0}))
    assert placed == ["1×0:1000@n1", "1×1:2000@n2"]


def test_a_parent_that_got_or_lost_a_capacity_is_seen() -> None:
    world = World(4, 4)
    assert world.run([want(0, 1)])[0] == ["1×0:1000@n1"]
    world.ledger.add(Location("root", Kind.SITE, None, Amounts(1000, 100), True, (), None, "root"))
    placed, parked = world.run([want(0, 1)])
    assert placed == [] and len(parked[0].verdicts) == 2
    world.ledger.add(Location("root", Kind.SITE, None, None, True, (), None, "root"))
    assert world.run([want(0, 1)])[0] == ["1×0:1000@n1"]


def test_a_node_that_shrank_in_one_thing_still_gives_the_others() -> None:
    world = World(4)
    world.run([want(0, 1, Needs(1000, memory=80))])
    world.ledger.add(Location("n1", Kind.NODE, "root", Amounts(4000, 50), True, (), None, "root"))
    world.places = [Place(world.ledger.locations["n1"], "r1", "SERVING", 99)]
    placed, parked = world.run([want(1, 1), want(2, 1, Needs(1000, memory=10), first=2)])
    assert placed == ["1×1:1000@n1"]
    assert reasons(parked[2]) == ["n1 room/busy: asks for 10B memory, 0 memory free now"]

"""The queue level: where allocations are asked for, how many, and why not; refusals at submission too."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.model.site import QueueFacts, SiteFacts
from rota.model.verdict import Wake
from rota.schedule import filters
from rota.schedule.broker.sites import Share
from rota.schedule.demand import ANY, Asked, allocation_time, grouped, reservation_group
from rota.schedule.facts import Facts, Stats
from rota.schedule.filters import Filter, No
from rota.schedule.ledger import Ledger
from rota.schedule.policy import DEFAULT, SITES, Policy
from rota.schedule.queue_memo import QueueMemo
from rota.schedule.queue_pass import QueuePass
from rota.schedule.queues import impossible, queue_places, verdicts
from rota.schedule.view import QUEUE, Place, View, Want

GIB = 1 << 30
NODE = Amounts(8000, 16 * GIB, 100 * GIB, 2, (("lic", 3),))
HPC = SiteFacts(NODE, ("ssd",), 2)
TINY = SiteFacts(Amounts(1000, GIB), (), 1)
DAY = 86_400


class World:
    """Sites, what is on its way to them, and facts; passes at the queue level."""

    def __init__(self, **sites: SiteFacts) -> None:
        self.classes: dict[tuple[object, ...], int] = {}
        self.sites = {name: queue_places(name, facts, self.classes) for name, facts in sites.items()}
        self.memo = QueueMemo()
        self.facts = Facts()
        self.live: dict[str, int] = {}
        self.coming: dict[str, dict[tuple[str, int], int]] = {}
        self.changed: dict[tuple[str, str, int], None] = {}
        self.closed: set[str] = set()
        self.policy = DEFAULT
        self.wall = 1000.0
        self.asked = 0
        """How often filters were asked in the last pass."""

    def tell(self, name: str, facts: SiteFacts) -> None:
        self.sites[name] = queue_places(name, facts, self.classes)

    def come(self, site: str, queue: str, key: int, count: int) -> None:
        """So many more (or less) are on their way."""
        counts = self.coming.setdefault(site, {})
        counts[queue, key] = counts.get((queue, key), 0) + count
        if not counts[queue, key]:
            del counts[queue, key]
        self.changed[site, queue, key] = None

    def rooms(self) -> dict[str, int]:
        most = {name: places[0].site.most for name, places in self.sites.items() if places[0].site is not None}
        return {name: 0 if name in self.closed else most[name] - self.live.get(name, 0) for name in most}

    def view(self) -> View:
        return View(self.wall, self.wall, "serving", (), Ledger().view, {}, facts=self.facts, rooms=self.rooms())

    def run(self, wants: list[Want], memo: QueueMemo | None = None) -> list[Asked]:
        chance = random.Random(1)
        level = QueuePass(
            self.memo if memo is None else memo,
            self.view(),
            self.sites,
            self.coming,
            {"default": self.policy},
            chance.random,
        )
        level.update_all(wants)
        level.wake(list(self.changed), list(self.facts.changed))
        self.changed.clear()
        self.facts.changed.clear()
        out = []
        for asked in level.run():
            out.append(asked)
            self.live[asked.site] = self.live.get(asked.site, 0) + asked.count
            self.come(asked.site, asked.queue or "", asked.shape_id, asked.count)
        self.changed.clear()
        return out


def want(number: int, ready: int, needs: Needs | None = None, priority: int = 0) -> Want:
    return Want(number, Shape(needs or Needs()), ready, priority, number)


def short(asked: list[Asked]) -> list[str]:
    return [f"{each.count}×{each.shape_id}@{each.site}{':' + each.queue if each.queue else ''}" for each in asked]


def per_job(most: int = 100, **more: Any) -> SiteFacts:
    return SiteFacts(NODE, most=most, whole=False, **more)


def queue(name: str, time_most_s: int | None = None, node: Amounts = NODE, **more: Any) -> QueueFacts:
    return QueueFacts(name, node, time_most_s=time_most_s, **more)


# ---- how many, and where ---------------------------------------------------------------------------------------------


def test_where() -> None:
    for needs, asked in (
        (Needs(), [f"1×{ANY}@hpc"]),
        (Needs(2000), [f"2×{ANY}@hpc"]),
        (Needs(site="tiny"), [f"1×{ANY}@tiny"]),
        (Needs(tags=("ssd",)), [f"1×{ANY}@hpc"]),
        (Needs(nodes=2), []),
        (Needs(10**7), []),
    ):
        assert short(World(hpc=HPC, tiny=TINY).run([want(0, 5, needs)])) == asked
    assert World(hpc=HPC, tiny=TINY).run([]) == []


def test_what_is_ready_less_what_is_on_its_way() -> None:
    lots = [want(7, 30), want(8, 5, Needs(2000))]
    assert short(World(s=per_job()).run(lots)) == ["30×7@s", "5×8@s"]
    world = World(s=per_job())
    world.live["s"] = 12
    world.come("s", "", 7, 10)
    world.come("s", "", 8, 2)
    assert short(world.run(lots)) == ["20×7@s", "3×8@s"]
    assert world.run(lots) == [], "all of it is on its way"
    world.come("s", "", 7, -4)  # four came to nothing
    world.live["s"] -= 4
    assert short(world.run(lots)) == ["4×7@s"]


def test_a_site_takes_so_many() -> None:
    world = World(s=per_job(most=10))
    wants = [want(7, 8), want(8, 8, Needs(2000)), want(9, 8, Needs(3000), priority=1)]
    assert short(world.run(wants)) == ["8×9@s", "2×7@s"]
    assert world.run(wants) == []
    world.live["s"] -= 8  # those of 9 are over, and so are its jobs
    world.come("s", "", 9, -8)
    assert short(world.run(wants[:2])) == ["6×7@s", "2×8@s"]


def test_what_one_site_cannot_take_goes_to_the_next() -> None:
    world = World(s=per_job(), t=per_job(most=1000))
    world.live["s"] = 98
    assert short(world.run([want(7, 30)])) == ["2×7@s", "28×7@t"]


def test_whole_nodes_are_for_all() -> None:
    world = World(s=SiteFacts(Amounts(8000, 16 * GIB), (), 100))
    assert short(world.run([want(7, 30)])) == [f"4×{ANY}@s"]
    assert short(world.run([want(7, 30), want(8, 3, Needs(4000))])) == [f"2×{ANY}@s"]
    assert world.run([want(8, 12, Needs(4000))]) == [], "what was on its way for others does for these"


def test_what_is_on_its_way_anywhere_counts_before_more_is_asked_for() -> None:
    world = World(s=per_job(), t=per_job())
    world.come("t", "", 7, 5)
    assert short(world.run([want(7, 8)])) == ["3×7@s"]


def test_what_nobody_counts_on_is_spare() -> None:
    world = World(s=per_job())
    world.run([want(7, 10), want(8, 2)])
    world.run([want(7, 4), want(8, 2)])
    assert world.memo.spare == {7: {("s", "", 7): 6}}
    world.run([])
    assert world.memo.spare == {7: {("s", "", 7): 10}, 8: {("s", "", 8): 2}}
    assert world.run([want(8, 2)]) == [] and 8 not in world.memo.spare


def test_a_closed_site_is_asked_once_it_opens() -> None:
    world = World(s=per_job())
    world.closed.add("s")
    assert world.run([want(7, 3)]) == []
    world.closed.clear()
    assert short(world.run([want(7, 3)])) == ["3×7@s"]


def test_direct_jobs_are_leased_at_once() -> None:
    world = World(s=per_job(most=3, mode="direct"))
    assert short(world.run([want(7, 5)])) == ["3×7@s"]
    assert world.memo.shapes[7].claims == {}


# ---- queues ----------------------------------------------------------------------------------------------------------

SHORT = queue("short", 600, default=True)
LONG = queue("long", 10 * DAY)


def test_a_job_goes_to_the_queue_that_can_take_it() -> None:
    world = World(lsf=per_job(queues=(SHORT, LONG)))
    assert short(world.run([want(1, 2, Needs(time_s=300)), want(2, 2, Needs(time_s=DAY))])) == [
        "2×1@lsf",
        "2×2@lsf:long",
    ]
    assert impossible(Needs(time_s=DAY), world.sites) is None


def test_the_time_of_an_allocation_is_that_of_its_queue() -> None:
    world = World(lsf=per_job(queues=(SHORT, LONG), spare_s=300, allocation_s=7200))
    times = {
        each.queue: each.time_s for each in world.run([want(1, 1, Needs(time_s=300)), want(2, 1, Needs(time_s=DAY))])
    }
    assert times == {None: 600, "long": DAY + 300}


def test_a_queue_that_must_be_named() -> None:
    world = World(lsf=per_job(queues=(SHORT, replace(LONG, auto=False))))
    assert world.run([want(1, 2, Needs(time_s=DAY))]) == []
    why = impossible(Needs(time_s=DAY), world.sites)
    assert why == "the queue short of lsf gives 10m at most, 1d are asked for; --partition long gives 10d"
    named = Needs(time_s=DAY, options=(("partition", "long"),))
    assert impossible(named, world.sites) is None
    assert short(world.run([want(1, 2, named)])) == ["2×1@lsf:long"]


def test_a_queue_that_is_named_is_the_only_one() -> None:
    world = World(lsf=per_job(queues=(SHORT, LONG)))
    too_long = Needs(time_s=DAY, options=(("partition", "short"),))
    assert impossible(too_long, world.sites) == "the queue short of lsf gives 10m at most, 1d are asked for"
    assert short(world.run([want(1, 1, Needs(options=(("partition", "long"),)))])) == ["1×1@lsf:long"]
    assert short(world.run([want(1, 1, Needs(options=(("partition", "a,b"),)))])) == ["1×1@lsf:a,b"], "the site knows"
    assert (
        impossible(Needs(time_s=DAY, options=(("partition", "a,b"),)), World(s=per_job(time_most_s=600)).sites) is None
    )


def test_whole_nodes_of_each_queue() -> None:
    small, big = queue("small", node=Amounts(4000, GIB), default=True), queue("big", node=Amounts(64_000, 64 * GIB))
    world = World(s=SiteFacts(small.node, most=100, queues=(small, big)))
    wants = [want(1, 8), want(2, 4, Needs(32_000))]
    assert short(world.run(wants)) == [f"2×{ANY}@s", f"2×{ANY}@s:big"]
    assert world.run(wants) == []


def test_a_site_whose_own_queue_is_not_known_is_left_to_itself() -> None:
    world = World(sge=per_job(queues=(queue("a"), queue("b"))))
    assert short(world.run([want(1, 1)])) == ["1×1@sge"]


def test_who_names_a_site_says_nothing_about_the_others() -> None:
    world = World(a=per_job(), b=per_job())
    world.policy = SITES
    assert short(world.run([want(1, 1, Needs(site="b"))])) == ["1×1@b"]
    world.facts.tell("fares", (2, "b"), Share(until=world.wall + 60))
    assert short(world.run([want(2, 4)])) == ["4×2@a"], "b gave jobs of this batch back just now"


@pytest.mark.parametrize("policy", [SITES, replace(SITES, keep_after_s=0)])
def test_who_names_a_site_is_not_divided(policy: Policy) -> None:
    for mode in ("direct", "runners"):
        world = World(a=per_job(200, mode=mode), b=per_job(200, mode=mode))
        world.policy = policy
        assert short(world.run([want(1, 90, Needs(site="b"))])) == ["90×1@b"]
        assert sum(each.count for each in world.run([want(2, 90)])) == 40, "twenty may wait at each"


def test_sites_share_by_expected_wait() -> None:
    world = World(a=per_job(), b=per_job())
    assert short(world.run([want(1, 1)])) == ["1×1@a"], "nothing is known: the first"
    world.facts.tell("stats", ("a", ""), Stats(50.0))
    world.wall += 10
    assert short(world.run([want(1, 2)])) == ["1×1@a"], "less than a minute is nothing"
    world.facts.tell("stats", ("a", ""), Stats(4000.0))
    world.wall += 10
    assert short(world.run([want(1, 3)])) == ["1×1@b"]
    world.facts.tell("stats", ("b", ""), Stats(None, 1, world.wall))
    world.wall += 8000  # b has not started anything since
    assert short(world.run([want(1, 4)])) == ["1×1@a"]


def test_gangs_want_as_many_nodes() -> None:
    few = queue("few", nodes=2, default=True)
    world = World(s=SiteFacts(NODE, most=10, nodes_most=100, queues=(few, queue("many", nodes=50))))
    (asked,) = world.run([want(1, 2, Needs(4000, nodes=3))])
    assert (asked.queue, asked.shape_id, asked.count, asked.nodes) == ("many", 1, 2, 3), "one for each"
    assert impossible(Needs(nodes=60), world.sites) == (
        "the queue few of s gives 2 nodes at most, 60 are asked for; "
        "the queue many of s gives 50 nodes at most, 60 are asked for"
    )


def test_an_allocation_that_is_given_has_all_its_nodes_whoever_asks() -> None:
    large, small = Amounts(8000, 16 * GIB), Amounts(2000, 16 * GIB)
    given = SiteFacts(large, nodes_most=3, given=(large, small, small))
    for needs in (Needs(), Needs(2000, nodes=2)):
        world = World(s=given)
        (asked,) = world.run([want(1, 9, needs)])
        assert (asked.shape_id, asked.count, asked.nodes) == (ANY, 1, 3)
        assert world.run([want(1, 9, needs), want(2, 9, Needs(1000, nodes=3))]) == [], "there is no other"
        assert verdicts(want(1, 9, needs), world.sites, world.view()) == [], "its nodes say why not"
    assert impossible(Needs(2000, nodes=3), world.sites) is None
    assert impossible(Needs(3000, nodes=2), world.sites) == "s has 1 node that is large enough, 2 are asked for"
    assert impossible(Needs(nodes=4), world.sites) == "s gives 3 nodes at most, 4 are asked for"
    assert impossible(Needs(9000), world.sites) == "s has 8 cores, 9 cores are asked for"


# ---- what policies bring ---------------------------------------------------------------------------------------------


def bring(monkeypatch: pytest.MonkeyPatch, one: Filter) -> Policy:
    monkeypatch.setitem(filters.BUILT_IN, one.name, one)
    return Policy(filters=(*DEFAULT.filters, one.name))


def data_at(shape: Shape, place: Place, view: View) -> No | None:
    if view.facts["replicas"].get(place.location.site):
        return None
    return No("no-data", "has no copy of /data/x", False, (Wake.FACT,))


def test_a_fact_that_changes_wakes_who_looked_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(a=per_job(), b=per_job(), c=per_job())
    looked: list[str] = []

    def counted(shape: Shape, place: Place, view: View) -> No | None:
        looked.append(place.location.site)
        return data_at(shape, place, view)

    world.policy = bring(monkeypatch, Filter("data", counted, (QUEUE,), ("replicas",)))
    wants = [want(1, 2), want(2, 2, Needs(2000))]
    assert world.run(wants) == [] and len(looked) == 6
    looked.clear()
    world.facts.tell("stats", ("a", ""), Stats(5.0))
    assert world.run(wants) == [] and looked == [], "nobody reads that"
    world.facts.tell("replicas", "b", True)
    assert short(world.run(wants)) == ["2×1@b", "2×2@b"]
    assert set(looked) == {"b"}, "only there it was asked again"


def test_a_filter_with_a_time_is_asked_again_then(monkeypatch: pytest.MonkeyPatch) -> None:
    def later(shape: Shape, place: Place, view: View) -> No | None:
        return None if view.wall >= 2000 else No("early", "opens at 2000", False, (Wake.TIME,), 2000.0)

    world = World(a=per_job())
    world.policy = bring(monkeypatch, Filter("later", later, (QUEUE,)))
    assert world.run([want(1, 2)]) == []
    world.wall = 1999.0
    assert world.run([want(1, 2)]) == []
    world.wall = 2000.0
    assert short(world.run([want(1, 2)])) == ["2×1@a"]


def test_relaxing_begins_when_no_queue_is_left() -> None:
    world = World(a=per_job(), b=per_job(tags=("ssd",)))
    world.policy = Policy(relax=("tags",))
    assert short(world.run([want(1, 1, Needs(tags=("ssd",))), want(2, 1, Needs(tags=("ib",)))])) == ["1×1@b", "1×2@a"]
    assert world.memo.takes(1) and not world.memo.takes(2)
    full = World(a=per_job(), b=per_job(most=0, tags=("ssd",)))
    full.policy = Policy(relax=("tags",))
    assert full.run([want(1, 1, Needs(tags=("ssd",)))]) == [], "it can wait for b"


def test_picks() -> None:
    for pick, expected in (("best", {"a": 30}), ("round_robin", {"a": 10, "b": 10, "c": 10})):
        world = World(a=per_job(), b=per_job(), c=per_job())
        world.policy = Policy(pick=pick)
        world.run([want(1, 30)])
        assert world.live == expected
    for pick in ("weighted", "random"):
        world = World(a=per_job(), b=per_job(), c=per_job())
        world.policy = Policy(pick=pick)
        world.run([want(1, 300)])
        assert sum(world.live.values()) == 300 and min(world.live.values()) > 50


def test_verdicts() -> None:
    closed = World(
        a=per_job(queues=(SHORT, replace(LONG, auto=False))), b=per_job(most=0), c=per_job(tags=("x",)), d=TINY
    )
    closed.facts.tell("weather", ("site", "c"), (1060.0, "it failed"))
    found = verdicts(want(1, 1, Needs(2000, time_s=DAY)), closed.sites, closed.view())
    assert [(each.location, each.filter, each.detail, each.lasting, each.level) for each in found] == [
        ("a:short", "time", "gives 10m at most, 1d are asked for", True, "queue"),
        ("a:long", "site", "is used only if it is named: --partition long", True, "queue"),
        ("b", "most", "the site is asked what it has", False, "queue"),
        ("c", "open", "it failed; next try in 60 s", False, "queue"),
        ("d", "fits", "has 1 core, 2 cores are asked for", True, "queue"),
    ]


# ---- against a pass that remembers nothing ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_forgotten(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each pass, one that remembers nothing asks for nothing more."""
    chance = random.Random(seed)
    world = World(
        a=per_job(most=chance.randrange(6), queues=(SHORT, LONG)),
        b=SiteFacts(NODE, most=chance.randrange(8)),
        c=per_job(most=5),
        d=per_job(most=4, mode="direct"),
    )
    world.policy = bring(monkeypatch, Filter("data", data_at, (QUEUE,), ("replicas",)))
    needs = [
        Needs(
            chance.choice((1000, 2000, 9000)),
            time_s=chance.choice((None, 300, DAY)),
            site=chance.choice((None, None, "b")),
        )
        for _ in range(8)
    ]
    ready = [chance.randrange(6) for _ in needs]
    for _ in range(40):
        what = chance.randrange(7)
        if what < 2:
            ready[chance.randrange(len(ready))] = chance.choice((0, 1, 3, 9))
        elif what == 2:
            world.facts.tell("replicas", chance.choice("abcd"), chance.randrange(1, 9))
        elif what == 3:
            world.closed ^= {chance.choice("abcd")}
        elif what == 4:
            site = chance.choice("abcd")
            facts = world.sites[site][0].site
            assert facts is not None
            world.tell(site, replace(facts, most=chance.randrange(8)))
        else:  # something on its way starts, ends, or both
            flat = [(site, *key) for site, counts in world.coming.items() for key in counts]
            if flat:
                site, queue_name, key = chance.choice(flat)
                world.come(site, queue_name, key, -1)
                if chance.random() < 0.5:
                    world.live[site] -= 1
        wants = [want(n, count, each, n % 3) for n, (count, each) in enumerate(zip(ready, needs, strict=True)) if count]
        for each in wants:  # the core keeps the shape itself as long as it is the same
            if (looked := world.memo.shapes.get(each.shape_id)) is not None:
                each.shape = looked.want.shape
        for asked in world.run(wants):
            assert asked.count > 0
            if asked.site == "d":
                ready[asked.shape_id] -= asked.count
                world.come("d", "", asked.shape_id, -asked.count)
        for site, _, _ in world.memo.spare.get(ANY, {}):
            unmet = [number for number, each in world.memo.shapes.items() if each.jobs < each.want.ready]
            assert not any(site in world.memo.shapes[number].sites for number in unmet), "it waits, and there is one"
        left = [replace(each, ready=ready[each.shape_id]) for each in wants if ready[each.shape_id]]
        live = dict(world.live)
        more = world.run(left, QueueMemo())
        assert more == [], f"a pass that remembers nothing asks for {short(more)}"
        assert world.live == live


def test_a_change_that_wakes_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueuePass, "wake", lambda self, moved, changed: None)
    with pytest.raises(AssertionError):
        for seed in range(60):
            with monkeypatch.context() as patched:
                test_nothing_is_forgotten(seed, patched)


def test_many_that_wait_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five thousand shapes wait for a site: what has room for one looks at one."""
    world = World(a=per_job(most=10), b=per_job(most=0))
    wants = [want(n, 5, Needs(1000 + n)) for n in range(5000)]
    world.run(wants)
    looked = []
    ask = QueuePass._ask
    monkeypatch.setattr(
        QueuePass, "_ask", lambda self, number, *more: looked.append(number) or ask(self, number, *more)
    )
    assert world.run(wants) == [] and looked == []
    world.live["a"] -= 1
    world.come("a", "", 0, -1)
    wants[0] = replace(wants[0], ready=4)
    assert short(world.run(wants)) == ["1×2@a"]
    assert len(looked) <= 2


# ---- refusals at submission ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needs", "why"),
    [
        (Needs(), None),
        (Needs(2000), None),
        (Needs(site="cloud"), "there is no site 'cloud'; the sites are: hpc, tiny"),
        (Needs(2000, site="tiny"), "tiny has 1 core, 2 cores are asked for"),
        (
            Needs(9000, memory=20 * GIB),
            "hpc has 8 cores, 9 cores are asked for; hpc has 16G memory, 20G memory is asked for; "
            "tiny has 1 core, 9 cores are asked for; tiny has 1G memory, 20G memory is asked for",
        ),
        (Needs(tags=("gpu",)), "hpc has no tag gpu; tiny has no tag gpu"),
        (Needs(2000, tags=("ssd",), nodes=3), "hpc gives 1 node, 3 are asked for; tiny has no tag ssd"),
        (Needs(nodes=3, site="hpc"), "hpc gives 1 node, 3 are asked for"),
    ],
)
def test_impossible(needs: Needs, why: str | None) -> None:
    assert impossible(needs, World(hpc=HPC, tiny=TINY).sites) == why
    if why is not None and "no tag ssd" in why:
        assert impossible(needs, World(tiny=TINY, hpc=HPC).sites) == why, "the nearest comes first"


def test_a_queue_that_no_site_has_or_that_is_for_others_is_refused_at_once() -> None:
    theirs = QueueFacts("theirs", NODE, auto=False, up=False, denied=True)
    world = World(lsf=per_job(queues=(SHORT, LONG, theirs)), new=per_job())

    def why(name: str, site: str | None = "lsf") -> str | None:
        return impossible(Needs(options=(("partition", name),), site=site), world.sites)

    assert why("nosuch") == "lsf has no queue nosuch, only long, short, theirs"
    assert why("theirs") == "the queue theirs of lsf is only for users among whom you are not"
    assert why("nosuch", None) is None and why("nosuch", "new") is None, "of those nobody knows the queues yet"
    assert why("long,short") is None and why("all.q@host") is None and why("lo*") is None
    (no,) = verdicts(
        want(1, 1, Needs(options=(("partition", "nosuch"),), site="lsf")), {"lsf": world.sites["lsf"]}, world.view()
    )
    assert (no.code, no.lasting) == ("no-queue", True)
    assert world.run([want(1, 1, Needs(options=(("partition", "nosuch"),), site="lsf"))]) == []


def test_impossible_without_sites() -> None:
    assert impossible(Needs(), {}) == "no site is configured"
    assert impossible(Needs(site="x"), {}) == "there is no site 'x'; the sites are: none"


def test_what_a_site_has_once() -> None:
    sites = World(s=SiteFacts(Amounts(8000), most=9, shared=(("db", 4),))).sites
    assert impossible(Needs(named=(("db", 4),)), sites) is None
    assert impossible(Needs(named=(("db", 5),)), sites) == "s has 4 db, 5 db are asked for"


# ---- how large, and how long -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "padded"), [(10, 110), (300, 400), (923, 1023), (924, 924), (5000, 5000)])
def test_small_memory_is_padded(given: int, padded: int) -> None:
    assert grouped(Needs(memory=given << 20)).memory == padded << 20


@pytest.mark.parametrize(("given", "rounded"), [(1, 1800), (1800, 1800), (1801, 3600), (7200, 7200)])
def test_times_are_rounded_up(given: int, rounded: int) -> None:
    assert grouped(Needs(time_s=given)).time_s == rounded


def test_what_is_not_given_stays_so() -> None:
    assert grouped(Needs()) == Needs()


def test_reservation_groups() -> None:
    assert reservation_group(Needs(memory=10 << 20, time_s=1), ("b", "a")) == "110:30:1:0~a,b"
    assert reservation_group(Needs(2500, memory=2000 << 20, time_s=7200, disk=20 << 30)) == "2000:120:2.5:20"
    equal = Needs(memory=300 << 20, time_s=1700), Needs(memory=300 << 20, time_s=60)
    assert reservation_group(equal[0]) == reservation_group(equal[1]) == "400:30:1:0"


@pytest.mark.parametrize(
    ("time_s", "site", "expected"),
    [
        (None, {}, None),
        (100, {}, None),
        (None, {"allocation_s": 7200}, 7200),
        (7200, {"allocation_s": 7200}, 7500),  # what is left once the runner is there must do
        (None, {"allocation_s": 3600, "job_s": 3600}, 3900),
        (9000, {"allocation_s": 7200}, 9300),
        (8000, {"allocation_s": 7200}, 9000),
        (9000, {"allocation_s": 7200, "time_most_s": 8000}, 8000),
        (100, {"mode": "direct"}, 1800),
        (1800, {"mode": "direct"}, 2100),  # it starts after its allocation, and is warned before its end
        (1500, {"mode": "direct", "time_most_s": 1600}, 1600),  # though 30 minutes are asked for otherwise
        (None, {"mode": "direct", "job_s": 600}, 900),
        (None, {"mode": "direct"}, None),
    ],
)
def test_how_long_an_allocation_is_asked_for(time_s: int | None, site: dict[str, object], expected: int | None) -> None:
    site = {"spare_s": 300, **site}
    facts = SiteFacts(NODE, **site)  # type: ignore[arg-type]
    assert allocation_time(Needs(time_s=time_s), facts, facts.time_most_s) == expected
    usual = expected if expected is not None or facts.mode == "runners" else 300  # what is asked for is stronger
    assert allocation_time(Needs(time_s=time_s), facts, facts.time_most_s, 300) == usual

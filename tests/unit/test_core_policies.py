"""Jobs are placed by the policy that they name; what was used is kept; a part that fails stops only its own jobs."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from core_world import World
from rota.core.shares import worth_now
from rota.core.state import Settings
from rota.core.stimuli import Submit
from rota.model.batch import BatchSpec, Template
from rota.model.errors import UsageError
from rota.model.needs import Amounts, Needs
from rota.model.patch import Patch
from rota.model.shape import Shape
from rota.schedule import filters, orders, scorers
from rota.schedule.fences import TooLongError, Watch, fenced
from rota.schedule.filters import Filter, No
from rota.schedule.orders import Order
from rota.schedule.policy import DEFAULT, POLICIES, PluginError, Policy
from rota.schedule.scorers import Scorer
from rota.schedule.view import Limit, Place, View, Want

ONE = Amounts(1000, 1 << 30, 1 << 30)
FAIR = Policy(order="fair_share", half_life_s=86_400)
T = Template(argv=("x",))


def world(**policies: Policy) -> World:
    return World(Settings(missing_s=1e9, policies={"default": DEFAULT, **policies}), site=False)


def add(world: World, by: str, policy: str, count: int = 1, **more: Any) -> int:
    template = replace(T, policy=policy, **more)
    world.keys += 1
    spec = BatchSpec(count, (template,))
    return int(world.step(Submit(at=world.at, by=by, spec=spec, key=f"k{world.keys}")).reply["batch"])


def running(world: World) -> list[int]:
    """Batches with a job that was leased, one for each job."""
    return sorted(number for number, batch in world.state.batches.items() for _ in range(len(batch.live)) if batch.live)


# ---- names ----------------------------------------------------------------------------------------------------------


def test_an_unknown_policy_is_refused_with_those_that_there_are() -> None:
    at = world(fair=FAIR)
    at.site(node=ONE)
    with pytest.raises(UsageError) as caught:
        add(at, "ann", "fiar")
    assert str(caught.value) == "there is no policy 'fiar'; there are default, fair"
    batch = add(at, "ann", "fair")
    with pytest.raises(UsageError) as caught:
        at.change("modify", str(batch), patch=Patch(policy="x"))
    assert "there is no policy 'x'" in str(caught.value)
    at.change("modify", str(batch), patch=Patch(policy="default"))
    assert at.state.shapes[at.state.batches[batch].shapes[-1]].shape.policy == "default"


def test_a_resource_that_nobody_offers_is_refused_with_those_that_are_and_where() -> None:
    at = world()
    at.site(node=replace(ONE, named=(("licence", 4),)), shared=(("burst", 2),))
    add(at, "ann", "default", needs=Needs(named=(("licence", 4),)))
    with pytest.raises(UsageError) as caught:
        add(at, "ann", "default", needs=Needs(named=(("license", 1),)))
    words = "no site offers the resource license; offered are: burst at local; licence at local (see rota sites; "
    assert str(caught.value).startswith(words) and "native_resources" in str(caught.value)
    batch = add(at, "ann", "default")
    with pytest.raises(UsageError) as caught:
        at.change("modify", str(batch), patch=Patch(named=(("x", 1),)))
    assert "no site offers the resource x; offered are: burst at local" in str(caught.value)
    with pytest.raises(UsageError) as caught:
        add(at, "ann", "default", needs=Needs(nodes=2))
    assert "2 are asked for" in str(caught.value)


def test_jobs_of_a_policy_that_is_gone_wait_and_say_so() -> None:
    at = world(fair=FAIR)
    at.site(node=ONE)
    runner = at.start_runner(capacity=ONE)
    lost, other = add(at, "ann", "fair"), add(at, "ann", "default")
    at.state.settings = replace(at.settings, policies={"default": DEFAULT})
    at.schedule()
    assert running(at) == [other] and runner.held
    (verdict,) = at.refusals(at.state.batches[lost].shapes[0])
    assert (verdict.filter, verdict.code) == ("policy", "unknown") and "rota modify --policy" in verdict.detail


# ---- orders ---------------------------------------------------------------------------------------------------------


def test_who_used_least_goes_first_and_a_restart_forgets_nothing() -> None:
    at = world(fair=FAIR)
    at.site(node=ONE)
    runner = at.start_runner(capacity=ONE)
    ann = add(at, "uid 1 via unix", "fair", 5)
    at.schedule()
    assert running(at) == [ann]
    bob = add(at, "uid 2 via unix", "fair", 2)
    turns = []
    for _ in range(5):
        (job,) = runner.held
        at.end(runner, job)
        at.schedule()
        turns += running(at)
        at.tick(1)
    assert turns == [bob, ann, bob, ann, ann], turns  # each has used ten seconds less, then more, than the other
    assert at.state.shares.keys() == {"uid 1", "uid 2"}
    assert sum(at.state.shares["uid 2"].values()) == 2 * 10_000
    before = worth_now(at.state, at.wall)
    at.checkpoint()
    again = at.rebuilt(False)
    assert again.shares == at.state.shares
    from rota.core.shares import recall

    recall(again)
    assert again.soft.worth == pytest.approx(at.state.soft.worth)
    assert set(before) == {("fair", "uid 1"), ("fair", "uid 2")}


def test_use_is_counted_for_the_name_or_the_account() -> None:
    at = world(name=replace(FAIR, share_by="name"), account=replace(FAIR, share_by="account"))
    at.site(node=ONE)
    number = add(at, "ann", "name")
    assert at.state.batches[number].templates[0].share == "no name"
    number = add(at, "ann", "account", needs=Needs(options=(("account", "physics"),)))
    assert at.state.batches[number].templates[0].share == "account physics"
    number = add(at, "ann", "default", share="somebody")
    assert at.state.batches[number].templates[0].share == ""  # whatever a client says


def test_use_fades_by_its_half_life() -> None:
    at = world(fair=FAIR, slow=replace(FAIR, half_life_s=30 * 86_400))
    from rota.core.shares import apply_spent, recall
    from rota.model.events import Spent

    apply_spent(at.state, Spent(0, [("old", 8_000_000)]))
    apply_spent(at.state, Spent(72, [("new", 2_000_000)]))  # three days later
    recall(at.state)
    worth = at.state.soft.worth
    assert worth["fair", "new"] - worth["fair", "old"] == pytest.approx(1.0)  # 8 are worth 1 after three half-lives
    assert worth["slow", "old"] > worth["slow", "new"]
    apply_spent(at.state, Spent(31 * 24, [("old", 1)]))
    assert list(at.state.shares["old"]) == [31 * 24]


def test_waiting_counts_as_priority() -> None:
    at = world(ageing=Policy(order="ageing"))
    at.site(node=ONE)
    at.mode("paused")
    early = add(at, "ann", "ageing")
    at.tick(1000)
    urgent = add(at, "ann", "ageing", priority=1)
    at.tick(7200)
    late = add(at, "ann", "ageing", priority=1)
    runner = at.start_runner(capacity=ONE)
    at.mode("serving")
    order = []
    for _ in range(3):
        at.schedule()
        (job,) = runner.held
        order.append(job[0])
        at.end(runner, job)
    assert order == [urgent, early, late]


def test_the_first_that_came_gets_the_most_it_asked_for_and_who_does_not_fit_holds_nobody_up() -> None:
    at = world(qcg=POLICIES["qcg"])
    at.site(node=replace(ONE, cores=8000))
    at.mode("paused")
    first = add(at, "ann", "qcg", needs=Needs(2000, cores_most=5000))
    large = add(at, "ann", "qcg", needs=Needs(4000), priority=9)
    rest = add(at, "ann", "qcg", needs=Needs(1000, cores_most=16_000))
    with pytest.raises(UsageError, match="can never run"):
        add(at, "ann", "qcg", needs=Needs(9000, cores_most=16_000))
    runner = at.start_runner(capacity=replace(ONE, cores=8000))
    at.mode("serving")
    at.schedule()
    got = {number: slot.cores for number in (first, rest) for slot in slots(at, number)}
    assert got == {first: 5000, rest: 3000}
    assert running(at) == [first, rest]
    for job in list(runner.held):
        at.end(runner, job)
    at.schedule()
    assert running(at) == [large]


def slots(world: World, number: int) -> list[Amounts]:
    """What the running jobs of a batch have."""
    return [live.slot.amounts for live in world.state.batches[number].live.values() if live.slot is not None]


def test_policies_take_turns_by_their_next_jobs() -> None:
    at = world(fair=FAIR)
    at.site(node=ONE)
    at.mode("paused")
    numbers = [add(at, "ann", policy, priority=priority) for policy, priority in PLAN]
    runner = at.start_runner(capacity=ONE)
    at.mode("serving")
    order = []
    for _ in PLAN:
        at.schedule()
        (job,) = runner.held
        order.append(numbers.index(job[0]))
        at.end(runner, job)
    assert order == [2, 3, 0, 1]


PLAN = [("default", 0), ("fair", 0), ("default", 9), ("fair", 5)]


@pytest.mark.parametrize(("pick", "counts"), [("best", {4, 0}), ("round_robin", {2})])
def test_picks_at_nodes(pick: str, counts: set[int]) -> None:
    at = world(p=Policy(pick=pick))
    at.site(node=replace(ONE, cores=4000), most=2)
    add(at, "ann", "p", 8)
    runners = [at.start_runner(name, replace(ONE, cores=4000)) for name in ("r1", "r2")]
    at.change("kill")
    for runner in runners:
        at.report(runner, disclaimed=list(runner.held))
    add(at, "ann", "p", 4)
    at.schedule()
    assert {len(runner.held) for runner in runners} == counts


# ---- parts that fail ------------------------------------------------------------------------------------------------


@pytest.fixture
def entered() -> Iterator[Any]:
    """Enters parts of others, in their fences; they are taken out again."""
    watch, names = Watch(), []

    def enter(part: Any, name: str = "theirs") -> Watch:
        kind = type(part).__name__.lower()
        registry: Any = {"filter": filters, "scorer": scorers, "order": orders}[kind].BUILT_IN
        registry[name] = fenced(kind, name, part, watch)
        names.append((registry, name))
        return watch

    yield enter
    for registry, name in names:
        del registry[name]


def raising(*arguments: Any) -> Any:
    raise RuntimeError("no\nidea")


def test_a_filter_that_raises_says_no_to_its_own_jobs_only(entered: Any) -> None:
    entered(Filter("theirs", raising))
    at = world(p=Policy(filters=("theirs", *DEFAULT.filters)))
    at.site(node=ONE)
    at.start_runner(capacity=ONE)
    parked, other = add(at, "ann", "p"), add(at, "ann", "default")
    at.schedule()
    assert running(at) == [other]
    (verdict,) = at.refusals(at.state.batches[parked].shapes[0])
    assert (verdict.filter, verdict.code) == ("theirs", "plugin")
    assert verdict.detail == "the filter 'theirs' raised RuntimeError: no idea"
    assert not at.state.soft.disabled


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (Scorer(raising), "the scorer 'theirs' of the policy 'p' raised RuntimeError: no idea"),
        (Scorer(lambda *_: 0.0), "answered 0.0, which is not a number above 0"),
        (Order(raising), "the order 'theirs' of the policy 'p' raised RuntimeError"),
        (Order(lambda *_: None), "answered None, which is not a tuple"),
        (Order(lambda *_: sys.exit(1)), "raised SystemExit: 1"),  # type: ignore[arg-type,return-value]
    ],
)
def test_any_other_part_that_fails_is_not_asked_again(entered: Any, part: Any, words: str) -> None:
    entered(part)
    broken = Policy(scorers={"theirs": 1.0}) if isinstance(part, Scorer) else Policy(order="theirs")
    at = world(p=broken)
    at.site(node=replace(ONE, cores=4000), most=2)
    for name in ("r1", "r2"):
        add(at, "ann", "default", 8)
        at.start_runner(name, replace(ONE, cores=4000))
    at.change("kill")
    for runner in at.runners.values():
        at.report(runner, disclaimed=list(runner.held))
    parked, other = add(at, "ann", "p"), add(at, "ann", "default")
    at.schedule()
    assert running(at) == [other]
    (verdict,) = at.refusals(at.state.batches[parked].shapes[0])
    assert verdict.code == "plugin" and words in verdict.detail, verdict
    at.change("modify", str(parked), patch=Patch(policy="default"))
    at.schedule()
    assert running(at) == [parked, other]


def test_a_part_that_is_given_up_leaves_what_was_placed(entered: Any) -> None:
    watch: Watch

    def hangs(shape: Any, place: Any, view: Any) -> None:
        assert watch.inside == ("filter", "theirs")
        raise TooLongError("did not answer for 2 s")  # as the timer does

    watch = entered(Filter("theirs", hangs))
    at = world(p=Policy(filters=("theirs", *DEFAULT.filters)))
    at.site(node=replace(ONE, cores=4000))
    at.start_runner(capacity=replace(ONE, cores=4000))
    first, parked, last = (
        add(at, "ann", "default", priority=9),
        add(at, "ann", "p", priority=5),
        add(at, "ann", "default"),
    )
    at.schedule()
    assert running(at) == [first, last] and watch.inside is None
    assert at.state.soft.disabled == {("filter", "theirs"): "did not answer for 2 s"}
    (verdict,) = at.refusals(at.state.batches[parked].shapes[0])
    assert "did not answer for 2 s; it is not asked again until rota is started anew" in verdict.detail


def test_fences_let_good_answers_through(entered: Any) -> None:
    no = No("far", "too far", False, ())
    entered(Filter("theirs", lambda shape, place, view: no if place else None))
    assert filters.BUILT_IN["theirs"].check(None, 1, None) is no  # type: ignore[arg-type]
    assert filters.BUILT_IN["theirs"].check(None, 0, None) is None  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        fenced("filter", "x", Filter, Watch())
    with pytest.raises(PluginError):
        fenced("order", "x", Order(raising), Watch()).key(None, None)


@pytest.mark.parametrize(
    "change",
    [
        lambda want, view: setattr(view, "wall", 0.0),
        lambda want, view: view.limits.clear(),
        lambda want, view: view.places.clear(),
        lambda want, view: setattr(view.places[0], "status", "SERVING"),
        lambda want, view: setattr(view.places[0].location, "tags", ("x",)),
        lambda want, view: setattr(view.ledger, "free", None),
        lambda want, view: view.facts["shares"].update(x=1),
        lambda want, view: view.facts.update(x=1),
        lambda want, view: setattr(want.shape, "policy", "x"),
    ],
)
def test_what_parts_of_others_are_shown_cannot_be_changed(change: Any) -> None:
    at = world()
    at.site(node=ONE)
    at.start_runner(capacity=ONE)
    node = at.state.ledger.locations[at.state.runners["r1"].location]
    place = Place(node, "r1", "SERVING", 0)
    view = View(0.0, 0.0, "serving", [place], at.state.ledger.view, {"l": Limit(1, 0)}, facts=at.state.soft.facts)
    with pytest.raises(PluginError) as caught:
        fenced("order", "theirs", Order(change), Watch()).key(Want(0, Shape(Needs()), 1, 0, 1), view)
    assert "raised AttributeError" in str(caught.value) or "raised TypeError" in str(caught.value)
    want = Want(0, Shape(Needs()), 1, 0, 1)
    fenced("order", "theirs", Order(lambda want, view: setattr(want, "ready", 9) or (1,)), Watch()).key(want, view)
    assert want.ready == 1


@pytest.mark.parametrize("level", ["node", "queue"])
def test_a_part_that_fails_later_stops_only_its_own_jobs(entered: Any, level: str) -> None:
    """Whatever is remembered of jobs that it was asked about before."""
    fails: list[int] = []

    def key(want: Any, view: Any) -> tuple[int, int]:
        if fails:
            raise RuntimeError("now")
        return (want.first, want.shape_id)

    def score(shape: Any, place: Any, view: Any) -> float:
        if fails:
            raise RuntimeError("now")
        return 1.0

    entered(Order(key), "later")
    entered(Scorer(score, (level,)), "later")
    at = world(o=Policy(order="later"), s=Policy(scorers={"later": 1.0}))
    at.site(node=ONE, most=3)
    for policy in ("o", "s", "default"):
        add(at, "ann", policy, 9, needs=Needs(500))
    runners = [at.start_runner(name, ONE) for name in ("r1", "r2")]
    at.schedule()
    fails.append(1)
    for _ in range(20):
        for runner in runners:
            for job in list(runner.held):
                at.end(runner, job)
        add(at, "ann", "o", needs=Needs(700))
        at.schedule()
    assert ("order", "later") in at.state.soft.disabled
    assert at.counts(3) == {"COMPLETED": 9}
    assert at.counts(1)["PENDING"] and at.counts(4) == {"PENDING": 1}

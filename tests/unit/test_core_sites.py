"""Several sites in the core: a batch is split, what does not start goes elsewhere, nothing runs twice."""

import random

import pytest
from msgspec.structs import replace

from core_world import World, cores
from rota.core.effects import Allocate
from rota.core.explain import Records, verdicts
from rota.core.state import Settings
from rota.core.stimuli import AllocationSeen, Ended, FactSeen, LastWords, Report, Written
from rota.manager.answers.places import allocation_rows
from rota.model.allocation import Outcome
from rota.model.batch import Template
from rota.model.events import AllocationMoved
from rota.model.needs import Amounts, Needs
from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.shares import share_tree
from rota.schedule.policy import POLICIES, SITES, Policy

NODE = Amounts(4000, 8 << 30)
SETTINGS = Settings(missing_s=1e9, rebroker_s=600, policies={**POLICIES, "default": SITES})


def sites(settings: Settings = SETTINGS, mode: str = "direct", **of_a: object) -> World:
    world = World(settings, site=False)
    sites_again(world, mode, **of_a)
    return world


def sites_again(world: World, mode: str = "direct", **of_a: object) -> None:
    """Both say what they offer."""
    world.site("a", NODE, most=100, mode=mode, whole=False, array_most=50, directory="/a", **of_a)
    world.site("b", NODE, most=100, mode=mode, whole=False, array_most=50, directory="/b")


def waiting(world: World, site: str, state: str = "PENDING") -> list[str]:
    return [a.id for a in world.state.allocations.values() if (a.site, a.state) == (site, state)]


def pend(world: World) -> None:
    for name in [a.id for a in world.state.allocations.values() if a.state == "SUBMITTING"]:
        world.step(AllocationSeen(at=world.at, id=name, verb="pend", native_id=f"n{name}"))


def finish(world: World, name: str, code: int = 0) -> None:
    """A direct job runs, and leaves its report."""
    world.step(AllocationSeen(at=world.at, id=name, verb="run", native_id=f"n{name}", host="h"))
    allocation = world.state.allocations[name]
    runner = world.state.runners[f"{allocation.tag}.{allocation.element}"]
    ((number, pos),) = runner.jobs
    batch = world.state.batches[number]
    row = Ended(number, batch.index(pos), batch.attempts[pos], code, None, None, 0.0, 1.0, 0.5, 1 << 20, None, None)
    world.step(Report(at=world.at, runner=runner.id, session=1, seq=runner.seq + 1, got=0, clock=0, ended=[row]))
    world.step(AllocationSeen(at=world.at, id=name, verb="complete", outcome=Outcome(exit_code=code)))


def gone(world: World, names: list[str]) -> None:
    """A site says that what was to end has ended, and had not started."""
    for name in names:
        world.step(
            AllocationSeen(at=world.at, id=name, verb="abort", reason="CANCELLED", outcome=Outcome(why="cancelled"))
        )


def tick(world: World, seconds: float) -> None:
    """Time passes in steps, as for a manager."""
    for _ in range(4):
        world.tick(seconds / 4)
    world.schedule()


def test_what_is_over_has_an_end_and_grows_no_older() -> None:
    world = sites()
    world.submit(2, cores(1))
    world.schedule()
    pend(world)
    ran, never = [each.id for each in world.state.allocations.values()][:2]
    ended = world.wall
    finish(world, ran)
    gone(world, [never])
    learned = dict(world.state.waited)
    world.tick(3600)
    rows = {row["id"]: row for row in allocation_rows(world.state, lambda _: None, world.at)}
    assert [rows[name]["ended"] for name in (ran, never)] == [ended, ended]
    assert all(rows[name]["age_s"] == ended - rows[name]["submitted"] for name in (ran, never))
    assert learned == world.state.waited and len(learned) == 1, "what never started tells nothing of how long one waits"


def test_a_batch_is_split_by_weight_in_few_submissions() -> None:
    world = sites(cost=1.0)
    batch = world.submit(30, cores(1))
    world.schedule()
    pend(world)
    assert (len(waiting(world, "a")), len(waiting(world, "b"))) == (10, 20), "b costs nothing, a one per hour"
    assert world.counts(batch) == {"STARTING": 30}
    submits = [effect for effect in world.effects if isinstance(effect, Allocate) and effect.what == "submit"]
    assert len(submits) == 2, "an array for each site"
    world.check_restart()


def test_no_site_is_flooded() -> None:
    world = sites()
    batch = world.submit(100, cores(1))
    world.schedule()
    pend(world)
    world.schedule()
    assert len(waiting(world, "a")) == len(waiting(world, "b")) == 20 and world.counts(batch)["PENDING"] == 60
    for name in waiting(world, "a")[:15]:
        world.step(AllocationSeen(at=world.at, id=name, verb="run", native_id=f"n{name}", host="h"))
    world.schedule()
    pend(world)
    assert len(waiting(world, "a")) == 30, "twice as many as run there"


def test_what_does_not_start_goes_to_the_other_site_and_runs_once() -> None:
    world = sites()
    batch = world.submit(20, cores(1))
    world.schedule()
    pend(world)
    stuck = waiting(world, "a")
    assert len(stuck) == 10
    for name in waiting(world, "b"):
        finish(world, name)
    tick(world, 300)
    assert waiting(world, "a") == stuck, "not for so long"
    tick(world, 600)
    assert waiting(world, "a", "KILLING") == stuck and world.counts(batch) == {"COMPLETED": 10, "STARTING": 10}
    assert not waiting(world, "b") and not waiting(world, "b", "SUBMITTING"), "nothing before a has let go of them"
    kills = [event for event in world.events() if isinstance(event, AllocationMoved) and event.verb == "kill"]
    assert len(kills) == 10 and all("brokered again: waited 10m" in (kill.reason or "") for kill in kills)
    gone(world, stuck)
    world.schedule()
    pend(world)
    assert len(waiting(world, "b")) == 10 and not waiting(world, "a"), "that a did not start them is remembered"
    assert world.state.soft.fares[batch, "a"].returned == 10
    world.check_restart()
    for name in waiting(world, "b"):
        finish(world, name)
    assert world.counts(batch) == {"COMPLETED": 20}
    states = [row.state for row in world.results]
    assert states.count("COMPLETED") == 20 and len(states) == 30, "no attempt was lost or failed"
    back = [row for row in world.results if row.state == "RETRIED"]
    assert len(back) == 10 and all(row.reason == "brokered" and "waited 10m" in (row.note or "") for row in back)


@pytest.mark.parametrize("from_start", [False, True])
def test_how_long_queues_kept_one_waiting_outlives_a_restart(from_start: bool) -> None:
    world = sites()
    world.submit(20, cores(1))
    world.schedule()
    pend(world)
    slow, fast = waiting(world, "a"), waiting(world, "b")
    for name in fast:
        finish(world, name)
    world.tick(300)
    for name in slow[:5]:
        finish(world, name)
    if not from_start:
        world.checkpoint()
    finish(world, slow[5])
    known = world.state.soft.facts["stats"]
    assert known["a", ""].wait_s == pytest.approx(300, rel=0.1) and known["b", ""].wait_s < 10
    world.seed += 1  # a manager that starts draws anew
    world.restart(from_start)
    sites_again(world)
    told = world.state.soft.facts["stats"]
    assert told["a", ""] == known["a", ""] and told["b", ""].wait_s == known["b", ""].wait_s
    batch = world.submit(10, cores(1))
    world.schedule()
    parts = [len(waiting(world, site, "SUBMITTING")) for site in ("a", "b")]
    assert parts[1] > parts[0], "a kept them waiting, and still has some"
    assert world.counts(batch)["STARTING"] == sum(parts) > 5


def test_what_started_meanwhile_is_not_given_to_another() -> None:
    """Called back too late: the site says that it runs; it counts as lost only when the site says it is over."""
    world = sites()
    batch = world.submit(2, cores(1))
    world.schedule()
    pend(world)
    (stuck,) = waiting(world, "a")
    (other,) = waiting(world, "b")
    finish(world, other)
    tick(world, 900)
    assert waiting(world, "a", "KILLING") == [stuck]
    allocation = world.state.allocations[stuck]
    runner = world.state.runners[f"{allocation.tag}.{allocation.element}"]
    ((number, pos),) = runner.jobs
    kept = world.state.batches[number]
    row = Ended(number, kept.index(pos), kept.attempts[pos], 0, None, None, 0.0, 1.0, 0.5, 1 << 20, None, None)
    world.step(Report(at=world.at, runner=runner.id, session=1, seq=runner.seq + 1, got=0, clock=0, ended=[row]))
    gone(world, [stuck])
    world.schedule()
    assert world.counts(batch) == {"COMPLETED": 2} and len(world.state.allocations) == 2


def test_who_stays() -> None:
    for more in ({"paused": True}, {"reassign": False}):
        world = sites()
        world.submit(2, cores(1))
        world.schedule()
        pend(world)
        world.site("a", NODE, most=100, mode="direct", whole=False, directory="/a", **more)
        tick(world, 6 * 3_600)
        assert len(waiting(world, "a")) == 1, more
    world = sites()
    world.submit(2, Template(argv=("true",), needs=Needs(site="a")))
    world.schedule()
    pend(world)
    tick(world, 6 * 3_600)
    assert len(waiting(world, "a")) == 2, "its user wants it there"
    world = sites(Settings(missing_s=1e9, rebroker_s=None, policies=SETTINGS.policies))
    world.submit(2, cores(1))
    world.schedule()
    pend(world)
    tick(world, 6 * 3_600)
    assert len(waiting(world, "a")) == 1, "it is switched off"


def test_a_site_that_keeps_failing_gets_one_at_a_time() -> None:
    world = sites()
    batch = world.submit(200, cores(1), max_failures=1000)
    for _ in range(3):
        world.schedule()
        pend(world)
        for name in waiting(world, "a"):
            finish(world, name, code=1)
        for name in waiting(world, "b"):
            finish(world, name)
    world.schedule()
    pend(world)
    assert len(waiting(world, "a")) == 1 and len(waiting(world, "b")) > 10
    assert world.counts(batch)["COMPLETED"] >= 60, "the other has the rest"


def test_runners_that_do_not_come_are_called_back_too() -> None:
    world = sites(mode="runners")
    world.submit(8, cores(1))
    world.schedule()
    pend(world)
    before = waiting(world, "a")
    assert len(before) == len(waiting(world, "b")) == 4
    for name in waiting(world, "b"):
        world.step(AllocationSeen(at=world.at, id=name, verb="run", native_id=f"n{name}"))
    tick(world, 900)
    assert set(waiting(world, "a", "KILLING")) == set(before)
    pend(world)
    assert len(waiting(world, "b")) >= 1 and not waiting(world, "a"), "more runners are asked of b instead"


def test_too_many_of_a_share_in_one_queue_go_elsewhere() -> None:
    thresholds = {"FAST_REBRO_THRESHOLD_NQUEUE_": 5, "FAST_REBRO_THRESHOLD_NQUEUE_FRAC": 0.3}
    world = sites(Settings(missing_s=1e9, rebroker_s=1e9, policies=SETTINGS.policies, thresholds=thresholds))
    world.submit(20, cores(1))
    world.schedule()
    pend(world)
    for name in waiting(world, "b"):
        finish(world, name)
    tick(world, 60)
    assert len(waiting(world, "a", "KILLING")) == 5, "10 wait and none runs: 5 more than 5"


def test_two_days_are_enough() -> None:
    """The table of timeouts, for what waits: two days, whatever is expected elsewhere; urgent ones sooner."""
    for priority, hours in ((0, 49), (200, 5)):
        world = sites(Settings(missing_s=1e9, rebroker_s=1e5 * 86_400, policies=SETTINGS.policies))
        world.submit(1, Template(argv=("true",), priority=priority))
        world.schedule()
        pend(world)
        (name,) = waiting(world, "a")
        tick(world, (hours - 2) * 3600)
        assert waiting(world, "a") == [name] or priority
        tick(world, 3 * 3600)
        reason = world.state.allocations[name].reason or ""
        assert world.state.allocations[name].state == "KILLING" and "brokered again: was activated at a for" in reason


def test_shares_of_a_tree_come_to_their_targets() -> None:
    """Three shares with more than enough to do: what they get over a day is what the tree says, within 2 points."""
    tree = share_tree({
        "prod": {"value": 80, "mc": {"value": 3, "match": {"name": "mc"}},
                 "data": {"value": 1, "match": {"name": "data"}}},
        "users": {"value": 20, "match": {"name": "u"}},
    })  # fmt: skip
    policies = {**POLICIES, "default": Policy(order="shares")}
    world = World(Settings(missing_s=1e9, policies=policies, shares=tree), check=False, site=False)
    world.site("local", Amounts(10_000, 8 << 30))
    names = {world.submit(900, cores(1), name=name): name for name in ("u", "data", "mc")}
    assert [world.state.batches[number].templates[0].share for number in names] == ["users", "data", "mc"]
    runner = world.start_runner("r1", Amounts(10_000, 8 << 30))
    world.schedule()
    chance, given = random.Random(4), dict.fromkeys(names.values(), 0)
    for _ in range(144):
        world.tick(600)
        world.touch(runner)
        for job in [job for job in runner.held if chance.random() < 0.3]:
            given[names[job[0]]] += 1
            row = world.row(job)._replace(started=world.wall - 2000, ended=world.wall)
            world.report(runner, ended=[row])
        world.schedule()
    total = sum(given.values())
    parts = {name: 100 * count / total for name, count in given.items()}
    assert total > 350 and parts == pytest.approx({"mc": 60, "data": 20, "u": 20}, abs=2.0), parts


def test_what_starts_just_as_it_is_called_back_and_is_killed_by_that_has_not_failed() -> None:
    world = sites()
    batch = world.submit(2, cores(1))
    world.schedule()
    pend(world)
    (stuck,) = waiting(world, "a")
    finish(world, waiting(world, "b")[0])
    tick(world, 900)
    allocation = world.state.allocations[stuck]
    runner = world.state.runners[f"{allocation.tag}.{allocation.element}"]
    ((number, pos),) = runner.jobs
    job = (number, world.state.batches[number].index(pos), world.state.batches[number].attempts[pos])
    world.collecting = False
    world.step(AllocationSeen(at=world.at, id=stuck, verb="abort", outcome=Outcome(why="cancelled"), host="h"))
    killed = Written(runner.id, [world.row(job, None, 15, "signal")])
    world.step(LastWords(at=world.at, id=stuck, host="h", written=[killed]))
    world.schedule()
    pend(world)
    assert world.counts(batch) == {"COMPLETED": 1, "STARTING": 1} and len(waiting(world, "b")) == 1
    assert world.state.batches[batch].failures == {}


def test_no_more_is_asked_for_a_share_than_its_bounds_allow() -> None:
    tree = share_tree({"sim": {"value": 3, "match": {"name": "sim"}}, "ana": {"value": 1, "match": {"name": "ana"}}})
    policy = replace(SITES, order="shares")
    world = sites(Settings(missing_s=1e9, policies={**POLICIES, "default": policy}, shares=tree))
    told = Thresholds("doc", {"NQUEUECAP_sim": 7, "NRUNNINGCAP_sim": 9})
    world.step(FactSeen(at=world.at, name="broker", key="thresholds", value=told))
    batch = world.submit(40, cores(1), name="sim")
    other = world.submit(10, cores(1), name="ana")
    world.schedule()
    pend(world)
    assert world.counts(batch) == {"PENDING": 33, "STARTING": 7} and world.counts(other) == {"STARTING": 10}
    shape = world.state.shapes[world.state.batches[batch].shapes[0]]
    found = {row.code: row.detail for row in verdicts(world.state, shape, world.at, Records())}
    assert "of the share sim 7 wait and 0 run" in found["throttled"], found
    mine = [a.id for a in world.state.allocations.values() if a.shape == shape.id]
    for name in mine[:4]:
        world.step(AllocationSeen(at=world.at, id=name, verb="run", native_id=f"n{name}", host="h"))
    world.schedule()
    assert world.counts(batch)["PENDING"] == 31, "nine may run, so two more may wait"
    for name in mine[:4]:
        finish(world, name)
    world.schedule()
    assert world.counts(batch) == {"PENDING": 29, "STARTING": 7, "COMPLETED": 4}
    made = world.state.soft.facts["made"]["sim"]
    world.seed += 1
    world.restart()
    assert world.state.soft.facts["made"]["sim"] == made, "a restart counts them anew"

"""Pauses by holder, pruning, and numbers after a backup was put back: rules, restarts, and what stays consistent."""

import contextlib
import random

import pytest

from core_world import World, cores, lease_all
from rota.core.evolve import evolve
from rota.core.state import Settings, State
from rota.core.stimuli import Prune, SetMode
from rota.model import events as ev
from rota.model.errors import NotFoundError, UsageError
from rota.model.selector import parse_selector


def pause(world: World, holder: str, reason: str = "") -> dict:
    return world.step(SetMode(at=world.at, by="ann", mode="paused", holder=holder, reason=reason)).reply


def resume(world: World, holder: str = "user", everyone: bool = False) -> dict:
    return world.step(SetMode(at=world.at, by="ann", mode="serving", holder=holder, everyone=everyone)).reply


def prune(world: World, *words: str, **more) -> dict:
    return world.step(Prune(at=world.at, by="ann", selector=parse_selector(words), **more)).reply


def settled(world: World, count: int = 1, **more) -> int:
    batch = world.submit(count, **more)
    world.change("kill", str(batch))
    return batch


# ---- pauses ---------------------------------------------------------------------------------------------------------


def test_every_holder_has_to_resume() -> None:
    world = World()
    assert pause(world, "tool", "copying")["state"] == "paused"
    assert [row["as"] for row in pause(world, "user")["pauses"]] == ["tool", "user"]
    assert resume(world)["state"] == "paused"
    world.submit()
    assert not world.schedule().events
    world.checkpoint()
    world.restart()
    assert world.state.mode == "paused"
    assert world.state.pauses == {"tool": (world.wall, "copying", "ann")}
    world.check_restart()
    assert resume(world, "nobody")["state"] == "paused"
    assert resume(world, "tool")["state"] == "serving"
    assert world.schedule().events
    world.check_restart()


def test_a_pause_keeps_its_time_and_all_ends_all() -> None:
    world = World()
    since = pause(world, "a")["pauses"][0]["since"]
    world.tick(50)
    assert pause(world, "a", "now I know why")["pauses"][0] == {
        "as": "a", "since": since, "reason": "now I know why", "by": "ann",
    }  # fmt: skip
    pause(world, "b")
    assert resume(world, everyone=True) == {"state": "serving", "pauses": []}
    assert not world.step(SetMode(at=world.at, mode="serving")).events, "nothing to say, no event"


def test_drain_and_pauses() -> None:
    world = World()
    pause(world, "tool")
    assert world.mode("draining").reply["state"] == "draining"
    assert pause(world, "user")["state"] == "draining", "a drain goes on"
    assert resume(world, "")["state"] == "paused", "what a manager that stops says: only the drain is over"
    assert list(world.state.pauses) == ["tool", "user"]
    world.check_restart()


def test_an_older_log_is_read() -> None:
    state = State(Settings())
    evolve(state, ev.ManagerMoved("paused", "ann"))
    assert (state.mode, list(state.pauses)) == ("paused", ["user"])
    evolve(state, ev.ManagerMoved("draining", "ann"))
    assert list(state.pauses) == ["user"]
    evolve(state, ev.ManagerMoved("serving", "ann"))
    assert state.pauses == {}


def test_too_many_holders() -> None:
    world = World(check=False)
    for number in range(1_000):
        pause(world, f"h{number}")
    with pytest.raises(UsageError, match="1000 pauses"):
        pause(world, "one more")
    pause(world, "h3")


# ---- pruning --------------------------------------------------------------------------------------------------------


def test_settled_batches_go_and_numbers_are_not_used_again() -> None:
    world = World()
    first, second = settled(world, 3, name="x", at_once=2), settled(world)
    live = world.submit(name="x")
    world.checkpoint()
    reply = prune(world)
    assert (reply["batches"], reply["jobs"], reply["sample"]) == (2, 4, ["1", "2"])
    assert reply["skipped"] == [{"reason": "is not settled", "batches": 1}]
    assert list(world.state.batches) == [live]
    assert world.state.names == {"x": [live]}
    assert f"#{first}" not in world.state.limits
    assert "k1" not in world.state.keys
    world.check_restart()
    world.checkpoint()
    world.check_restart()
    world.restart()
    assert world.submit() == live + 1
    for number in (first, second):
        with pytest.raises(NotFoundError, match=f"batch {number} was pruned on 1970-01-01"):
            world.change("kill", str(number))
    with pytest.raises(UsageError, match="--after 1: batch 1 was pruned on 1970-01-01"):
        world.submit(after=["1"])
    with pytest.raises(NotFoundError, match="there is no batch 99"):
        world.change("kill", "99")


def test_dependents_keep_what_they_depend_on() -> None:
    world = World()
    first = settled(world, 2)
    second = settled(world, after=[(f"{first}.1", "any")])
    waiting = world.submit(after=[(str(second), "any")], not_before=world.wall + 1000)
    assert prune(world, str(first))["batches"] == 0, "batch 2 stays, and depends on it"
    assert prune(world)["batches"] == 0, "batch 3 has not run"
    world.change("kill", str(waiting))
    assert prune(world, str(first), str(second))["skipped"][0]["reason"].startswith("is needed by a batch")
    assert prune(world)["batches"] == 3
    assert not world.state.waiters
    assert not world.state.timers
    world.check_restart()


def test_the_last_of_a_name_stays_for_who_depends_on_it() -> None:
    world = World()
    nightly = [settled(world, name="nightly")]
    for _ in range(4):
        nightly.append(settled(world, name="nightly", after=[("@nightly", "any")]))
    reply = prune(world, "@nightly", keep=1)
    assert reply["batches"] == 3
    assert list(world.state.batches) == nightly[-2:], "the newest, and the one that it depends on"
    world.change("retry", str(nightly[-1]))
    assert world.job(nightly[-1], 1) == "PENDING", "a retry finds what it depends on"
    world.check_restart()


def test_states_ages_and_single_jobs() -> None:
    world = World()
    done, killed = world.submit(2), settled(world)
    runner = world.start_runner()
    for job in lease_all(world, runner):
        world.end(runner, job)
    assert world.counts(done) == {"COMPLETED": 2}
    world.touch(runner)
    assert prune(world, ":completed", dry_run=True)["sample"] == [str(done)]
    assert prune(world, ":aborted", dry_run=True)["sample"] == [str(killed)]
    assert prune(world, older_than_s=60)["batches"] == 0
    world.tick(100)
    assert prune(world, older_than_s=60, young=frozenset((done,)), dry_run=True)["sample"] == [str(killed)]
    assert prune(world, older_than_s=60, keep=2)["batches"] == 0
    with pytest.raises(UsageError, match="whole batches"):
        prune(world, f"{done}.1")
    assert set(world.state.batches) == {done, killed}, "nothing of all this has changed anything"


def test_what_a_runner_may_still_be_told_of_stays() -> None:
    world = World()
    batch = world.submit(1)
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    runner.got = 0  # it has not confirmed the lease when its end is reported
    world.end(runner, job)
    assert prune(world)["skipped"] == [{"reason": "was leased a moment ago", "batches": 1}]
    runner.got = 1
    world.touch(runner)
    assert prune(world)["batches"] == 1
    late = world.end(runner, job)
    assert not late.results
    assert batch not in world.state.batches
    world.check_restart()


@pytest.mark.parametrize("how", ["bye", "allocation"])
def test_a_runner_that_is_gone_need_not_be_told_of_what_was_given_up(how: str) -> None:
    world = World(Settings(losses=0))
    world.submit(1, cores(1, rerunnable=True))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.tick(700)
    assert world.states(1) == ["FAILED"] and world.state.soft.contacts["r1"].given_up == {job: None}
    assert prune(world)["skipped"] == [{"reason": "was leased a moment ago", "batches": 1}]
    world.bye(runner) if how == "bye" else world.allocation(runner.allocation or "", "complete")
    assert world.state.runners["r1"].state in ("CLOSED", "EXPIRED")
    assert prune(world)["batches"] == 1


def test_many_are_pruned_in_parts() -> None:
    world = World(check=False)
    for _ in range(2_500):
        settled(world)
    replies = []
    while not replies or replies[-1]["more"]:
        replies.append(prune(world))
    assert [reply["batches"] for reply in replies] == [1_000, 1_000, 500]
    assert world.state.pruned == [(1, 2_500, world.wall)], "one row for all of a day"


def test_days_of_pruning_stay_a_short_list() -> None:
    world = World(check=False)
    for day in range(3):
        for _ in range(3):
            settled(world)
            prune(world)
        if day < 2:
            world.wall += 86_400
    keep = world.submit()
    settled(world)
    prune(world)
    assert [(first, last) for first, last, _ in world.state.pruned] == [(1, 3), (4, 6), (7, 9), (11, 11)]
    assert world.state.pruned_at(keep) is None


@pytest.mark.parametrize("seed", range(12))
def test_at_random_with_restarts(seed: int) -> None:
    """Submissions with dependencies, ends, prunings, checkpoints and restarts in any order: always consistent."""
    rng = random.Random(seed)
    world = World(Settings(backoff_first_s=1))
    runner = world.start_runner()
    for _ in range(150):
        there = list(world.state.batches)
        what = rng.choice(("add", "add", "run", "run", "prune", "retry", "checkpoint", "restart", "kill"))
        if what == "add":
            after = [(str(rng.choice(there)), rng.choice(("any", "success")))] if there and rng.random() < 0.5 else []
            if rng.random() < 0.2:
                after.append((f"@{rng.choice('ab')}", "any"))
            more = {"after": after} if after else {}
            name = rng.choice(("", "", "a", "b"))
            at_once = rng.choice((None, None, 1))
            template = cores(1, retries=rng.randint(0, 1))
            with contextlib.suppress(UsageError):  # a circle
                world.submit(rng.randint(1, 4), template, name=name, at_once=at_once, **more)
        elif what == "run":
            for job in lease_all(world, runner):
                world.end(runner, job, rng.choice((0, 0, 1)))
            world.touch(runner)
            world.tick(rng.choice((1, 40)))
        elif what == "prune":
            prune(world, *([str(rng.choice(there))] if there and rng.random() < 0.5 else []), keep=rng.randint(0, 2))
        elif what in ("retry", "kill") and there:
            world.change(what, str(rng.choice(there)))
        elif what == "checkpoint":
            world.checkpoint()
        elif what == "restart":
            world.restart()
            world.greet(runner)
        for batch in world.state.batches.values():
            for dependency in batch.spec.after:
                number = dependency.target.partition(".")[0]
                assert dependency.target.startswith("@") or int(number) in world.state.batches
        world.check_restart()
    assert world.state.pruned


# ---- after a backup was put back ------------------------------------------------------------------------------------


def test_numbers_that_may_have_been_used_are_skipped() -> None:
    world = World()
    batch = world.submit(2)
    runner = world.start_runner()
    first, second = lease_all(world, runner)
    world.report(runner, started=[first, second])
    world.end(runner, first, 1)
    event = ev.Restored(1001, 1001, 1001)
    evolve(world.state, event)
    world.log.append(world_entry(world, event))
    world.check_restart()
    world.checkpoint()
    world.restart()
    world.greet(runner)
    assert world.job(batch, second[1]) == "RUNNING", "what still runs goes on"
    runner.seq = 40  # it has told the manager of after the backup much
    world.end(runner, second)
    assert world.job(batch, second[1]) == "COMPLETED", "its next report counts, whatever its number"
    world.end(runner, second)
    assert runner.acked == 42
    world.change("retry", str(batch))
    world.schedule()
    assert world.state.batches[batch].attempts[first[1] - 1] == 1001, "an attempt that nobody can know of"
    assert world.submit() == 1001
    world.schedule()
    assert world.state.batches[1001].attempts[0] == 1
    world.check_restart()


def world_entry(world: World, event: ev.Event) -> bytes:
    import msgspec

    return msgspec.msgpack.encode(ev.Entry(len(world.log) + 1, world.wall, "test", event))

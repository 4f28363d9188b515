"""kill, hold, release, retry and remove in every state of a job: what becomes of it, and what the answer says."""

import pytest

from core_world import World, cores, lease_all
from rota.model.batch import Dependency
from rota.model.errors import NotFoundError, RefusedError, UsageError
from rota.model.tables import JOB_STATES

STATES = [state for state in JOB_STATES if state != "REMOVED"]


def world_with(state: str) -> tuple[World, int]:
    """A world whose one interesting batch has one job, in this state, brought there by what really happens."""
    world = World()
    if state == "WAITING":
        return world, world.submit(not_before=world.wall + 500)
    if state == "OMITTED":
        first = world.submit(2)
        batch = world.submit(after=[f"{first}.1"])
        world.change("kill", str(first))
        return world, batch
    batch = world.submit(1, cores(1))
    if state in ("PENDING",):
        return world, batch
    if state == "HOLDING":
        world.change("hold", str(batch))
        return world, batch
    if state == "ABORTED":
        world.change("kill", str(batch))
        return world, batch
    if state == "REMOVED":
        world.change("remove", str(batch))
        return world, batch
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    if state == "STARTING":
        return world, batch
    world.report(runner, started=[job])
    if state == "MISSING":
        world.tick(70)
    elif state == "KILLING":
        world.change("kill", str(batch))
    elif state == "COMPLETED":
        world.end(runner, job)
    elif state == "FAILED":
        world.end(runner, job, 1)
    return world, batch


@pytest.mark.parametrize("state", JOB_STATES)
def test_every_state_is_reached(state: str) -> None:
    world, batch = world_with(state)
    assert world.states(batch) == [state]
    world.check_restart()


SETTLED = "is settled already"
CHANGES = {
    "kill": {
        "WAITING": "ABORTED",
        "PENDING": "ABORTED",
        "HOLDING": "ABORTED",
        "STARTING": "KILLING",
        "RUNNING": "KILLING",
        "MISSING": "KILLING",
        "KILLING": "is being killed already",
        "COMPLETED": SETTLED,
        "FAILED": SETTLED,
        "ABORTED": SETTLED,
        "OMITTED": SETTLED,
    },
    "hold": {
        "WAITING": "HOLDING",
        "PENDING": "HOLDING",
        "HOLDING": "is held already",
        "STARTING": "STARTING",  # its lease is called back first
        "RUNNING": "runs: hold it with --stop, or let it finish",
        "MISSING": "runs: hold it with --stop, or let it finish",
        "KILLING": "is being killed",
        "COMPLETED": SETTLED,
        "FAILED": SETTLED,
        "ABORTED": SETTLED,
        "OMITTED": SETTLED,
    },
    "hold --stop": {
        "WAITING": "HOLDING",
        "PENDING": "HOLDING",
        "HOLDING": "is held already",
        "STARTING": "STARTING",
        "RUNNING": "RUNNING",
        "MISSING": "MISSING",
        "KILLING": "is being killed",
        "COMPLETED": SETTLED,
        "FAILED": SETTLED,
        "ABORTED": SETTLED,
        "OMITTED": SETTLED,
    },
    "release": dict.fromkeys(STATES, "is not held") | {"HOLDING": "PENDING"},
    "retry": dict.fromkeys(STATES[:7], "is not settled")
    | {
        "COMPLETED": "has succeeded (to run it again, add :completed)",
        "FAILED": "PENDING",
        "ABORTED": "PENDING",
        "OMITTED": "stays OMITTED, as it depends on 1.1, which is ABORTED: rota retry 1 2 runs both, "
        "rota modify 2 --after none runs it without",
    },
    "remove": dict.fromkeys(STATES, "REMOVED")
    | dict.fromkeys(("STARTING", "RUNNING", "MISSING", "KILLING"), "runs: kill it first"),
    "confirm-dead": dict.fromkeys(STATES, "is not MISSING: only what rota has lost sight of can be confirmed dead")
    | {"MISSING": "PENDING"},
}


@pytest.mark.parametrize(
    ("verb", "state"),
    [(verb, state) for verb in CHANGES for state in STATES],
)
def test_change(verb: str, state: str) -> None:
    world, batch = world_with(state)
    what, _, flag = verb.partition(" ")
    more = {"stop": True} if flag else {}
    if verb == "confirm-dead":
        what, more = "kill", {"confirm_dead": True}
    expected = CHANGES[verb][state]
    dry = world.change(what, str(batch), dry_run=True, **more)
    assert world.states(batch) == [state], "a dry run changes nothing"
    reply = world.change(what, str(batch), **more)
    assert reply == dry
    assert reply.pop("ending", 0) == (verb == "kill" and expected == "KILLING")
    if expected.isupper():
        assert world.states(batch) == [expected]
        assert reply == {"jobs": 1, "skipped": [], "sample": [f"{batch}.1"]}
    else:
        assert world.states(batch) == [state]
        assert reply == {"jobs": 0, "skipped": [{"reason": expected, "jobs": 1}], "sample": []}
    world.check_restart()


@pytest.mark.parametrize("verb", ["kill", "hold", "release", "retry", "remove"])
def test_what_is_removed_is_not_there_any_more(verb: str) -> None:
    world, batch = world_with("REMOVED")
    reply = world.change(verb, str(batch))
    assert (reply["jobs"], reply["skipped"], reply["sample"]) == (0, [], [])
    assert world.states(batch) == ["REMOVED"]


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "ABORTED"])
def test_retry_by_state_takes_successes_too(state: str) -> None:
    world, batch = world_with(state)
    assert world.change("retry", str(batch), f":{state.lower()}")["jobs"] == 1
    assert world.states(batch) == ["PENDING"]


def test_counts_add_up_over_many_jobs() -> None:
    world = World()
    batch = world.submit(10, cores(1))
    runner = world.start_runner()
    jobs = lease_all(world, runner)
    assert len(jobs) == 4
    world.report(runner, started=jobs[:2], ended=[world.row(jobs[0])])
    world.change("hold", f"{batch}.9-10")
    assert world.counts(batch) == {"COMPLETED": 1, "RUNNING": 1, "STARTING": 2, "PENDING": 4, "HOLDING": 2}
    reply = world.change("kill", str(batch))
    assert reply["jobs"] == 9 and reply["ending"] == 3 and reply["skipped"] == [{"reason": SETTLED, "jobs": 1}]
    assert len(reply["sample"]) == world.settings.sample
    assert world.counts(batch) == {"COMPLETED": 1, "KILLING": 3, "ABORTED": 6}
    assert world.change("kill", str(batch), ":killing") == {
        "jobs": 0,
        "ending": 0,
        "skipped": [{"reason": "is being killed already", "jobs": 3}],
        "sample": [],
    }


def test_selectors_of_changes() -> None:
    world = World()
    one = world.submit(3, name="a", ranges=((0, 20, 10),))
    two = world.submit(3, name="b")
    assert world.change("hold", f"{one}.0-10", str(two), "@a")["sample"] == [f"{one}.0", f"{one}.10"]
    assert world.change("release", ":holding")["jobs"] == 2
    assert world.change("hold", f"{one}.5-15")["sample"] == [f"{one}.10"]
    assert world.change("hold", "@a", "@b", ":pending")["jobs"] == 5
    with pytest.raises(NotFoundError, match="there is no batch 9"):
        world.change("hold", "9")
    with pytest.raises(NotFoundError, match=f"there is no job {one}.5"):
        world.change("hold", f"{one}.5")
    with pytest.raises(NotFoundError, match="nothing is named 'z'"):
        world.change("hold", "@z")
    with pytest.raises(UsageError, match="no such change: explode"):
        world.change("explode", str(one))


def test_a_recalled_job_is_held_when_its_lease_is_back() -> None:
    world, batch = world_with("STARTING")
    runner = world.runners["r1"]
    world.change("hold", str(batch))
    assert [(order.what, order.jobs) for order in runner.orders] == [("recall", [(batch, 1, 1)])]
    world.report(runner, disclaimed=[(batch, 1, 1)])
    assert world.states(batch) == ["HOLDING"]
    world.change("release", str(batch))
    assert world.states(batch) == ["PENDING"]
    assert lease_all(world, runner) == [(batch, 1, 2)]


def test_a_recall_that_comes_too_late_lets_the_job_run() -> None:
    world, batch = world_with("STARTING")
    runner = world.runners["r1"]
    world.change("hold", str(batch))
    world.report(runner, started=[(batch, 1, 1)])
    assert world.states(batch) == ["RUNNING"]
    world.end(runner, (batch, 1, 1))
    assert world.states(batch) == ["COMPLETED"]
    world.check_restart()


def test_a_release_undoes_a_recall_under_way() -> None:
    world, batch = world_with("STARTING")
    world.change("hold", str(batch))
    assert world.change("release", str(batch)) == {"jobs": 1, "skipped": [], "sample": [f"{batch}.1"]}
    world.report(world.runners["r1"], disclaimed=[(batch, 1, 1)])
    assert world.states(batch) == ["PENDING"]
    world.check_restart()


def test_hold_stop_ends_a_running_job_and_counts_against_nothing() -> None:
    world, batch = world_with("RUNNING")
    runner = world.runners["r1"]
    world.change("hold", str(batch), stop=True)
    assert runner.orders[-1].what == "kill"
    world.end(runner, (batch, 1, 1), None, 15, "killed")
    assert world.states(batch) == ["HOLDING"]
    assert not world.state.batches[batch].failures
    world.check_restart()


def test_truth_wins_over_intent() -> None:
    world, batch = world_with("KILLING")
    world.end(world.runners["r1"], (batch, 1, 1), 0)
    assert world.states(batch) == ["COMPLETED"]


def test_a_killed_job_is_aborted_whatever_its_retries() -> None:
    world = World()
    batch = world.submit(1, cores(1, retries=5))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.change("kill", str(batch))
    world.end(runner, job, None, 9, "killed")
    assert world.states(batch) == ["ABORTED"]
    assert world.results[-1].state == "ABORTED"


def test_a_killed_lease_that_never_started() -> None:
    world, batch = world_with("STARTING")
    world.change("kill", str(batch))
    world.report(world.runners["r1"], disclaimed=[(batch, 1, 1)])
    assert world.states(batch) == ["ABORTED"]
    assert world.results[-1].note == "killed before it started"


def test_confirmed_dead_goes_back_to_the_queue_and_a_late_success_is_only_shown() -> None:
    world, batch = world_with("MISSING")
    runner = world.runners["r1"]
    assert world.change("kill", str(batch), confirm_dead=True)["jobs"] == 1
    assert world.states(batch) == ["PENDING"]
    assert world.results[-1].reason == "lost" and "confirmed dead by ann" in str(world.results[-1].note)
    world.greet(runner)
    assert any(order.what == "kill" for order in runner.orders), "it is told to end what it still runs"
    world.end(runner, (batch, 1, 1), 0)
    assert world.states(batch) == ["PENDING"]
    assert any("late result" in note and "changes nothing" in note for note in world.notes())
    assert world.results[-1].state == "SUPERSEDED"


def test_killed_on_a_missing_runner_can_be_confirmed_dead() -> None:
    world, batch = world_with("MISSING")
    world.change("kill", str(batch))
    assert world.change("kill", str(batch), confirm_dead=True)["jobs"] == 1
    assert world.states(batch) == ["ABORTED"]


def test_what_others_wait_for_cannot_be_removed_alone() -> None:
    world = World()
    first = world.submit(2)
    second = world.submit(after=[str(first)])
    with pytest.raises(RefusedError, match=f"batch {second} depends on batch {first} and has not run: remove it too"):
        world.change("remove", str(first))
    assert world.change("remove", str(first), str(second))["jobs"] == 3
    assert world.states(first) + world.states(second) == ["REMOVED"] * 3
    world.check_restart()


def test_ids_of_removed_jobs_are_not_used_again() -> None:
    world = World()
    first = world.submit()
    world.change("remove", str(first))
    assert world.submit() == first + 1


def test_a_part_of_what_waits_is_not_enough_to_remove_what_it_waits_for() -> None:
    world = World()
    first = world.submit(3)
    second = world.submit(3, after=[Dependency(str(first), each=True)])
    with pytest.raises(RefusedError, match=f"batch {second} depends on batch {first} and has not run"):
        world.change("remove", str(first), f"{second}.1")
    assert world.change("remove", f"{first}.1", f"{second}.1")["jobs"] == 2
    assert world.states(first) == world.states(second)[:1] + world.states(first)[1:]
    assert "OMITTED" not in world.states(second)
    with pytest.raises(RefusedError, match=f"batch {second} depends on batch {first} and has not run"):
        world.change("remove", str(first), f"{second}.2-2")
    world.check_restart()

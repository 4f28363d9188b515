"""Which failures are tried again, and the brake on batches that keep failing."""

import pytest

from core_world import World, cores, lease_all
from rota.model.batch import BatchSpec, Template
from rota.model.errors import UsageError
from rota.model.tables import JOB_STATES


def tried_again(code: int | None, signal: int | None = None, reason: str | None = None, **rules: object) -> bool:
    world = World()
    batch = world.submit(1, cores(1, retries=3, **rules))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.end(runner, job, code, signal, reason)
    (state,) = world.states(batch)
    assert state in ("WAITING", "FAILED")
    world.check_restart()
    return state == "WAITING"


@pytest.mark.parametrize(
    ("rules", "code", "signal", "reason", "again"),
    [
        ({}, 1, None, None, True),
        ({}, 127, None, None, False),
        ({"retry_on": ("75",)}, 75, None, None, True),
        ({"retry_on": ("75",)}, 1, None, None, False),
        ({"retry_on": ("127",)}, 127, None, None, True),
        ({"retry_on": ("signal",)}, None, 9, None, True),
        ({"retry_on": ("signal",)}, 1, None, None, False),
        ({"retry_on": ("time", "oom")}, None, 9, "oom", True),
        ({"retry_on": ("exit",)}, 3, None, None, True),
        ({"never_retry_on": ("3",)}, 3, None, None, False),
        ({"never_retry_on": ("3",)}, 4, None, None, True),
        ({"never_retry_on": ("time",)}, None, 15, "time", False),
        ({"never_retry_on": ("75",), "retry_on": ("75",)}, 75, None, None, False),
    ],
)
def test_rules(rules: dict[str, object], code: int | None, signal: int | None, reason: str | None, again: bool) -> None:
    assert tried_again(code, signal, reason, **rules) is again


def test_a_failure_after_long_is_not_tried_again() -> None:
    world = World()
    batch = world.submit(2, cores(1, retries=3, no_retry_after_s=3600))
    runner = world.start_runner()
    quick, slow = lease_all(world, runner)
    rows = [world.row(quick, 1), world.row(slow, 1)]
    rows[0] = rows[0]._replace(started=1000.0, ended=1010.0)
    rows[1] = rows[1]._replace(started=1000.0, ended=1000.0 + 3601)
    world.report(runner, ended=rows)
    assert world.states(batch) == ["WAITING", "FAILED"]


@pytest.mark.parametrize("words", [{"retry_on": ("256",)}, {"never_retry_on": ("sometimes",)}, {"retry_on": ("-1",)}])
def test_unknown_words_are_refused(words: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(UsageError, match="neither an exit code nor a reason"):
        Template(argv=("true",), **words).check()
    with pytest.raises(UsageError, match="max failures"):
        BatchSpec(1, (Template(argv=("true",)),), max_failures=-1).check()


def fail_one_by_one(world: World, batch: int, most: int, good: int = 0) -> int:
    """End jobs one at a time, the first `good` of them well, until no more are leased; how many failed."""
    runner = world.runners.get("r1") or world.start_runner()
    failed = 0
    for number in range(most):
        world.schedule()
        if not runner.held:
            break
        job = next(iter(runner.held))
        world.end(runner, job, 0 if number < good else 1)
        failed += number >= good
    return failed


def test_a_batch_with_a_limit_is_held_when_it_is_reached() -> None:
    world = World()
    batch = world.submit(20, cores(4), max_failures=3)
    assert fail_one_by_one(world, batch, 20, good=2) == 3
    assert world.counts(batch) == {"COMPLETED": 2, "FAILED": 3, "HOLDING": 15}
    assert "3 of its jobs failed" in str(world.state.batches[batch].held_why)
    world.check_restart()
    world.change("release", str(batch))
    assert fail_one_by_one(world, batch, 20) == 15, "what was released is not held again"


def test_by_default_the_first_fifty_failures_hold_a_batch_of_which_nothing_succeeded() -> None:
    world = World(check=False)
    batch = world.submit(60, cores(4))
    assert fail_one_by_one(world, batch, 60) == 50
    assert world.counts(batch) == {"FAILED": 50, "HOLDING": 10}
    lucky = world.submit(60, cores(4))
    assert fail_one_by_one(world, lucky, 60, good=1) == 59
    off = world.submit(60, cores(4), max_failures=0)
    assert fail_one_by_one(world, off, 60) == 60


@pytest.mark.parametrize(("most", "good", "leased"), [(7, 2, 7), (None, 0, 50), (0, 0, 999), (None, 2, 999)])
def test_no_more_short_jobs_are_leased_ahead_than_may_fail(most: int | None, good: int, leased: int) -> None:
    """Else all of them could have failed before the rest is held."""
    world = World()
    batch = world.submit(1000, cores(1), max_failures=most)
    runner = world.start_runner()
    for job in lease_all(world, runner)[:2]:
        world.end(runner, job, 0 if good else 1)
        world.shape_memo(0).mean_s = 0.001
    world.schedule()
    failed = world.counts(batch).get("FAILED", 0)
    slots = sum(world.state.runners["r1"].slots.values())
    if leased == 999:
        assert len(runner.held) > 60
    else:
        assert slots < len(runner.held) <= leased - failed


def test_the_brake_leaves_settled_and_running_jobs_alone() -> None:
    world = World()
    batch = world.submit(6, cores(2), max_failures=1)
    runner = world.start_runner()
    first, second = lease_all(world, runner)
    world.end(runner, first, 1)
    assert world.job(batch, second[1]) in ("STARTING", "RUNNING")
    world.end(runner, second, 0)
    assert world.counts(batch) == {"FAILED": 1, "COMPLETED": 1, "HOLDING": 4}
    assert set(world.states(batch)) <= set(JOB_STATES)

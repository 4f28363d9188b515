"""Allocations by shape, and direct allocations: each is one job, nobody calls back."""

from typing import NoReturn

import pytest

from core_world import GIB, FakeRunner, World, cores, lease_all
from rota.core.effects import Allocate, Order
from rota.core.soft import Contact
from rota.core.state import Settings
from rota.core.stimuli import AllocationSeen, Ended, LastWords, Report, TakeDown, Written
from rota.model.allocation import Outcome
from rota.model.errors import UsageError
from rota.model.needs import Amounts

NODE = Amounts(8000, 16 * GIB)


def cluster(mode: str = "direct", **more: object) -> World:
    world = World(Settings(missing_s=60, shrink_s=10), site=False)
    world.site("hpc", NODE, most=100, mode=mode, whole=False, array_most=10, directory="/shared", **more)
    return world


def asked(world: World) -> list[tuple[str, tuple[str, ...]]]:
    return [(effect.what, effect.ids) for effect in world.effects if isinstance(effect, Allocate)]


def seen(world: World, name: str, verb: str, outcome: Outcome | None = None, **more: object) -> None:
    world.step(AllocationSeen(at=world.at, id=name, verb=verb, outcome=outcome, **more))  # type: ignore[arg-type]


def reported(world: World, name: str, code: int = 0) -> None:
    """What the observer makes of a report that a direct job has left."""
    allocation = world.state.allocations[name]
    runner = world.state.runners[f"{allocation.tag}.{allocation.element}"]
    ((number, pos),) = runner.jobs
    batch = world.state.batches[number]
    row = Ended(number, batch.index(pos), batch.attempts[pos], code, None, None, 0.0, 1.0, 0.5, 1 << 20, None, None)
    world.step(Report(at=world.at, runner=runner.id, session=1, seq=runner.seq + 1, got=0, clock=0, ended=[row]))


def test_one_allocation_per_job_in_arrays() -> None:
    world = cluster()
    batch = world.submit(25, cores(1), name="align")
    world.schedule()
    assert world.counts(batch) == {"STARTING": 25}
    assert [(what, len(ids)) for what, ids in asked(world)] == [("submit", 10), ("submit", 10), ("submit", 5)]
    names = {(a.name, a.direct, a.shape) for a in world.state.allocations.values()}
    assert names == {("align", True, 0)}
    tags = [(a.tag, a.element) for a in world.state.allocations.values()]
    assert len(set(tags)) == 25 and len({tag for tag, _ in tags}) == 3
    assert [a.elements for a in world.state.allocations.values()] == [10] * 20 + [5] * 5
    world.checkpoint()
    world.check_restart()


def test_a_job_starts_and_ends_with_its_allocation() -> None:
    world = cluster()
    batch = world.submit(1, cores(1))
    world.schedule()
    seen(world, "a1", "pend", native_id="77")
    assert world.states(batch) == ["STARTING"]
    seen(world, "a1", "run", host="n1")
    assert world.states(batch) == ["RUNNING"]
    world.tick(3600)
    assert world.states(batch) == ["RUNNING"], "silence means nothing here"
    reported(world, "a1")
    seen(world, "a1", "complete", Outcome(exit_code=0, host="n1"))
    assert world.states(batch) == ["COMPLETED"]
    assert world.results[-1].host == "n1"
    assert world.state.ledger.used["hpc"] == Amounts()
    world.checkpoint()
    world.check_restart()


@pytest.mark.parametrize(
    ("outcome", "verb", "state", "reason", "result"),
    [
        (Outcome(exit_code=3), "fail", "FAILED", "exit", "FAILED"),
        (Outcome(signal=9), "fail", "FAILED", "signal", "FAILED"),
        (Outcome(why="oom", signal=9), "abort", "FAILED", "oom", "FAILED"),
        (Outcome(why="time"), "abort", "FAILED", "time", "FAILED"),
        (Outcome(why="cancelled"), "abort", "FAILED", "cancelled", "FAILED"),
        (Outcome(exit_code=0), "complete", "FAILED", "no-report", "FAILED"),
        (Outcome(why="node-fail"), "abort", "PENDING", "node-fail", "LOST"),
        (Outcome(why="preempt"), "abort", "PENDING", "preempt", "LOST"),
        (Outcome(why="vanished"), "abort", "PENDING", "vanished", "LOST"),
        (None, "abort", "PENDING", "lost", "LOST"),
    ],
)
def test_without_a_report_the_batch_system_has_the_word(
    outcome: Outcome | None, verb: str, state: str, reason: str, result: str
) -> None:
    world = cluster()
    batch = world.submit(1, cores(1))
    world.schedule()
    seen(world, "a1", "run")
    seen(world, "a1", verb, outcome, reason="the words of the cluster")
    assert world.states(batch) == [state]
    assert (world.results[-1].reason, world.results[-1].state) == (reason, result)
    assert "the words of the cluster" in (world.results[-1].note or "")


def test_a_job_may_forbid_to_be_started_again_after_a_loss() -> None:
    world = cluster()
    batch = world.submit(1, cores(1, never_retry_on=("node-fail",)))
    world.schedule()
    seen(world, "a1", "run")
    seen(world, "a1", "abort", Outcome(why="node-fail"))
    assert world.states(batch) == ["FAILED"]
    assert world.results[-1].reason == "node-fail"


def test_a_kill_ends_the_allocation_and_waits_for_its_end() -> None:
    world = cluster()
    batch = world.submit(2, cores(1))
    world.schedule()
    seen(world, "a1", "run")
    world.change("kill", str(batch))
    assert world.states(batch) == ["KILLING", "KILLING"]
    assert [what for what, _ in asked(world)] == ["submit", "terminate", "terminate"]
    assert not [effect for effect in world.effects if isinstance(effect, Order)]
    seen(world, "a1", "abort", Outcome(why="cancelled"))
    seen(world, "a2", "abort", Outcome(why="cancelled"))
    assert world.states(batch) == ["ABORTED", "ABORTED"]


def test_hold_takes_a_waiting_job_back() -> None:
    world = cluster()
    batch = world.submit(1, cores(1))
    world.schedule()
    seen(world, "a1", "pend")
    world.change("hold", str(batch))
    seen(world, "a1", "abort", Outcome(why="cancelled"))
    assert world.states(batch) == ["HOLDING"]
    assert world.state.batches[batch].failures == {}


@pytest.mark.parametrize("told", ["before", "with its end", "by what it left"])
def test_a_job_that_ran_when_it_was_held_is_in_the_history(told: str) -> None:
    """Its node fails before it can report: it is held, and its attempt is lost, not one that never was."""
    world = cluster()
    batch = world.submit(1, cores(1))
    world.schedule()
    seen(world, "a1", "pend", native_id="77", host="n1" if told == "before" else None)
    world.change("hold", str(batch), stop=True)
    world.collecting = False
    seen(world, "a1", "abort", Outcome(why="node-fail"), host="n1" if told == "with its end" else None)
    world.step(LastWords(at=world.at, id="a1", host="n1" if told == "by what it left" else None))
    assert world.states(batch) == ["HOLDING"]
    assert [(result.attempt, result.state) for result in world.results] == [(1, "LOST")]
    assert world.state.batches[batch].failures == {}
    world.check_restart()


def test_a_requeue_by_the_cluster_is_a_loss_and_no_second_copy() -> None:
    world = cluster()
    batch = world.submit(1, cores(1))
    world.schedule()
    seen(world, "a1", "run")
    seen(world, "a1", "pend", reason="it has not started")
    assert world.state.allocations["a1"].state == "PENDING", "what left no word of its start was not requeued"
    seen(world, "a1", "run", host="n1")
    seen(world, "a1", "pend", reason="requeued by an operator")
    assert world.state.allocations["a1"].state == "KILLING"
    world.schedule()
    assert world.states(batch) == ["RUNNING"], "a listing may say so of what runs: nothing is free before it is over"
    seen(world, "a1", "abort", Outcome(why="cancelled"), reason="cancelled")
    assert (world.results[-1].state, world.results[-1].reason) == ("LOST", "requeue"), "nobody wanted that: no failure"
    world.schedule()
    assert world.states(batch) == ["STARTING"], "in an allocation of its own"
    assert world.state.allocations["a2"].state == "SUBMITTING"


@pytest.mark.parametrize("late", ["the answer to the submission", "a listing from before the greeting"])
def test_an_answer_that_is_older_than_the_greeting_moves_nothing(late: str) -> None:
    world = World()
    batch = world.submit(1)
    world.tick(1)
    asked = world.mono
    world.tick(1)
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    identity = late.startswith("the answer")
    old = AllocationSeen(
        at=world.at, id="a1", verb="pend", native_id="17", asked=None if identity else asked, identity=identity
    )
    world.step(old)
    allocation = world.state.allocations["a1"]
    assert (allocation.state, allocation.native_id) == ("RUNNING", "17"), "who it is is kept, how it is is old"
    assert world.states(batch) == ["RUNNING"]
    world.step(AllocationSeen(at=world.at, id="a1", verb="pend", native_id="17", asked=world.mono, reason="requeued"))
    assert allocation.state == "KILLING", "asked after the greeting, it counts"
    assert world.state.runners["r1"].state == "DRAINING"
    assert world.states(batch) == ["RUNNING"], "and frees nothing"
    world.end(runner, job)
    assert world.states(batch) == ["COMPLETED"]


def test_a_submission_that_fails_gives_the_jobs_back() -> None:
    world = cluster()
    batch = world.submit(2, cores(1))
    world.schedule()
    for name in ("a1", "a2"):
        seen(world, name, "fail", reason="sbatch: invalid partition")
    assert world.states(batch) == ["PENDING", "PENDING"]
    assert world.state.batches[batch].losses == {}, "it never ran: not a loss"
    assert "invalid partition" in (world.state.soft.weather.of("hpc").why or "")


def test_limits_hold_for_direct_jobs() -> None:
    world = cluster()
    batch = world.submit(30, cores(1, limits=("irods",)), limits={"irods": 7})
    world.schedule()
    assert world.counts(batch) == {"STARTING": 7, "PENDING": 23}
    assert [a.elements for a in world.state.allocations.values()] == [7] * 7


def test_a_restart_looks_for_whole_arrays() -> None:
    world = cluster()
    world.submit(12, cores(1))
    world.schedule()
    world.checkpoint()
    effects = [effect for effect in world.restart() if isinstance(effect, Allocate)]
    assert sorted((effect.what, len(effect.ids)) for effect in effects) == [("find", 2), ("find", 10)]
    assert {a.elements for a in world.state.allocations.values()} == {2, 10}


def test_runners_are_asked_for_by_shape_and_taken_back() -> None:
    world = cluster("runners")
    small = world.submit(12, cores(1))
    world.submit(3, cores(4))
    world.schedule()
    assert [(what, len(ids)) for what, ids in asked(world)] == [("submit", 10), ("submit", 2), ("submit", 3)]
    for name in list(world.state.allocations):
        seen(world, name, "pend")
    world.change("kill", str(small))
    world.schedule()
    assert all(a.state == "PENDING" for a in world.state.allocations.values()), "not at once: more may come"
    world.tick(11)
    world.state.soft.planning.wanted = True
    world.schedule()
    killed = [a.shape for a in world.state.allocations.values() if a.state == "KILLING"]
    assert killed == [0] * 12


def test_what_is_not_wanted_any_more_is_taken_back_without_a_nudge() -> None:
    world = cluster("runners")
    batch = world.submit(4, cores(1))
    world.schedule()
    for name in ("a1", "a2", "a3", "a4"):
        seen(world, name, "pend", native_id=name)
    world.schedule()
    world.change("kill", f"{batch}.2-4")
    world.schedule()
    assert not [what for what, _ in asked(world) if what == "terminate"]
    for _ in range(12):
        world.tick(1)
        world.schedule()
    ended = [e.id for e in world.effects if isinstance(e, Allocate) and e.what == "terminate"]
    assert ended == ["a2", "a3", "a4"]


def test_a_killed_direct_job_was_killed_however_that_was_done() -> None:
    world = cluster()
    batch = world.submit(2, cores(1))
    world.schedule()
    seen(world, "a1", "run")
    world.change("kill", str(batch))
    runner = world.state.runners[f"{world.state.allocations['a1'].tag}.0"]
    row = Ended(batch, 1, 1, None, 15, "runner-stopped", 0.0, 1.0, 0.5, 1 << 20, None, None)
    world.step(Report(at=world.at, runner=runner.id, session=1, seq=runner.seq + 1, got=0, clock=0, ended=[row]))
    seen(world, "a2", "abort", Outcome(why="cancelled"))
    assert world.states(batch) == ["ABORTED", "ABORTED"]
    assert [result.reason for result in world.results] == ["killed", "killed"]


def test_a_runner_of_an_allocation_that_is_taken_back_gets_no_work() -> None:
    world = cluster("runners")
    small = world.submit(1, cores(1))
    world.schedule()
    seen(world, "a1", "pend")
    world.change("kill", str(small))
    world.schedule()
    world.tick(11)
    world.schedule()
    assert world.state.allocations["a1"].state == "KILLING"
    world.submit(1, cores(1))
    runner = world.runners["r1"] = FakeRunner("r1", "a1")
    world.greet(runner, capacity=Amounts(1000, GIB))
    assert lease_all(world, runner) == []
    assert world.state.runners["r1"].state == "DRAINING"


def test_an_allocation_killed_for_the_memory_of_its_only_job() -> None:
    world = cluster("runners")
    batch = world.submit(1, cores(1))
    runner = world.start_runner(capacity=Amounts(1000, GIB))
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    seen(world, "a1", "abort", Outcome(why="oom", signal=9), reason="OUT_OF_MEMORY")
    assert world.states(batch) == ["FAILED"]
    assert world.results[-1].reason == "oom"


def test_allocations_that_are_over_are_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    class Contacts(dict[str, Contact]):
        """Nobody goes through all of them when one goes."""

        def keys(self) -> NoReturn:
            raise AssertionError("all were looked at")

        __iter__ = keys

    monkeypatch.setattr("rota.core.evolve.runners.OVER_MOST", 5)
    world = cluster()
    world.state.soft.contacts = Contacts()
    world.submit(20, cores(1))
    world.schedule()
    for name in list(world.state.allocations):
        seen(world, name, "run")
        reported(world, name)
        seen(world, name, "complete", Outcome(exit_code=0))
    assert len(world.state.allocations) == len(world.state.runners) == len(world.state.soft.contacts) == 5
    seen(world, "a1", "run")
    assert "a1 unknown allocation" in world.notes()[-1]
    world.checkpoint()
    world.check_restart()


@pytest.mark.parametrize("started", [True, False])
def test_a_cancelled_allocation_is_no_fault_of_the_job_in_it(started: bool) -> None:
    world = cluster("runners")
    batch = world.submit(1, cores(1))
    runner = world.start_runner(capacity=Amounts(1000, GIB))
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job] if started else [])
    seen(world, "a1", "abort", Outcome(why="cancelled" if started else "oom"), reason="CANCELLED by 0")
    assert world.results[-1].state == "LOST"
    assert world.states(batch) == ["PENDING"]


@pytest.mark.parametrize("disclaims", [True, False])
def test_a_runner_that_is_stopped_from_outside_gets_no_more_work(disclaims: bool) -> None:
    world = cluster("runners")
    batch = world.submit(1, cores(1))
    runner = world.start_runner(capacity=Amounts(1000, GIB))
    (job,) = lease_all(world, runner)
    held = world.state.runners["r1"]
    if disclaims:
        stop = Report(at=world.at, runner="r1", session=1, seq=1, got=1, clock=0, disclaimed=[(*job, "runner-stopped")])
    else:
        row = Ended(*job, None, 15, "runner-stopped", 0.0, 1.0, 0.5, 1 << 20, None, None)
        stop = Report(at=world.at, runner="r1", session=1, seq=1, got=1, clock=0, ended=[row])
    world.step(stop)
    world.schedule()
    assert (held.state, world.states(batch)) == ("DRAINING", ["PENDING"])
    assert not held.jobs


@pytest.mark.parametrize(
    ("before", "verb", "outcome", "fails"),
    [
        ("pend", "complete", Outcome(exit_code=0), False),
        ("pend", "fail", Outcome(exit_code=3), False),
        ("pend", "abort", Outcome(why="cancelled"), False),
        ("run", "abort", Outcome(why="launch"), True),
        ("pend", "fail", Outcome(why="launch"), True),
        (None, "fail", None, True),
    ],
)
def test_a_short_job_that_was_never_seen_to_run_is_no_fault_of_its_site(
    before: str | None, verb: str, outcome: Outcome | None, fails: bool
) -> None:
    world = cluster()
    world.submit(1, cores(1))
    world.schedule()
    if before is not None:
        seen(world, "a1", before, native_id="77")
    if verb == "complete":
        reported(world, "a1")
    seen(world, "a1", verb, outcome)
    site = world.state.soft.weather.of("hpc")
    assert (site.closed_until > world.mono, site.why is not None) == (fails, fails)


def test_several_nodes_only_where_a_job_is_an_allocation() -> None:
    world = cluster()
    world.submit(1, cores(2, nodes=4))
    world.schedule()
    assert world.state.allocations["a1"].options == (("nodes", "4"),)
    assert world.state.allocations["a1"].capacity.cores == 2000, "on each of them"
    with pytest.raises(UsageError, match="hpc gives 1 node, 4 are asked for"):
        cluster("runners").submit(1, cores(2, nodes=4))


def test_a_report_that_cannot_be_read_is_asked_for_again() -> None:
    """That it cannot be read now is no evidence that there is none: the job is not called failed for it."""
    world, runner, job = direct_job_that_ended()
    for attempt in range(4):
        world.step(LastWords(at=world.at, id="a1", unread="ssh: connection refused"))
        assert world.job(*job[:2]) in ("STARTING", "RUNNING"), attempt
        asked = len([effect for effect in world.effects if isinstance(effect, Allocate) and effect.what == "collect"])
        world.tick(31)
        again = len([effect for effect in world.effects if isinstance(effect, Allocate) and effect.what == "collect"])
        assert again == asked + 1, "it is asked for again"
    world.step(LastWords(at=world.at, id="a1", written=[Written(runner, [world.row(job)])]))
    assert world.job(*job[:2]) == "COMPLETED"


def test_a_report_that_can_never_be_read_is_given_up_with_the_reason() -> None:
    world, _, job = direct_job_that_ended()
    for _ in range(5):
        world.step(LastWords(at=world.at, id="a1", unread="permission denied"))
        world.tick(31)
    assert world.job(*job[:2]) == "FAILED"
    assert "what it left could not be read: permission denied" in (world.results[-1].note or "")


def direct_job_that_ended() -> tuple[World, str, tuple[int, int, int]]:
    """A direct job whose cluster job is over, and whose report is not there yet."""
    world = World(site=False)
    world.collecting = False
    world.site("hpc", most=10, mode="direct", whole=False, array_most=10)
    batch = world.submit(1)
    world.schedule()
    (runner,) = world.state.runners
    world.step(AllocationSeen(at=world.at, id="a1", verb="pend", native_id="17"))
    world.step(AllocationSeen(at=world.at, id="a1", verb="run", native_id="17"))
    world.step(AllocationSeen(at=world.at, id="a1", verb="complete", native_id="17", outcome=Outcome(exit_code=0)))
    return world, runner, (batch, 1, 1)


def test_a_direct_job_of_which_nothing_certain_is_heard_is_lost_and_not_called_requeued() -> None:
    world = World(site=False)
    world.site("hpc", most=10, mode="direct", whole=False, array_most=10)
    world.submit(1)
    world.schedule()
    world.step(AllocationSeen(at=world.at, id="a1", verb="pend", native_id="17"))
    for _ in range(100):
        world.step(AllocationSeen(at=world.at, id="a1", verb="unsure", native_id="17", reason="UNKWN"))
    assert world.state.allocations["a1"].state == "KILLING"
    world.step(AllocationSeen(at=world.at, id="a1", verb="abort", native_id="17", outcome=Outcome(why="cancelled")))
    assert (world.results[-1].state, world.results[-1].reason) == ("LOST", "lost")


def test_what_is_taken_down_runs_again_and_counts_for_nothing() -> None:
    """`down --kill`: a job that only waited, and one that ran and left its report."""
    world = cluster()
    batch = world.submit(2, cores(1))
    world.schedule()
    seen(world, "a1", "run", host="n1")
    seen(world, "a2", "pend")
    world.step(TakeDown(at=world.at))
    assert {a.state for a in world.state.allocations.values()} == {"KILLING"}
    allocation = world.state.allocations["a1"]
    job = (batch, 1, 1)
    words = Written(f"{allocation.tag}.{allocation.element}", [world.row(job, None, 15, "runner-stopped")])
    world.words["a1"] = [words]
    seen(world, "a1", "abort", Outcome(why="cancelled"), reason="cancelled")
    seen(world, "a2", "abort", Outcome(why="cancelled"), reason="cancelled")
    assert set(world.states(batch)) <= {"WAITING", "PENDING"}
    book = world.state.batches[batch]
    assert not book.failures and not book.losses
    world.check_restart()


@pytest.mark.parametrize("said", ["runner-stopped", "its own end"])
def test_a_second_start_that_ends_well_is_not_how_the_first_ended(said: str) -> None:
    """Put back and started again between two listings, its provider only says DONE: of the start that runs nothing."""
    world = cluster()
    world.collecting = False
    batch = world.submit(1, cores(1))
    world.schedule()
    seen(world, "a1", "run", host="n1")
    allocation, job = world.state.allocations["a1"], (batch, 1, 1)
    row = world.row(job, None, 15, "runner-stopped") if said == "runner-stopped" else world.row(job, 3, None, "exit")
    seen(world, "a1", "fail", Outcome(signal=15), reason="by its own words it was killed, though it is DONE")
    words = [Written(f"{allocation.tag}.{allocation.element}", [row])]
    world.step(LastWords(at=world.at, id="a1", written=words, restarted=True))
    if said == "runner-stopped":
        assert world.states(batch)[0] == "PENDING" and not world.state.batches[batch].failures
        assert world.results[-1].state == "LOST" and "started it again" in (world.results[-1].note or "")
    else:
        assert world.states(batch)[0] == "FAILED"
    world.check_restart()


def test_an_end_that_was_told_too_early_is_kept() -> None:
    """What an answer says that is older than the greeting is no end; but how it was said to end stays said."""
    world = World()
    world.submit(1)
    world.tick(1)
    asked = world.mono
    world.tick(1)
    runner = world.start_runner()
    world.step(AllocationSeen(at=world.at, id="a1", verb="abort", asked=asked, outcome=Outcome(271, None, "cancelled")))
    assert world.state.allocations["a1"].state == "RUNNING" and not runner.expired
    world.check_restart()
    assert world.state.allocations["a1"].outcome == Outcome(271, None, "cancelled")

"""Attempts: retries and back-off, losses, repeats of what runners say, limits, modes."""

import pytest

from core_world import NODE, World, cores, lease_all
from rota.core.decide.retries import backoff
from rota.core.effects import Ack, Allocate, Lease, Order
from rota.core.explain import Records, verdicts
from rota.core.soft import chance_at
from rota.core.state import Settings, State
from rota.core.stimuli import AllocationSeen, Disconnected, Unstaged
from rota.model.allocation import Outcome
from rota.model.batch import Template
from rota.model.errors import RefusedError, UsageError
from rota.model.events import Moved, Submitted
from rota.model.needs import Amounts, Needs
from rota.model.slot import Slot

# ---- retries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "low"),
    [(-(10**9), 30), (0, 30), (1, 60), (2, 120), (5, 960), (6, 1800), (7, 1800), (10**9, 1800)],
)
def test_backoff(failures: int, low: float) -> None:
    state = State(Settings(), 5)
    drawn = [backoff(state, failures, chance_at(1, number)) for number in range(1, 301)]
    assert all(low <= seconds < low + 30 for seconds in drawn)
    assert max(drawn) - min(drawn) > 25, "failures do not march in step"


def attempts_of(
    retries: int, code: int | None, signal: int | None = None, reason: str | None = None
) -> tuple[int, World]:
    """How often a job is tried that always ends like this."""
    world = World()
    batch = world.submit(1, cores(1, retries=retries))
    runner = world.start_runner()
    for attempt in range(1, 20):
        (job,) = lease_all(world, runner)
        assert job == (batch, 1, attempt)
        world.end(runner, job, code, signal, reason)
        if world.states(batch) == ["FAILED"]:
            return attempt, world
        assert world.states(batch) == ["WAITING"]
        assert lease_all(world, runner) == []
        world.tick(29)
        world.touch(runner)
        assert world.states(batch) == ["WAITING"], "a back-off is at least 30 s"
        while world.states(batch) == ["WAITING"]:
            world.tick(20)
            world.touch(runner)
    raise AssertionError("never failed")


@pytest.mark.parametrize(
    ("retries", "code", "signal", "reason", "attempts"),
    [
        (3, 1, None, None, 4),
        (0, 1, None, None, 1),
        (3, 127, None, None, 1),
        (3, 126, None, None, 1),
        (3, 128, None, None, 1),
        (1, 129, None, None, 2),
        (2, None, 9, None, 3),
        (1, None, 15, "time", 2),
        (3, None, None, "not-found", 1),
        (3, None, None, "cwd", 1),
    ],
)
def test_attempts(retries: int, code: int | None, signal: int | None, reason: str | None, attempts: int) -> None:
    tried, world = attempts_of(retries, code, signal, reason)
    assert tried == attempts
    assert [result.state for result in world.results] == ["RETRIED"] * (attempts - 1) + ["FAILED"]
    assert world.results[-1].reason == (reason or ("exit" if signal is None else "signal"))
    world.check_restart()


def test_exit_zero_with_a_reason_is_no_success() -> None:
    tried, _ = attempts_of(0, 0, None, "output")
    assert tried == 1


def test_a_retry_by_hand_counts_anew() -> None:
    _, world = attempts_of(1, 1)
    world.change("retry", "1")
    runner = world.runners["r1"]
    (job,) = lease_all(world, runner)
    assert job == (1, 1, 3), "attempt numbers never come back"
    world.end(runner, job, 1)
    assert world.states(1) == ["WAITING"]


def test_a_runner_that_is_stopped_costs_no_retry() -> None:
    world = World()
    batch = world.submit(1, cores(1))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.end(runner, job, None, 15, "runner-stopped")
    assert world.states(batch) == ["PENDING"]


# ---- what runners say twice, late or wrongly ------------------------------------------------------------------------


def test_nothing_is_remembered_of_what_starts_and_ends_in_one_report() -> None:
    world = World()
    runner = world.start_runner()
    world.submit(2)
    first, second = lease_all(world, runner)
    world.report(runner, started=[first, second], ended=[world.row(first)])
    contact = world.state.soft.contacts[runner.name]
    assert list(contact.usage) == list(contact.since) == [(second[0], 1)]
    world.end(runner, second)
    assert not contact.usage and not contact.since


def running(count: int = 1, **more: object) -> tuple[World, int, list[tuple[int, int, int]]]:
    world = World()
    batch = world.submit(count, cores(1, **more))
    runner = world.start_runner()
    jobs = lease_all(world, runner)
    world.report(runner, started=jobs)
    return world, batch, jobs


def test_a_repeated_report_is_acknowledged_and_changes_nothing() -> None:
    world, batch, (job,) = running()
    runner = world.runners["r1"]
    world.end(runner, job)
    before = len(world.log)
    step = world.report(runner, ended=[world.row(job)], seq=runner.seq)
    assert step.events == [] and step.results == []
    assert step.effects == [Ack("r1", runner.seq)]
    assert len(world.log) == before and world.states(batch) == ["COMPLETED"]
    world.check_restart()


def test_reports_are_taken_in_order() -> None:
    world, batch, (job,) = running()
    runner = world.runners["r1"]
    step = world.report(runner, ended=[world.row(job)], seq=runner.seq + 2)
    assert step.events == [] and step.effects == []
    assert world.states(batch) == ["RUNNING"]


def test_a_job_named_twice_in_one_report() -> None:
    world, batch, jobs = running(2)
    runner = world.runners["r1"]
    world.report(runner, ended=[world.row(jobs[0]), world.row(jobs[0], 1), world.row(jobs[1], 1)])
    assert world.states(batch) == ["COMPLETED", "FAILED"], "the first word counts, and nothing stops"


def test_a_job_started_twice_in_one_report() -> None:
    world = World()
    batch = world.submit(1, cores(1))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job, job])
    assert world.states(batch) == ["RUNNING"]


def test_a_job_that_both_ended_and_is_disclaimed() -> None:
    world, batch, (job,) = running()
    world.report(world.runners["r1"], ended=[world.row(job)], disclaimed=[job])
    assert world.states(batch) == ["COMPLETED"]


def test_a_job_disclaimed_twice() -> None:
    world = World()
    batch = world.submit(1, cores(1))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, disclaimed=[job, job])
    assert world.states(batch) == ["PENDING"]


@pytest.mark.parametrize("job", [(1, 1, 99), (1, 99, 1), (99, 1, 1), (1, 0, 1), (1, -1, 1), (1, 1, 0)])
def test_reports_of_what_is_not_so_change_nothing(job: tuple[int, int, int]) -> None:
    world, batch, _ = running()
    runner = world.runners["r1"]
    world.report(runner, started=[job], ended=[world.row(job)], disclaimed=[job])
    assert world.states(batch) == ["RUNNING"]
    assert runner.acked == runner.seq
    world.check_restart()


def test_another_runners_job_is_not_its_to_end() -> None:
    world = World()
    world.site(most=2)
    batch = world.submit(8, cores(1))
    one = world.start_runner("r1")
    world.schedule()
    two = world.start_runner("r2")
    world.schedule()
    assert len(one.held) == len(two.held) == 4
    job = next(iter(two.held))
    world.report(one, ended=[world.row(job, 1)])
    assert world.job(*job[:2]) == "STARTING"
    assert not world.notes() and not world.results, "it never had it: nothing of it is written down"
    assert world.counts(batch) == {"STARTING": 8}


def test_repeated_and_old_greetings() -> None:
    world, batch, jobs = running(3)
    runner = world.runners["r1"]
    assert world.greet(runner, connect=1).events == [], "the same again"
    assert runner.session == 1
    world.greet(runner)
    assert runner.session == 2
    assert world.greet(runner, connect=1).events == [], "an old one that comes late"
    assert world.states(batch) == ["RUNNING"] * 3
    assert world.report(runner, ended=[world.row(jobs[0])], session=1, seq=runner.seq + 1).events == []
    assert world.states(batch) == ["RUNNING"] * 3
    world.check_restart()


def test_what_a_greeting_runner_does_not_hold_goes_back() -> None:
    world = World()
    batch = world.submit(3, cores(1))
    runner = world.start_runner()
    jobs = lease_all(world, runner)
    world.report(runner, started=[jobs[0]])
    del runner.held[jobs[1]]
    runner.held[batch, 9, 1] = "running"
    step = world.greet(runner)
    assert world.states(batch) == ["RUNNING", "PENDING", "STARTING"]
    kills = [effect for effect in step.effects if isinstance(effect, Order) and effect.what == "kill"]
    assert [order.jobs for order in kills] == [[(batch, 9, 1)]]
    assert world.state.batches[batch].failures == {}


def test_an_unknown_runner_of_no_allocation_is_sent_away() -> None:
    world = World()
    world.submit()
    runner = world.start_runner()
    runner.allocation = "a77"
    runner.name = "r7"
    world.runners["r7"] = runner
    step = world.greet(runner)
    assert step.events == []
    assert [(effect.what, effect.reason) for effect in step.effects if isinstance(effect, Order)] == [
        ("expired", "allocation a77 is over or unknown")
    ]


def test_a_lease_that_was_not_confirmed_is_sent_again() -> None:
    world = World()
    world.submit(2, cores(1))
    runner = world.start_runner()
    world.schedule()
    sent = [effect for effect in world.effects if isinstance(effect, Lease)]
    assert len(sent) == 1
    runner.got = 0
    world.tick(1)
    assert [effect for effect in world.touch(runner).effects if isinstance(effect, Lease)] == []
    world.tick(5)
    again = [effect for effect in world.core.step(touch_of(world, 0)).effects if isinstance(effect, Lease)]
    assert [(effect.n, effect.jobs, effect.slots) for effect in again] == [(sent[0].n, sent[0].jobs, sent[0].slots)]
    assert not [effect for effect in world.core.step(touch_of(world, 1)).effects if isinstance(effect, Lease)]


def touch_of(world: World, got: int) -> object:
    from rota.core.stimuli import Touch

    return Touch(at=world.at, runner="r1", session=1, got=got, clock=world.mono)


# ---- silence --------------------------------------------------------------------------------------------------------


def test_silence_frees_nothing_and_a_touch_brings_all_back() -> None:
    world, batch, _ = running(2)
    runner = world.runners["r1"]
    used = dict(world.state.ledger.used)
    step = world.tick(61)
    assert world.states(batch) == ["MISSING"] * 2
    assert world.state.ledger.used == used
    assert any(isinstance(effect, Allocate) and effect.what == "check" for effect in [*world.effects, *step.effects])
    world.tick(3000)
    assert world.states(batch) == ["MISSING"] * 2
    world.touch(runner)
    assert world.states(batch) == ["RUNNING"] * 2
    assert world.state.runners["r1"].state == "SERVING"
    world.check_restart()


def test_a_touch_of_an_old_session_is_no_sign_of_life() -> None:
    world, batch, _ = running()
    runner = world.runners["r1"]
    world.greet(runner)
    runner.session = 1
    world.tick(61)
    world.touch(runner)
    assert world.states(batch) == ["MISSING"]


def test_a_missing_job_may_still_succeed() -> None:
    world, batch, (job,) = running()
    world.tick(70)
    world.end(world.runners["r1"], job)
    assert world.states(batch) == ["COMPLETED"]


def test_a_rerunnable_job_is_given_up_after_long_silence() -> None:
    world, batch, (job,) = running(rerunnable=True)
    world.tick(world.settings.rerun_s + 10)
    assert world.states(batch) == ["PENDING"]
    assert "may still run" in str(world.results[-1].note)
    runner = world.runners["r1"]
    world.touch(runner)
    assert any(order.what == "kill" and (*job,) in order.jobs for order in runner.orders), "the first copy is to end"
    world.end(runner, job)
    assert world.states(batch) == ["PENDING"]
    assert world.results[-1].state == "SUPERSEDED"


def test_a_lost_attempt_is_not_a_failure_until_it_happens_too_often() -> None:
    world = World()
    batch = world.submit(1, cores(1))
    for number in range(world.settings.losses + 1):
        assert world.states(batch) == ["PENDING"]
        world.tick(400)
        runner = world.start_runner(f"r{number}")
        (job,) = lease_all(world, runner)
        world.report(runner, started=[job])
        world.allocation(str(runner.allocation), "fail", "node died")
        assert world.state.runners[runner.name].state == "EXPIRED"
    assert world.states(batch) == ["FAILED"]
    assert [result.reason for result in world.results] == ["lost"] * world.settings.losses + ["lost-too-often"]
    assert world.results[-1].note == "node died"
    world.check_restart()


def test_a_late_success_of_a_superseded_attempt_is_recorded_and_changes_nothing() -> None:
    world, batch, (job,) = running()
    old = world.runners["r1"]
    world.allocation("a1", "fail", "node died")
    world.tick(30)
    new = world.start_runner("r2")
    (again,) = lease_all(world, new)
    assert again == (batch, 1, 2)
    world.end(old, job)
    assert world.states(batch) == ["STARTING"]
    assert world.results[-1].state == "SUPERSEDED" and world.results[-1].attempt == 1
    assert any("attempt 1 ended with exit code 0" in note for note in world.notes())
    assert old.acked == old.seq
    world.end(new, again, 1)
    assert world.states(batch) == ["FAILED"]
    step = world.greet(old)
    assert [effect.what for effect in step.effects if isinstance(effect, Order)] == ["expired"]
    world.check_restart()


def test_a_runner_that_leaves_gives_back_what_it_did_not_start() -> None:
    world = World()
    batch = world.submit(2, cores(1))
    runner = world.start_runner()
    lease_all(world, runner)
    world.bye(runner)
    assert world.states(batch) == ["PENDING"] * 2
    assert world.state.runners["r1"].state == "CLOSED"
    assert world.bye(runner).events == []
    world.check_restart()


def test_a_lost_connection_says_nothing() -> None:
    world, batch, _ = running()
    assert world.step(Disconnected(at=world.at, runner="r1", session=1)).events == []
    assert world.states(batch) == ["RUNNING"]
    world.submit(1, cores(1))
    assert not [event for event in world.schedule().events if type(event).__name__ == "Leased"], (
        "nothing is sent into the void"
    )


def test_an_absent_manager_lapses_nobody() -> None:
    from rota.core.stimuli import Tick

    world, batch, _ = running()
    world.tick(1)
    world.wall, world.mono = world.wall + 5000, world.mono + 5000
    world.step(Tick(at=world.at))
    assert world.states(batch) == ["RUNNING"]
    world.tick(61)
    assert world.states(batch) == ["MISSING"]


def test_a_clock_set_forward_and_back_between_two_ticks_delays_no_retry() -> None:
    world = World()
    world.submit(1, cores(1, retries=1))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.tick()
    world.wall += 86_400
    world.end(runner, job, 1)
    world.wall -= 86_400
    for _ in range(70):
        world.tick()
        world.touch(runner)
    assert lease_all(world, runner) == [(1, 1, 2)]


def test_a_jump_of_the_wall_clock_lapses_nobody() -> None:
    world, batch, _ = running()
    world.tick(1)
    world.wall += 10**7
    world.tick(1)
    assert world.states(batch) == ["RUNNING"]
    world.wall -= 2 * 10**7
    world.tick(1)
    assert world.states(batch) == ["RUNNING"]


# ---- what may run at once -------------------------------------------------------------------------------------------


def test_at_once() -> None:
    world = World()
    batch = world.submit(6, cores(0.5), at_once=2)
    other = world.submit(2, cores(0.5))
    runner = world.start_runner()
    jobs = lease_all(world, runner)
    assert world.counts(batch) == {"STARTING": 2, "PENDING": 4} and world.counts(other) == {"STARTING": 2}
    world.end(runner, next(job for job in jobs if job[0] == batch))
    world.schedule()
    assert world.counts(batch)["STARTING"] == 2
    world.check_restart()


def test_limits_across_batches_and_their_words() -> None:
    world = World()
    world.limit("db", 3)
    one = world.submit(5, cores(0.5, limits=("db",)))
    two = world.submit(5, cores(0.25, limits=("db",)))
    runner = world.start_runner()
    lease_all(world, runner)
    assert world.counts(one) == {"STARTING": 2, "PENDING": 3}, "they share it, and the odd one goes to the first"
    assert world.counts(two) == {"STARTING": 1, "PENDING": 4}
    (verdict,) = world.refusals(1)
    assert (verdict.filter, verdict.detail) == ("limits", "limit db is full: 3 of 3 in use")
    world.limit("db", 5)
    world.schedule()
    assert world.counts(one)["STARTING"] == 3 and world.counts(two)["STARTING"] == 2
    world.limit("db", None)
    world.schedule()
    assert world.counts(one) == {"STARTING": 5} and world.counts(two) == {"STARTING": 5}
    world.check_restart()


@pytest.mark.parametrize(("name", "count"), [("a b", 1), ("#1", 1), ("x", -1), ("", 1)])
def test_limits_refused(name: str, count: int) -> None:
    with pytest.raises(UsageError, match="limit"):
        World().limit(name, count)


def test_limits_given_with_a_submission() -> None:
    world = World()
    world.submit(5, cores(0.5, limits=("db",)), limits={"db": 1})
    lease_all(world, world.start_runner())
    assert world.counts(1) == {"STARTING": 1, "PENDING": 4}


def test_priority_goes_first() -> None:
    world = World()
    low = world.submit(4, cores(1))
    high = world.submit(4, cores(1, priority=5))
    lease_all(world, world.start_runner())
    assert world.counts(high) == {"STARTING": 4} and world.counts(low) == {"PENDING": 4}


def test_pause_and_resume() -> None:
    world = World()
    batch = world.submit(1, cores(1))
    runner = world.start_runner()
    world.mode("paused")
    assert world.schedule().events == []
    assert [verdict.detail for verdict in world.refusals(0)] == ["the manager is paused"]
    assert world.submit(1) == batch + 1, "a paused manager takes work"
    assert world.mode("paused").events == []
    world.mode("serving")
    assert len(lease_all(world, runner)) == 2
    world.check_restart()


def test_a_draining_manager_takes_no_work() -> None:
    world = World()
    world.mode("draining")
    with pytest.raises(RefusedError, match="the manager is draining and takes no new work"):
        world.submit()
    with pytest.raises(UsageError, match="no such mode: dancing"):
        world.mode("dancing")


def test_the_same_submission_twice_is_one() -> None:
    world = World()
    first = world.submitted(3, key="same").reply
    again = world.submitted(3, key="same")
    assert again.events == [] and again.reply["batch"] == first["batch"] and again.reply["jobs"] == 3
    world.mode("draining")
    assert world.submitted(3, key="same").reply["batch"] == first["batch"], "also when new work is refused"


def test_what_could_run_is_refused_once_its_site_offers_less() -> None:
    world = World()
    world.submit(1, cores(4))
    world.site(node=Amounts(2000, 1 << 33))
    with pytest.raises(UsageError, match="this can never run: local has 2 cores, 4 cores are asked for"):
        world.submit(1, cores(4))
    world.site()
    world.submit(1, cores(4))


def test_what_waits_for_nothing_is_ready_with_its_submission() -> None:
    world = World()
    world.submit(2)
    world.submit(1, after=["1"])
    world.submit(1, not_before=world.at.wall + 9)
    told = [(event.batch, event.ready) for event in world.events() if isinstance(event, Submitted)]
    assert told == [(1, True), (2, False), (3, False)]
    assert not any(isinstance(event, Moved) for event in world.events())
    assert world.counts(1) == {"PENDING": 2} and world.counts(2) == {"WAITING": 1}
    world.check_restart()


def test_what_can_never_run_is_refused_with_the_numbers() -> None:
    world = World()
    with pytest.raises(UsageError, match="this can never run: local has 4 cores, 9 cores are asked for"):
        world.submit(1, cores(9))
    with pytest.raises(UsageError, match="there is no site 'mars'; the sites are: local"):
        world.submit(1, cores(1, site="mars"))
    with pytest.raises(UsageError, match="there is nothing to run"):
        world.submit(0)
    assert world.log == []


def test_a_range_of_cores_gets_what_is_free() -> None:
    world = World()
    world.submit(1, cores(3))
    batch = world.submit(1, cores(1, cores_most=4000))
    runner = world.start_runner()
    lease_all(world, runner)
    assert world.states(batch) == ["STARTING"]
    assert world.state.runners["r1"].slots == {Slot(0, Amounts(3000)): 1, Slot(1, Amounts(1000)): 1}


def test_templates_of_one_batch_run_by_their_own_needs() -> None:
    world = World()
    templates = (cores(3), cores(1), Template(argv=("true",), needs=Needs(500, tags=())))
    batch = world.submit(6, templates=templates, runs=[0, 1, 1, 2, 0, 2, 2, 1])
    runner = world.start_runner()
    lease_all(world, runner)
    assert world.states(batch) == ["STARTING", "STARTING", "PENDING", "PENDING", "PENDING", "PENDING"]
    world.check_restart()


def test_over_commit_is_impossible_on_a_node_that_came_back_smaller() -> None:
    world, _, jobs = running(4)
    runner = world.runners["r1"]
    world.greet(runner, capacity=Amounts(2000, NODE.memory))
    world.submit(4, cores(1))
    assert lease_all(world, runner) == []
    world.report(runner, ended=[world.row(job) for job in jobs[:3]])
    assert len(lease_all(world, runner)) == 1
    world.check_restart()


# ---- words ----------------------------------------------------------------------------------------------------------


def details(world: World, shape: int = 0) -> list[tuple[str, str, str]]:
    found = verdicts(world.state, world.state.shapes[shape], world.at, Records())
    return [(verdict.location, verdict.code, verdict.detail) for verdict in found]


def test_why_nothing_runs_yet() -> None:
    world = World()
    world.submit(9, cores(1))
    world.schedule()
    assert details(world) == [("local", "starting", "allocation a1 is SUBMITTING")]
    world.allocation("a1", "fail", "sbatch: no such partition")
    world.schedule()
    ((where, code, text),) = details(world)
    assert (where, code) == ("local", "failing")
    assert text == "allocation a1 gave no runner: sbatch: no such partition; next try in 5 s"
    world.tick(6)
    runner = world.start_runner()
    lease_all(world, runner)
    site, (where, code, text) = details(world)
    assert site == ("local", "most", "the site has all the allocations that it may have (1)")
    assert code == "busy" and text == "asks for 1 core, 0 cores free now" and "host" in where


def test_a_site_whose_runners_never_call_is_failing_until_one_does() -> None:
    """An allocation that runs proves nothing: its node may have no way to the manager."""
    world = World()
    world.submit(1, cores(1))
    world.schedule()
    world.allocation("a1", "run")
    world.allocation("a1", "complete", "its output ends with: never got an answer")
    assert "a1 gave no runner: its output" in (world.state.soft.weather.of("local").why or "")
    world.tick(6)
    world.schedule()
    world.allocation("a2", "run")
    world.schedule()
    assert details(world)[0][2].startswith("allocation a2 is RUNNING; before, allocation a1 gave no runner: its out")
    world.start_runner()
    assert world.state.soft.weather.of("local").why is None


def test_why_nothing_runs_at_the_site_that_was_asked_for() -> None:
    """Runners elsewhere are no explanation, nor are the allocations of other shapes."""
    world = World()
    world.site("far")
    world.submit(1, cores(1))
    world.schedule()
    world.start_runner()
    world.submit(1, Template(shell="true", needs=Needs(site="far")))
    world.schedule()
    ours = [each.id for each in world.state.allocations.values() if each.site == "far"]
    world.allocation(ours[0], "fail", "needs a login")
    world.schedule()
    where, code, text = details(world, 1)[0]
    assert (where, code) == ("far", "failing") and "needs a login" in text
    assert all(place != "local" for place, code, _ in details(world, 1) if code in ("failing", "starting"))
    assert details(world, 1)[1][:2] == ("local", "other-site")


def test_an_array_that_is_refused_is_one_refusal() -> None:
    world = World()
    world.site("hpc", most=50, whole=False, array_most=50)
    world.submit(50, Template(shell="true", needs=Needs(site="hpc")))
    world.schedule()
    waits = set()
    for name in [each.id for each in world.state.allocations.values() if each.site == "hpc"]:
        refused = Outcome(why="refused")
        world.step(AllocationSeen(at=world.at, id=name, verb="fail", reason="no such account", outcome=refused))
        (refusal,) = world.state.soft.weather.refused.values()
        waits.add((refusal.until - world.mono, refusal.tries))
    assert waits == {(5, 1)}


def test_a_failing_site_is_left_alone_longer_each_time() -> None:
    world = World()
    world.submit()
    waits = []
    for number in range(1, 9):
        world.schedule()
        world.allocation(f"a{number}", "fail", "no")
        waits.append(world.state.soft.weather.of("local").closed_until - world.mono)
        world.tick(waits[-1])
        world.tick(1)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]


# ---- allocations ----------------------------------------------------------------------------------------------------


def test_unsure_keeps_the_state_and_is_counted() -> None:
    world = World()
    world.submit()
    world.schedule()
    for _ in range(99):
        world.allocation("a1", "unsure", "squeue timed out")
    assert world.state.allocations["a1"].state == "SUBMITTING"
    assert world.state.allocations["a1"].unsure == 99
    step = world.allocation("a1", "unsure", "squeue timed out")
    assert world.state.allocations["a1"].state == "KILLING"
    assert [effect.what for effect in step.effects if isinstance(effect, Allocate)] == ["terminate"]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_unsure_is_counted_in_every_live_state(state: str) -> None:
    world = World()
    world.submit()
    world.schedule()
    world.allocation("a1", "pend")
    if state == "RUNNING":
        world.allocation("a1", "run")
    for _ in range(100):
        world.allocation("a1", "unsure", "UNKWN")
        if world.state.allocations["a1"].state != state:
            break
    assert world.state.allocations["a1"].state == "KILLING"


def test_a_certain_word_sets_the_count_of_unsure_ones_back() -> None:
    world = World()
    world.submit()
    world.schedule()
    world.allocation("a1", "unsure")
    world.allocation("a1", "pend")
    assert world.state.allocations["a1"].unsure == 0


def test_what_a_driver_repeats_is_no_event() -> None:
    world = World()
    world.submit()
    world.schedule()
    world.allocation("a1", "run")
    assert world.allocation("a1", "run").events == []
    world.allocation("a1", "complete")
    assert world.allocation("a1", "complete").events == []
    assert world.allocation("a1", "fail").events == []


@pytest.mark.parametrize("verb", ["run", "pend"])
def test_an_allocation_that_comes_back_from_the_dead_is_recorded_and_ended(verb: str) -> None:
    world = World()
    world.submit()
    world.schedule()
    world.allocation("a1", "abort")
    step = world.allocation("a1", verb, "state R")
    assert [type(event).__name__ for event in step.events] == ["Noted"]
    assert [effect.what for effect in step.effects if isinstance(effect, Allocate)] == ["terminate"]
    assert world.state.allocations["a1"].state == "ABORTED"
    assert any("contradiction" in note for note in world.notes())


def test_an_unknown_allocation_is_recorded() -> None:
    world = World()
    world.allocation("a99", "run")
    assert world.notes() == ["a99 unknown allocation: a driver reports run: no reason"]


def test_tags_differ_between_managers_and_within_one() -> None:
    tags = []
    for seed in (1, 2):
        world = World(seed=seed)
        world.site(most=3)
        for _ in range(3):
            world.submit(1, cores(4))
            world.schedule()
        tags += [allocation.tag for allocation in world.state.allocations.values()]
    assert len(tags) == len(set(tags)) == 6


def test_a_restart_asks_after_every_allocation() -> None:
    world, _, _ = running()
    world.checkpoint()
    effects = world.restart()
    assert [(effect.what, effect.id) for effect in effects if isinstance(effect, Allocate)] == [("check", "a1")]
    assert world.state.soft.contacts["r1"].connected is False
    fresh = World()
    fresh.submit()
    fresh.schedule()
    assert [effect.what for effect in fresh.restart(from_start=True) if isinstance(effect, Allocate)] == ["find"]


def test_time_is_looked_at_however_much_happens() -> None:
    """The next tick is counted from the last one: messages that keep coming must not push it away."""
    world = World()
    world.submit(1, cores(1))
    runner = world.start_runner()
    lease_all(world, runner)
    world.tick()
    due = world.core.next_deadline(world.at)
    for _ in range(20):
        world.mono += 0.01
        world.touch(runner)
        assert world.core.next_deadline(world.at) == pytest.approx(due)


def test_an_idle_runner_leaves_on_time() -> None:
    world = World()
    world.start_runner()
    world.tick()
    linger = world.state.soft.sites["local"].linger_s
    assert world.core.next_deadline(world.at) - world.mono <= min(5.0, linger) + 0.1


def test_a_runner_that_greets_under_another_name_of_its_host_takes_its_slots_along() -> None:
    world = World()
    batch = world.submit(2)
    runner = world.start_runner()
    jobs = lease_all(world, runner)
    world.greet(runner, host="renamed")
    world.check_restart()
    for job in jobs:
        world.end(runner, job)
    world.bye(runner)
    assert world.states(batch) == ["COMPLETED"] * 2
    world.check_restart()


def test_who_submitted_a_batch_is_known_after_a_restart() -> None:
    world = World()
    batch = world.submit(1)
    by = world.state.batches[batch].by
    assert by
    assert [world.rebuilt(from_start).batches[batch].by for from_start in (True, False)] == [by, by]


def test_how_long_a_job_took_that_was_killed_tells_nothing() -> None:
    world = World()
    batch = world.submit(1, cores(1))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.change("kill", str(batch))
    world.report(runner, ended=[world.row(job, None, 15, "killed")._replace(started=world.wall - 0.05)])
    world.submit(20, cores(1))
    assert len(lease_all(world, runner)) == 4, "nothing is leased ahead of the slots"


def test_what_was_never_told_to_start_on_a_host_that_is_away_runs_elsewhere() -> None:
    world = World()
    batch = world.submit(2)
    away = world.start_runner("away")
    (first, second) = lease_all(world, away)
    world.report(away, started=[second])
    why = "/x cannot be brought to farm/away: no route to host"
    world.step(Unstaged(at=world.at, runner="away", jobs=[first, (batch, 99, 1), (*first[:2], 7)], why=why))
    assert world.states(batch) == ["PENDING", "RUNNING"]  # what runs there is not touched
    assert world.state.runners["away"].jobs.keys() == {(batch, 1)}
    lost = [result for result in world.results if result.state == "LOST"]
    assert [(result.reason, result.note) for result in lost] == [("staging", why)]
    assert any(order.what == "kill" and first in order.jobs for order in away.orders)  # it is told to give it up,
    world.report(away, disclaimed=[first])  # and what it says of that changes nothing
    assert world.states(batch)[0] == "PENDING"

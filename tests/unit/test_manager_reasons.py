"""What `rota explain` and `rota status` say of jobs: true, and with the right numbers."""

from typing import Any

import pytest

from core_world import GIB, World, cores, lease_all
from rota.core.explain import reason
from rota.core.stimuli import SetMode
from rota.manager.answers.explaining import Explaining
from rota.manager.answers.limits import limit_rows
from rota.manager.answers.places import allocation_rows, runner_rows
from rota.manager.answers.status import count_jobs, status
from rota.manager.intake import Intake
from rota.model.batch import Dependency
from rota.model.errors import NoSpaceError
from rota.model.patch import Patch
from rota.model.tables import PENDING
from rota.wire.messages import Status
from state_print import whole_print


def said(world: World, batch: int, index: int = 1) -> str:
    book = world.state.batches[batch]
    pos = book.position(index) or 0
    ended = [result for result in world.results if (result.batch, result.pos) == (batch, pos)]
    return reason(world.state, book, pos, ended[-1] if ended else None, world.at)


def why(world: World, *words: str) -> dict[int, str]:
    rows = status(world.state, Status(list(words)), world.at)["why"]
    return {row["batch"]: row["reason"] for row in rows}


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        ({}, 127, "exit code 127; it is not tried again (that could not help; --retry-on says otherwise)"),
        ({"never_retry_on": ("5", "time")}, 5, "exit code 5; it is not tried again (--never-retry-on 5,time)"),
        ({"retry_on": ("75",)}, 5, "exit code 5; it is not tried again (--retry-on 75)"),
        ({"no_retry_after_s": 5}, 5, "exit code 5; it is not tried again (--no-retry-after 5s)"),
        ({"retries": 0}, 5, "exit code 5"),
    ],
)
def test_why_a_failure_is_not_tried_again(more: dict[str, Any], code: int, words: str) -> None:
    world = World()
    batch = world.submit(1, cores(1, **{"retries": 3, **more}))
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    world.end(runner, job, code)
    assert world.states(batch) == ["FAILED"]
    assert said(world, batch) == f"ended with {words}"


def test_no_retries_are_left_only_when_they_were_used() -> None:
    world = World()
    batch = world.submit(1, cores(1, retries=1))
    runner = world.start_runner()
    for _ in range(2):
        (job,) = lease_all(world, runner)
        world.end(runner, job, 5)
        for _ in range(100):
            world.tick(1)
            world.touch(runner)
    assert said(world, batch) == "ended with exit code 5; no retries are left"


def test_how_many_are_ahead_in_a_batch_of_several_templates() -> None:
    world = World()
    templates = (cores(4, priority=3), cores(4))
    batch = world.submit(6, templates=templates, runs=[0, 1, 1, 5])
    lease_all(world, world.start_runner())
    assert said(world, batch, 2).startswith("asks for 4 cores, 0 cores free now (at ")
    assert said(world, batch, 6).count("; 4 jobs ahead of it: 4 of its own batch")
    world.change("modify", f"{batch}.3", patch=Patch(retries=2))
    assert said(world, batch, 6).count("; 3 jobs ahead of it: 3 of its own batch")
    assert said(world, batch, 3).count("; 4 jobs ahead of it: 4 of its own batch"), (
        "what was changed comes after the rest"
    )


def test_status_speaks_of_jobs_that_wait_not_of_the_first() -> None:
    world = World()
    batch = world.submit(2, cores(1))
    runner = world.start_runner()
    world.limit("lic", 0)
    world.end(runner, lease_all(world, runner)[0])
    (job,) = list(world.runners[runner.name].held)
    world.end(runner, job, 1)
    world.change("retry", str(batch), patch=Patch(limits_add=("lic",)))
    assert world.states(batch) == ["COMPLETED", "PENDING"]
    assert world.state.batches[batch].states.find(PENDING) == 1
    world.schedule()
    assert why(world) == {
        batch: "limit lic is 0: no job that has it may start, and waiting does not help (rota limit lic:N sets another)"
    }


def test_what_runs_and_is_to_run_again_says_so() -> None:
    world = World()
    world.submit(1, cores(1), name="in")
    runner = world.start_runner()
    world.end(runner, lease_all(world, runner)[0])
    batch = world.submit(1, cores(1), after=[Dependency("@in", live=True, rerun=True)])
    (job,) = lease_all(world, runner)
    world.report(runner, started=[job])
    world.submit(1, cores(1), name="in")
    assert said(world, batch).endswith("; it runs again when it has finished: @in has a new batch")
    world.change("hold", str(batch), stop=True)
    assert said(world, batch).endswith("; it is to be held")


def test_a_time_to_come_is_told_in_words() -> None:
    world = World()
    batch = world.submit(1, cores(1), not_before=world.wall + 5400)
    assert said(world, batch) == "waits for its time, 1970-01-01 01:46 (1h30m from now)"


def test_status_says_why_all_is_held() -> None:
    world = World()
    batch = world.submit(2, cores(1))
    world.change("hold", str(batch))
    assert why(world) == {batch: f"is held (held by ann): rota release {batch} lets it go on"}


def test_explain_says_what_is_asked_for_with_what_was_learned() -> None:
    world = World()
    batch = world.submit(3, cores(1, group="align"))
    runner = world.start_runner()
    for job in lease_all(world, runner):
        world.end(runner, job)
    world.mode("paused")
    asks = {}
    for override in ("never", "higher", "always"):
        batch = world.submit(1, cores(1, memory=GIB, group="align", override=override))
        answer = explained(world, batch)
        assert answer["given"] == "1 core, 1G memory"
        asks[override] = answer["needs"]
        assert answer["learned"][0].startswith("memory: asked 1G, learned 100M from 3 jobs, gets ")
    assert asks["never"] == "1 core, 100M memory, 10s"
    assert asks["higher"] == asks["always"] == "1 core, 1G memory, 10s"


def test_a_question_changes_nothing() -> None:
    world = World()
    world.submit(3, cores(1, group="align"))
    runner = world.start_runner()
    leased = lease_all(world, runner)
    batch = world.submit(1, cores(1, group="align"))
    world.limit("db", "100/min")
    for job in leased:
        world.end(runner, job)
    state, at = world.state, world.at
    before = whole_print(state)
    assert explained(world, batch)["needs"] == "1 core, 100M memory, 10s", "with what was learned since the last pass"
    status(state, Status(), at)
    count_jobs(state, [":pending"])
    limit_rows(state, at)
    runner_rows(state, at)
    allocation_rows(state, lambda allocation: None, at)
    assert whole_print(state) == before


def test_the_next_try_is_counted_from_the_question() -> None:
    world = World()
    batch = world.submit(1, cores(1))
    world.schedule()
    world.allocation("a1", "fail", "sbatch: no such partition")
    world.schedule()
    for passed, left in ((0, 5), (2, 3)):
        world.mono += passed
        (row,) = explained(world, batch)["verdicts"]
        assert row["detail"] == f"allocation a1 gave no runner: sbatch: no such partition; next try in {left} s"
        assert said(world, batch) == f"{row['detail']} (at local)"


def test_since_when_it_is_paused_by_the_local_clock() -> None:
    world = World()
    world.wall, world.utc_offset_s = 1_900_000_000.0, 19_800
    batch = world.submit(1, cores(1))
    world.step(SetMode(at=world.at, mode="paused", holder="backup", reason="the disk is full"))
    when = "2030-03-17 23:16"
    assert said(world, batch).startswith(f"the manager is paused by backup since {when} (the disk is full): ")


def explained(world: World, batch: int) -> dict[str, Any]:
    explaining = Explaining(Results(), Commands(), None, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    return explaining.explain(world.state, f"{batch}.1", world.at)


class Results:
    """A store without results."""

    def results(self, *_: object) -> list[object]:
        return []


class Commands:
    """A book of one command."""

    def command(self, *_: object) -> str:
        return "true"


def test_that_new_work_would_be_refused_is_known_before_it_comes() -> None:
    class AlmostFull:
        def free_bytes(self) -> int:
            return 15 << 20

    intake = Intake(AlmostFull(), None)  # type: ignore[arg-type]
    assert str(intake.refusal()).startswith("only 15 MiB are left where rota keeps its queue: no new work is taken ")
    intake.refuse(NoSpaceError("the disk is full"))
    assert str(intake.refusal()).startswith("the disk is full; no new work is taken")

"""What the manager makes of the report of a direct job."""

import pytest

from rota.core.decide.allocations import stopped_for
from rota.core.stimuli import Ended
from rota.manager.inbound import report_rows
from rota.model.allocation import Allocation, Outcome
from rota.model.needs import Amounts


def row(reason: str | None) -> Ended:
    return Ended(1, 2, 1, None, 15, reason, 0.0, 1.0, 0.5, 1 << 20, None, None)


ASKED = Allocation("a1", "s", "tag", capacity=Amounts(1000, 300 << 20), time_s=300)


def stopped(given: Ended, **outcome: object) -> list[Ended]:
    return stopped_for([given], Outcome(**outcome), ASKED, "native state X")  # type: ignore[arg-type]


@pytest.mark.parametrize("why", ["cancelled", "time", "oom", "deadline"])
def test_the_batch_system_says_what_it_stopped_a_job_for(why: str) -> None:
    assert stopped(row("runner-stopped"), why=why) == [row(why)._replace(note="native state X")]


@pytest.mark.parametrize("why", ["preempt", "node-fail"])
def test_a_job_whose_node_was_taken_away_is_lost(why: str) -> None:
    assert stopped(row("runner-stopped"), why=why) == []


def test_if_it_does_not_say_what_the_job_had_used_does() -> None:
    large = row("runner-stopped")._replace(peak_memory=708 << 20)
    assert [each.reason for each in stopped(large, signal=15)] == ["oom"]
    long = row("runner-stopped")._replace(ended=299.0)
    assert [each.reason for each in stopped(long, signal=15)] == ["time"]
    assert [each.reason for each in stopped(row("runner-stopped"), exit_code=143)] == [None], "it counts as a failure"


def test_other_ends_are_the_job_s_own() -> None:
    rows = [row("time"), row(None)]
    assert stopped_for(rows, Outcome(why="cancelled"), ASKED, "native state X") == rows


def test_a_row_may_leave_out_what_the_runner_did_not_measure() -> None:
    told = [*row(None)[:12]]
    assert report_rows([told, [*told, 4096]], "/d") == [row(None), row(None)._replace(peak_disk=4096)]


@pytest.mark.parametrize("why", ["oom", "time"])
def test_what_was_ended_at_a_limit_has_not_ended_well(why: str) -> None:
    """Its shell lived a moment longer than what it waited for."""
    (told,) = stopped(row(None)._replace(exit_code=0, signal=None), why=why)
    assert told.reason == why and told.note
    own = row("exit")._replace(exit_code=3, signal=None)
    assert stopped(own, why=why) == [own]

"""What the manager makes of the report of a direct job."""

import pytest

from rota.core.decide.allocations import stopped_for
from rota.core.stimuli import Ended
from rota.manager.inbound import report_rows
from rota.model.allocation import Outcome


def row(reason: str | None) -> Ended:
    return Ended(1, 2, 1, None, 15, reason, 0.0, 1.0, 0.5, 1 << 20, None, None)


@pytest.mark.parametrize("why", ["cancelled", "time", "oom", "deadline"])
def test_the_batch_system_says_what_it_stopped_a_job_for(why: str) -> None:
    assert stopped_for([row("runner-stopped")], Outcome(why=why)) == [row(why)]


@pytest.mark.parametrize("why", ["preempt", "node-fail"])
def test_a_job_whose_node_was_taken_away_is_lost(why: str) -> None:
    assert stopped_for([row("runner-stopped")], Outcome(why=why)) == []


def test_other_ends_are_the_job_s_own() -> None:
    rows = [row("time"), row(None)]
    assert stopped_for(rows, Outcome(why="cancelled")) == rows
    assert stopped_for([row("runner-stopped")], Outcome(exit_code=1)) == [row("runner-stopped")]


def test_a_row_may_leave_out_what_the_runner_did_not_measure() -> None:
    told = [*row(None)[:12]]
    assert report_rows([told, [*told, 4096]], "/d") == [row(None), row(None)._replace(peak_disk=4096)]


@pytest.mark.parametrize("why", ["oom", "time"])
def test_what_was_ended_at_a_limit_has_not_ended_well(why: str) -> None:
    """Its shell lived a moment longer than what it waited for."""
    (told,) = stopped_for([row(None)._replace(exit_code=0, signal=None)], Outcome(why=why))
    assert told.reason == why and told.note
    own = row("exit")._replace(exit_code=3, signal=None)
    assert stopped_for([own], Outcome(why=why)) == [own]

"""A running job: whether it had all the time that an allocation could give."""

from types import SimpleNamespace

import pytest

from rota.runner.running import Running


@pytest.mark.parametrize(
    ("since", "own", "had_all"),
    [
        (1.0, None, True),
        (59.0, None, False),  # it had just started
        (30.0, None, False),
        (1.0, 20.0, False),  # it ended before its own time
        (1.0, 60.0, True),
        (59.0, 60.0, False),
        (30.0, 1000.0, False),
    ],
)
def test_a_job_that_started_late_or_had_time_left_did_not_have_all_of_its_allocation(since, own, had_all):
    running = Running(None, SimpleNamespace(time_s=own), None, 1, 0.0, 100.0 + since)
    assert running.had_all(100.0, 160.0) is had_all

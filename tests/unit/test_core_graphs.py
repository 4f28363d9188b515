"""Graphs of many jobs settle, and a job costs no more at the end than at the beginning, nor in a larger graph."""

import pytest
from bench import dag

from support_steps import counting


def drive(name: str, jobs: int) -> dag.Figures:
    """Lines per job."""
    with counting() as steps:
        figures = dag.drive(name, jobs, steps)
    assert figures.settled == jobs
    return figures


@pytest.mark.parametrize(
    ("name", "jobs"),
    [("chain", 400), ("fan", 1_000), ("diamond", 400), ("random", 1_000), ("by name", 400), ("each", 2_000)],
)
def test_a_graph_settles_at_a_flat_cost(name: str, jobs: int) -> None:
    small, large = drive(name, jobs // 4), drive(name, jobs)
    assert large.ratio <= 1.05, "the last tenth by the first"
    assert large.submit <= 1.05 * small.submit and large.last <= 1.05 * small.last

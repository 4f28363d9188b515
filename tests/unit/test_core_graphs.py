"""Graphs of many jobs settle, and a job costs no more at the end than at the beginning."""

import importlib.util
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "bench" / "dag.py"
SPEC = importlib.util.spec_from_file_location("bench_dag", PATH)
assert SPEC is not None and SPEC.loader is not None
dag = importlib.util.module_from_spec(SPEC)
sys.modules["bench_dag"] = dag
SPEC.loader.exec_module(dag)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("name", "jobs"),
    [("chain", 10_000), ("fan", 10_000), ("diamond", 6_000), ("random", 10_000), ("by name", 6_000), ("each", 10_000)],
)
def test_a_graph_settles_at_a_flat_cost(name: str, jobs: int) -> None:
    best = 99.0
    for _ in range(3):  # other programs make some of it uneven
        figures = dag.drive(name, jobs)
        assert figures.settled == jobs
        best = min(best, figures.ratio)
        if best <= 1.3:
            return
    pytest.fail(f"the last tenth cost {best:.2f} times the first")

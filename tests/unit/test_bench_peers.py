"""The benchmark beside peers: what its page and its picture say follows from the samples, and its locks are whole."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from bench.peers import report
from bench.peers.environments import HERE
from bench.peers.roster import ROSTER, named

LOCKS = sorted((Path(HERE) / "locks").glob("*.lock"))


def a_sample(kind: str, what: str, peer: str, **found: Any) -> dict[str, Any]:
    return {"run": 0, "round": 0, "kind": kind, "what": what, "peer": peer, "count": 100, "width": 2, **found}


def results(*samples: dict[str, Any]) -> report.Results:
    run = {"machine": "2 cores, a CPU", "system": "Linux", "commit": "", "at": "2026-01-01 00:00", "quick": False}
    return report.Results({"runs": [run], "versions": {}, "missing": {}, "samples": list(samples)})


def test_who_is_ahead_is_said_and_why() -> None:
    found = results(
        a_sample("A", "direct", "rota", seconds=1.0, limit=[200.0, 200.0]),
        a_sample("A", "direct", "GNU make", seconds=0.8, limit=[200.0, 200.0]),
        a_sample("A", "direct", "Dask", seconds=4.0, limit=[200.0, 200.0]),
    )
    lost, won = report.page(found).split("## Where rota does not win")[1].split("## Where it does")
    assert "rota 0.50" in lost
    assert "GNU make 0.62: on disk: none; keeps no exit codes" in lost
    assert "Dask" not in lost
    assert "Nowhere" in won.split("##")[0]


def test_a_failure_is_no_figure() -> None:
    found = results(
        a_sample("A", "direct", "rota", seconds=1.0, limit=[200.0, 200.0]),
        a_sample("A", "direct", "Dask", failed="over 60 s"),
    )
    row = next(line for line in report.page(found).splitlines() if line.startswith("| Dask | "))
    assert "failed: over 60 s" in row


def test_the_median_counts_beside_its_own_limit() -> None:
    rows = [a_sample("A", "direct", "rota", seconds=1.0, limit=[limit, limit]) for limit in (100.0, 200.0, 400.0)]
    figure = results(*rows).figure("A", "direct", "rota", report.share)
    assert figure == report.Figure(0.5, 0.25, 1.0, 3)


@pytest.mark.parametrize(("layers", "width", "ideal"), [(10, 20, 1.0), (10, 2, 5.0)])
def test_the_ideal_of_a_graph_is_its_depth_or_its_width(layers: int, width: int, ideal: float) -> None:
    one = a_sample("D", "0.1 s", "rota", layers=layers, seconds=10.0) | {"width": width}
    assert report.ideal_share(one) == pytest.approx(ideal / 10.0)


def test_the_picture_is_whole() -> None:
    found = results(
        a_sample("A", "direct", "rota", seconds=1.0, limit=[200.0, 200.0]),
        a_sample("C", "apart", "HyperQueue", took=[0.001, 0.002, 0.003], spawns=[0.001]),
    )
    root = ElementTree.fromstring(report.picture(found))
    words = " ".join(text for each in root.iter() if (text := each.text))
    assert "rota" in words
    assert "HyperQueue" in words
    assert "prefers-color-scheme" in words


def test_names_that_nobody_has_are_refused() -> None:
    assert [one.name for one in named("gnu m,hyper")] == ["GNU make", "HyperQueue"]
    with pytest.raises(SystemExit, match="no peer is named 'bake'"):
        named("bake")


def test_every_environment_has_a_lock_with_hashes_and_no_place() -> None:
    assert {one.environment for one in ROSTER if one.environment} == {lock.stem for lock in LOCKS}
    for lock in LOCKS:
        text = lock.read_text()
        rows = [line for line in text.splitlines() if "==" in line]
        assert rows
        assert all(line.endswith("\\") for line in rows)
        assert "://" not in text
        assert "--index" not in text
        assert "--find-links" not in text

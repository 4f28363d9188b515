"""Where the core-seconds of nodes went: nothing is counted twice, nothing is left out, and the causes are right."""

import random
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.cli.report_gantt import draw, page
from rota.cli.report_usage import Usage, lanes, read_usage


def pages(runners: list[list[Any]], ready: list[list[Any]], at: float = 0.0, up: bool = False) -> list[dict[str, Any]]:
    return [{"runners": runners, "ready": ready, "at": at, "manager_cpu_s": 1.0 if up else None}]


def row(job: str, started: float, ended: float | None, hosts: str = "n1", cores: Any = (1.0,), **more: Any) -> dict:
    return {"id": job, "attempt": 1, "state": "COMPLETED", "host": hosts, "cores": list(cores),
            "started": started, "ended": ended, **more}  # fmt: skip


NODE = [[0.0, "r1", "n1", 2.0], [100.0, "r1", None, 0]]


def test_each_cause() -> None:
    rows = [row("1.1", 10.0, 40.0), row("1.2", 12.0, 30.0), row("1.3", 35.0, 60.0), row("2.1", 70.0, 80.0, cores=[2.0])]
    ready = [[10.0, 1, 1, 2], [35.0, 1, 3, 3], [50.0, 2, 1, 1]]
    usage = read_usage(pages(NODE, ready, 100.0), rows, 100.0)
    found = usage.summary()
    assert found["cores"] == 2
    assert found["available_s"] == 200
    assert found["busy_s"] == 30 + 18 + 25 + 20
    expected = {
        "idle": 20 + 5 + 10 + 2 * 20.0,  # before; 30 to 35; 40 to 50 the other core; after the last end
        "startup": 2.0 + 2 * 10.0,  # 1.2 waited for two seconds beside a free core; 60 to 70 both were free for 2.1
        "room": 10.0,  # 50 to 60 one core was free, and 2.1 asked for two
        "tail": 0.0,
    }
    assert usage.lost == {cause: pytest.approx(expected[cause]) for cause in usage.lost}
    assert found["overhead"]["first_start_s"] == 0


def test_the_tail_is_where_nothing_waits_any_more_and_the_last_ones_run() -> None:
    rows = [row("1.1", 0.0, 100.0), row("1.2", 0.0, 10.0)]
    usage = read_usage(pages(NODE, [[0.0, 1, 1, 2]], 100.0), rows, 100.0)
    assert usage.lost == {"room": 0, "startup": 0, "tail": 90, "idle": 0}


def test_a_gang_that_waits_for_its_second_node_waits_for_room() -> None:
    nodes = [[0.0, "r1", "n1", 2.0], [0.0, "r2", "n2", 2.0]]
    rows = [row("1.1", 0.0, 50.0, "n1", [2.0]), row("2.1", 50.0, 60.0, "n1,n2", [2.0, 2.0])]
    usage = read_usage(pages(nodes, [[0.0, 1, 1, 1], [0.0, 2, 1, 1]], 60.0), rows, 60.0)
    assert usage.lost == {"room": 100, "startup": 0, "tail": 0, "idle": 0}
    assert usage.summary()["busy_s"] == 140


def test_what_runs_and_what_was_never_started_counts_until_now() -> None:
    rows = [row("1.1", 10.0, None, state="RUNNING")]
    usage = read_usage(pages(NODE[:1], [[10.0, 1, 1, 3]], 10.0, up=True), rows, 30.0)
    assert usage.busy_s == 20
    assert usage.lost == {"room": 0, "startup": 20, "tail": 0, "idle": 20}
    assert usage.summary()["overhead"]["manager_cpu_s"] == 1.0


def test_nothing_at_all() -> None:
    found = read_usage(pages([], []), [], 5.0)
    assert found.summary()["utilisation"] is None
    ET.fromstring(draw(found))


@given(st.integers(0, 10_000))
def test_every_core_second_has_one_place(seed: int) -> None:
    chance = random.Random(seed)
    usage = a_run(chance, nodes=chance.randint(1, 3), cores=chance.randint(1, 4), jobs=chance.randint(0, 30))
    assert usage.busy_s + sum(usage.lost.values()) == pytest.approx(usage.available_s, abs=1e-6)
    assert all(value >= -1e-9 for value in usage.lost.values())
    for host, drawn in lanes(usage).items():
        ends: dict[int, float] = {}
        for attempt, places in drawn:
            for place in places:
                assert ends.get(place, 0.0) <= attempt.started, host
                ends[place] = attempt.ended


def a_run(chance: random.Random, nodes: int, cores: int, jobs: int, mean_s: float = 5.0) -> Usage:
    """Jobs one after the other on cores, with pauses, some waiting before they start."""
    free = [[0.0] * cores for _ in range(nodes)]
    rows, ready = [], []
    for number in range(jobs):
        node = chance.randrange(nodes)
        wide = chance.randint(1, cores) if jobs < 1000 else 1
        places = sorted(range(cores), key=lambda at: free[node][at])[:wide]
        start = max(free[node][at] for at in places) + chance.random() * 0.1
        end = start + chance.random() * 2 * mean_s
        for at in places:
            free[node][at] = end
        state = "FAILED" if chance.random() < 0.02 else "COMPLETED"
        rows.append(row(f"1.{number + 1}", start, end, f"n{node}", [float(wide)], state=state))
        ready.append([max(0.0, start - chance.random()), 1, number + 1, number + 1])
    last = max([0.0, *(max(each) for each in free)]) + 1
    runners = [[0.0, f"r{at}", f"n{at}", float(cores)] for at in range(nodes)]
    runners += [[last, f"r{at}", None, 0] for at in range(nodes)]
    return read_usage(pages(runners, ready, last), rows, last)


def test_a_few_jobs_have_bars_with_names_and_all_is_one_document() -> None:
    usage = a_run(random.Random(1), 2, 4, 50)
    found = ET.fromstring(draw(usage))
    titles = [each.text or "" for each in found.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(title.startswith("1.") for title in titles) >= 50
    html = page(usage)
    assert "http://www.w3.org/2000/svg" in html
    assert html.count("http") == 1, "nothing is loaded from elsewhere"


@pytest.mark.slow
def test_the_picture_of_100000_jobs_stays_small_and_true() -> None:
    usage = a_run(random.Random(2), 10, 16, 100_000, mean_s=1.0)
    picture = draw(usage)
    assert len(picture) < 6_000_000
    found = ET.fromstring(picture)
    width = float(found.get("width") or 0)
    assert width < 1500
    assert float(found.get("height") or 0) < 1800
    assert "100,000 jobs" in picture

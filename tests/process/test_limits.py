"""Limits by the real command line: windows, rates, listing, reasons, refusals, restarts, the Python client."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest

from process.cli_support import Rota, rota_home, until
from rota import Client

ZONE = timezone(timedelta(hours=5, minutes=30))


@pytest.fixture
def rota() -> Iterator[Rota]:
    with rota_home() as made:
        made.environ["TZ"] = "<+0530>-5:30"
        yield made


def clock(wall: float) -> str:
    return datetime.fromtimestamp(wall, ZONE).strftime("%H:%M:%S")


def shown(wall: float) -> str:
    """Without seconds if there are none."""
    text = clock(wall)
    return text[:5] if text.endswith(":00") else text


def limits(rota: Rota, *words: str) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in json.loads(rota.out("limit", *words, "--json"))["limits"]}


def jobs(rota: Rota, selector: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in rota.out("jobs", selector, "--json").splitlines()]


def test_a_window_opens_at_its_moment_in_the_managers_local_time(rota: Rota) -> None:
    rota("up")
    later = int(time.time()) + 900
    waits = rota.out("add", "--limit", f"later:{clock(later)}-{clock(later + 7200)}", "--", "true").strip()
    row = limits(rota)["later"]
    assert row["open"] is False and 0 < row["opens_in_s"] <= 900 and row["count"] is None
    why = json.loads(rota.out("explain", f"{waits}.1", "--json"))["reason"]
    assert why.startswith(f"limit later is closed until {shown(later)} (in ") and why.endswith("m)"), why
    assert "opens in" in rota.out("limit")
    opens = int(time.time()) + 4
    batch = rota.out("add", "--limit", f"soon:{clock(opens)}-{clock(opens + 7200)}", "--", "true").strip()
    rota("wait", batch, "--timeout", "60")
    (job,) = jobs(rota, batch)
    assert opens <= job["started"], "not before"
    assert limits(rota)["soon"]["open"] is True


def test_a_window_that_stands_for_itself_and_a_closed_one_that_is_removed(rota: Rota) -> None:
    now = time.time()
    outside = f"{clock(now + 7200)}<time<{clock(now + 10_800)}"
    batch = rota.out("add", "--limit", f"time<{clock(now)}", "--limit", "x", "--", "true", code=None).strip()
    other = rota.out("add", "--limit", f"shut:{outside}", "--", "true").strip()
    assert limits(rota)["shut"]["window"] == f"{shown(now + 7200)}-{shown(now + 10_800)}"
    until(lambda: "is closed until" in rota.out("explain", f"{other}.1"))
    until(lambda: "limit time<" in rota.out("explain", f"{batch}.1"))
    rota("limit", "--remove", "shut")
    rota("wait", other, "--timeout", "60")


def test_a_rate(rota: Rota) -> None:
    began = time.time()
    batch = rota.out("add", "--limit", "api:4/s", "--array", "1-13", "--cores", "0.1", "--", "true").strip()
    rota("wait", batch, "--timeout", "60")
    starts = sorted(float(str(job["started"])) for job in jobs(rota, batch))
    assert starts[-1] - began >= 2.5, "13 at 4 a second"  # from the first start on it is less if that was late
    slow = rota.out("add", "--limit", "slow:2/min", "--array", "1-5", "--cores", "0.1", "--", "true").strip()
    until(lambda: limits(rota)["slow"]["started"] == 2)
    row = limits(rota)["slow"]
    assert row["rate"] == "2/min" and 30 < float(str(row["next_in_s"])) <= 60
    why = json.loads(rota.out("explain", f"{slow}.5", "--json"))["reason"]
    assert (
        why.startswith("limit slow: 2 per minute used up; next start in ")
        and " s; 2 jobs ahead of it: 2 of its own batch" in why
    ), why
    assert "2, next in" in rota.out("limit")
    rota("down")
    rota("up")
    until(lambda: limits(rota)["slow"]["started"] == 2)
    until(lambda: sum(job["state"] == "COMPLETED" for job in jobs(rota, slow)) == 2)
    time.sleep(1)
    assert sum(job["state"] == "COMPLETED" for job in jobs(rota, slow)) == 2, "not more over a restart"
    rota("limit", "slow:100/min")
    rota("wait", slow, "--timeout", "60")


PAST = (datetime.now(UTC) - timedelta(days=3)).strftime("%Y-%m-%d")
BAD = [
    ("irods:abc", "'abc' is none of a count (irods:10)"),
    ("irods:-1", "give 0 or more"),
    ("irods:10/fortnight", "a rate is a number per s, min, h or d"),
    ("irods:0/min", "a rate of 0"),
    ("irods:10,11", "another of its kind"),
    ("9:3", "write a name"),
    ("a b:3", "write a name"),
    ("n:22:00-22:00", "can never open: it is empty"),
    ("n:25:00-26:00", "is not a time of day"),
    (f"n:..{PAST}", "can never open: it is over"),
    ("n:2030-02-02..2030-01-01", "can never open: it ends before it begins"),
    ("n:2030-02-30..", "there is no date '2030-02-30'"),
]
BAD_WINDOWS = [
    (f"datetime<{PAST} 00:00:00", "can never open: it is over"),
    ("12:00:00<time<12:00:00", "can never open: it is empty"),
    ("time<lunch", "is no window"),
]


def test_bad_input_adds_nothing(rota: Rota) -> None:
    rota("up")
    for text, says in BAD + BAD_WINDOWS:
        done = rota("add", "--limit", text, "--limit", "good:3", "--", "true", code=2)
        assert says in done.stderr and done.stderr.count("\n") <= 2, (text, done.stderr)
        assert done.stdout == ""
    for text, says in [*BAD, ("irods", "what is it to be?"), ("time<17:00", "what is it to be?")]:
        done = rota("limit", "good:3", text, code=2)
        assert says in done.stderr and done.stderr.count("\n") <= 2, (text, done.stderr)
    done = rota("add", "-f", "-", code=2, input='{"command": "true", "limits": ["irods:x"]}\n')
    assert "line 1: field 'limits'" in done.stderr
    assert json.loads(rota.out("status", "--json"))["batches"] == []
    assert limits(rota) == {}


def test_what_is_set_lasts_and_what_is_removed_stays_away(rota: Rota) -> None:
    rota("up")
    rota("limit", "irods:10", "api:5,100/min,00:00-24:00", "gone:3", "gone2:5/h")
    rota("limit", "--remove", "gone", "--remove", "gone2")
    before = limits(rota)
    assert list(before) == ["api", "irods"]
    rota("down")
    rota("up")
    assert limits(rota) == before
    row = before["api"]
    assert (row["count"], row["rate"], row["window"], row["open"]) == (5, "100/min", "00:00-24:00", True)
    assert rota("limit", "--remove", "gone", code=None).returncode != 0
    table = rota.out("limit").splitlines()
    assert table[0].split() == ["LIMIT", "COUNT", "IN", "USE", "RATE", "STARTED", "WINDOW", "NOW"]
    assert table[1].split() == ["api", "5", "0", "100/min", "0", "00:00-24:00", "open"]


def test_the_python_client(rota: Rota) -> None:
    with Client(home=str(rota.home)) as client:
        assert client.limits() == []
        assert [row["name"] for row in client.set_limits("irods:2", "api:1000/min")] == ["api", "irods"]
        batch = client.submit(["true"], array="1-4", limits=["irods", "api"])
        assert batch.wait(60)
        assert next(row for row in client.limits() if row["name"] == "api")["started"] == 4
        assert [row["name"] for row in client.remove_limits("irods")] == ["api"]

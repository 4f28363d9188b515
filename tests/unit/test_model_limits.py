"""Limits as people write them."""

import random
from datetime import datetime, timedelta

import pytest

from rota.model.errors import UsageError
from rota.model.limits import (
    Rule,
    Window,
    limit_settings,
    local_text,
    parse_limit,
    parse_rule,
    parse_window,
)

EPOCH = datetime(1970, 1, 1)


def local(text: str) -> float:
    return (datetime.fromisoformat(text) - EPOCH).total_seconds()


def hours(low: str | None, high: str | None) -> Window:
    seconds = [None if text is None else int(local(f"1970-01-01 {text}")) for text in (low, high)]
    return Window(False, *seconds)


@pytest.mark.parametrize(
    ("text", "name", "rule"),
    [
        ("irods", "irods", None),
        ("irods:10", "irods", Rule(10)),
        ("irods:0", "irods", Rule(0)),
        ("api:100/min", "api", Rule(None, 100, 60)),
        ("api:2/s", "api", Rule(None, 2, 1)),
        ("api:5/h", "api", Rule(None, 5, 3600)),
        ("api:5/day", "api", Rule(None, 5, 86_400)),
        ("night:22:00-06:00", "night", Rule(window=hours("22:00", "06:00"))),
        ("night:22:00:00..06:00:30", "night", Rule(window=hours("22:00", "06:00:30"))),
        ("day:8:00-24:00", "day", Rule(window=hours("08:00", None))),
        ("day:09:00:00<time", "day", Rule(window=hours("09:00", None))),
        ("api:5, 100/min, 08:00-18:00", "api", Rule(5, 100, 60, hours("08:00", "18:00"))),
        ("fair:2026-12-24 18:00..", "fair", Rule(window=Window(True, int(local("2026-12-24 18:00")), None))),
        ("fair:..2028-02-29", "fair", Rule(window=Window(True, None, int(local("2028-02-29"))))),
        ("time<17:00:00", "time<17:00:00", None),
        (" 22:00 < time < 06:00:00 ", "22:00:00<time<06:00:00", None),
        ("datetime<2026-12-24 18:00:00", "datetime<2026-12-24 18:00:00", None),
    ],
)
def test_forms(text: str, name: str, rule: Rule | None) -> None:
    assert parse_limit(text) == (name, rule)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "write a name"),
        ("a b", "write a name"),
        ("9x:3", "write a name"),
        ("x:-1", "give 0 or more (rota limit --remove x"),
        ("irods:abc", "'abc' is none of a count (irods:10), a rate"),
        ("x:", "is none of a count"),
        ("x:1.5", "'1.5' is none of a count"),
        ("x:10,20", "'20' is given besides another of its kind"),
        ("irods:10/fortnight", "a rate is a number per s, min, h or d"),
        ("x:-3/min", "a rate is a number per"),
        ("x:0/min", "a rate of 0 lets nothing start"),
        ("time<", "is no window"),
        ("x:..", "is no window"),
        ("25:00:00<time", "'25:00:00' is not a time of day"),
        ("x:22:00-24:01", "'24:01' is not a time of day"),
        ("time<17:60:00", "is not a time of day"),
        ("datetime<17:00:00", "'17:00:00' is not a date"),
        ("time<2026-12-24 12:00:00", "is not a time of day"),
        ("x:2026-02-29..", "there is no date '2026-02-29'"),
        ("2026-13-01 00:00:00<datetime", "there is no date '2026-13-01'"),
        ("12:00:00<time<12:00:00", "this window can never open: it is empty"),
        ("x:22:00-22:00", "this window can never open: it is empty"),
        ("time<00:00:00", "this window can never open: it is empty"),
        ("x:2026-12-24..2026-12-23", "this window can never open: it ends before it begins"),
    ],
)
def test_refusals_name_the_limit(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_limit(text)
    assert str(caught.value).startswith("limit '") and says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "clock", "is_open"),
    [
        ("time<17:00:00", "16:59:59", True),
        ("time<17:00:00", "17:00:00", False),
        ("09:00:00<time", "09:00:00", True),
        ("09:00:00<time", "08:59:59", False),
        ("09:00-17:00", "12:00:00", True),
        ("09:00-17:00", "20:00:00", False),
        ("22:00-06:00", "23:00:00", True),
        ("22:00-06:00", "05:59:59", True),
        ("22:00-06:00", "12:00:00", False),
        ("22:00-00:00", "23:59:59", True),
        ("22:00-00:00", "00:00:00", False),
        ("00:00-24:00", "00:00:00", True),
    ],
)
def test_hours(text: str, clock: str, is_open: bool) -> None:
    assert parse_window(text).is_open(local(f"2026-11-15 {clock}")) is is_open


def test_dates() -> None:
    window = parse_window("2026-11-01 00:00:00<datetime<2026-12-01 00:00:00")
    assert not window.is_open(local("2026-10-31 23:59:59"))
    assert window.is_open(local("2026-11-01"))
    assert not window.is_open(local("2026-12-01"))
    assert window.opens(local("2026-10-01")) == local("2026-11-01")
    assert window.opens(local("2026-12-01")) is None
    assert window.never(local("2026-12-01")) and not window.never(local("2026-10-01"))


def test_when_hours_open_next() -> None:
    night = parse_window("22:00-06:00")
    assert night.opens(local("2026-11-15 18:50")) == local("2026-11-15 22:00")
    assert parse_window("09:00-17:00").opens(local("2026-11-15 18:00")) == local("2026-11-16 09:00")
    assert parse_window("time<06:00:00").opens(local("2026-11-15 18:00")) == local("2026-11-16 00:00")
    assert not night.never(local("2026-11-15 12:00"))


def test_their_texts_mean_the_same() -> None:
    chance = random.Random(4)
    for _ in range(2000):
        dated = chance.random() < 0.5
        most = 86_400 * 60_000 if dated else 86_400
        low, high = (chance.choice((None, chance.randrange(1, most))) for _ in range(2))
        if (low is None and high is None) or low == high or (dated and low and high and low > high):
            continue
        window = Window(dated, low, high)
        assert parse_window(window.name) == window
        if dated or low is not None:
            assert parse_window(window.words) == window
        if dated and low is not None:
            assert local_text(low) == (EPOCH + timedelta(seconds=low)).isoformat(" ")


def test_what_is_sent() -> None:
    assert limit_settings(["irods", "a:3", "b:5/min", "a:3", "time<17:00"]) == {"a": 3, "b": "5/min"}
    with pytest.raises(UsageError, match="is given as 3 and as 4: say it once"):
        limit_settings(["a:3", "a:4"])
    with pytest.raises(UsageError, match="what is it to be"):
        limit_settings(["irods"], all_set=True)
    assert parse_rule("x", "7") == Rule(7)

"""Limits as people write them."""

import pytest

from rota.model.errors import UsageError
from rota.model.limits import LimitRule, Window, parse_limit


def test_forms() -> None:
    assert parse_limit("irods") == LimitRule("irods")
    assert parse_limit("irods:10") == LimitRule("irods", 10)
    assert parse_limit("irods:0") == LimitRule("irods", 0)
    assert parse_limit("mail:100/min") == LimitRule("mail", 100, 60)
    assert parse_limit("time<17:00:00") == Window("time<17:00:00", "time", None, "17:00:00")
    assert parse_limit(" 22:00:00 < time < 06:00:00 ").name == "22:00:00<time<06:00:00"
    assert isinstance(parse_limit("2026-01-01 00:00:00<datetime<2026-12-31 00:00:00"), Window)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        "x:-1",
        "x:1/fortnight",
        "x:0/min",
        "time",
        "25:00:00<time",
        "time<17:60:00",
        "12:00:00<time<12:00:00",
        "9x:3",
        "x:1.5",
        "2026-13-01 00:00:00<datetime",
        "2026-12-31 00:00:00<datetime<2026-01-01 00:00:00",
        "datetime<17:00:00",
        "time<2026-12-24 12:00:00",
        "x:",
    ],
)
def test_refusals_name_the_limit(text: str) -> None:
    with pytest.raises(UsageError, match="limit"):
        parse_limit(text)


def window(text: str) -> Window:
    found = parse_limit(text)
    assert isinstance(found, Window)
    return found


@pytest.mark.parametrize(
    ("text", "clock", "is_open"),
    [
        ("time<17:00:00", "16:59:59", True),
        ("time<17:00:00", "17:00:00", False),
        ("09:00:00<time", "09:00:00", True),
        ("09:00:00<time", "08:59:59", False),
        ("09:00:00<time<17:00:00", "12:00:00", True),
        ("09:00:00<time<17:00:00", "20:00:00", False),
        ("22:00:00<time<06:00:00", "23:00:00", True),
        ("22:00:00<time<06:00:00", "05:59:59", True),
        ("22:00:00<time<06:00:00", "12:00:00", False),
    ],
)
def test_windows_of_the_day(text: str, clock: str, is_open: bool) -> None:
    assert window(text).is_open(f"2026-11-15 {clock}") is is_open


def test_dates() -> None:
    rule = window("2026-11-01 00:00:00<datetime<2026-12-01 00:00:00")
    assert not rule.is_open("2026-10-31 23:59:59")
    assert rule.is_open("2026-11-01 00:00:00")
    assert not rule.is_open("2026-12-01 00:00:00")
    assert rule.never("2026-12-01 00:00:00")
    assert not rule.never("2026-10-01 00:00:00")

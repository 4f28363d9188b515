"""Sizes, durations and cores: what is read, and what is refused with which words."""

import pytest

from rota.model.amounts import (
    MAX_BYTES,
    MAX_SECONDS,
    format_cores,
    format_duration,
    format_size,
    parse_cores,
    parse_duration,
    parse_size,
    show_size,
)
from rota.model.errors import UsageError

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("0.0", 0),
        ("0G", 0),
        ("4G", 4 * GIB),
        ("4g", 4 * GIB),
        ("4 GB", 4 * GIB),
        ("4GiB", 4 * GIB),
        ("4Gi", 4 * GIB),
        (" 500M ", 500 * MIB),
        ("1.5T", TIB + TIB // 2),
        ("64KiB", 64 * KIB),
        ("100B", 100),
        ("0.1K", 102),
        ("1E", MAX_BYTES),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4000", "'4000' has no unit: write 4000M for MiB, 4000G for GiB or 4000B for bytes"),
        ("0.5", "'0.5' has no unit: write 0.5M for MiB, 0.5G for GiB"),
        ("", "'' is not a size: write a number and a unit, as in 500M or 4G"),
        ("-4G", "'-4G' is not a size: write a number and a unit, as in 500M or 4G"),
        ("4X", "'4X' is not a size"),
        ("4i", "'4i' is not a size"),
        ("4iB", "'4iB' is not a size"),
        ("G", "'G' is not a size"),
        ("1e3M", "is not a size"),
        (".5G", "is not a size"),
        ("4.G", "is not a size"),
        ("٤G", "is not a size"),
        ("4²", "is not a size"),
        ("4\u212a", "is not a size"),
        ("4G\n5G", "is not a size"),
        ("4G\0", "is not a size"),
        ("2E", "'2E' is more than 1E"),
        ("9" * 25 + "G", "is more than 1E"),
        ("9" * 10_000 + "G", "is not a size"),
        ("0." + "1" * 10_000 + "G", "is not a size"),
    ],
)
def test_sizes_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 200


def test_size_suggestions_are_themselves_read() -> None:
    for bare in ("4000", "0.5"):
        with pytest.raises(UsageError) as caught:
            parse_size(bare)
        suggested = [
            word.rstrip(",") for word in str(caught.value).split("write", 1)[1].split() if word.startswith(bare)
        ]
        assert len(suggested) >= 2
        for word in suggested:
            parse_size(word)


def test_show_size_rounds_down() -> None:
    shown = {
        0: "0",
        1023: "1023B",
        1024: "1K",
        1536: "1.5K",
        20 * MIB: "20M",
        2000 * MIB: "2000M",
        2 * GIB: "2G",
        2 * GIB - MIB: "2047M",
        2 * GIB - 5000: "1.99G",
        int(1.4 * GIB): "1.4G",
        16 * GIB - 300_000_000: "15.7G",
        128 * GIB - 5000: "127G",
        1 << 60: "1E",
        1 << 70: "1024E",
    }
    assert {count: show_size(count) for count in shown} == shown


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("1w2d3h4m5s", 604_800 + 2 * 86_400 + 3 * 3600 + 4 * 60 + 5),
        ("1H", 3600),
        ("0s", 0),
        ("36h", 129_600),
        ("01:30:00", 5400),
        ("0:01:30", 90),
        ("100:00:00", 360_000),
        ("2-03:04:05", 2 * 86_400 + 3 * 3600 + 4 * 60 + 5),
        (" 5m ", 300),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("90", "'90' has no unit (schedulers disagree on it): write 90s, 90m or 90h"),
        ("0", "has no unit"),
        ("1:30", "'1:30' can be read two ways: write 1:30:00 for hours and minutes, 0:01:30 for minutes and seconds"),
        ("90:30", "write 90:30:00 for hours and minutes, 1:30:30 for minutes and seconds"),
        ("1:75", "is not a duration"),
        ("1:75:00", "minutes and seconds go up to 59 in HH:MM:SS"),
        ("1:00:60", "minutes and seconds go up to 59"),
        ("", "'' is not a duration: write 90m, 1h30m, 2d, HH:MM:SS or D-HH:MM:SS"),
        ("  ", "is not a duration"),
        ("-5m", "is not a duration"),
        ("-1:00:00", "is not a duration"),
        ("1.5h", "is not a duration"),
        ("30m1h", "is not a duration"),
        ("5 m", "is not a duration"),
        ("5min", "is not a duration"),
        ("5\u017f", "is not a duration"),
        ("٣", "is not a duration"),
        ("²", "is not a duration"),
        ("2-12", "is not a duration"),
        ("1:2:3", "is not a duration"),
        ("101w" * 0 + "36601d", "'36601d' is more than a hundred years"),
        ("9" * 29, "has no unit"),
        ("9" * 10_000, "is not a duration"),
        ("9" * 10_000 + "s", "is not a duration"),
    ],
)
def test_durations_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["90", "1:30", "90:30", "0:05"])
def test_duration_suggestions_are_themselves_read(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    words = str(caught.value).split("write", 1)[1].replace(",", " ").split()
    suggested = [word for word in words if word[0].isdigit()]
    assert len(suggested) >= 2
    assert len({parse_duration(word) for word in suggested}) == len(suggested)


def test_the_longest_duration() -> None:
    assert parse_duration(format_duration(MAX_SECONDS)) == MAX_SECONDS


@pytest.mark.parametrize(
    ("text", "range_"),
    [
        ("4", (4000, 4000)),
        ("0.5", (500, 500)),
        ("2..8", (2000, 8000)),
        ("0.125", (125, 125)),
        ("1.0..1.25", (1000, 1250)),
        ("0", (0, 0)),
        (" 4 ", (4000, 4000)),
        ("1000000", (10**9, 10**9)),
    ],
)
def test_cores(text: str, range_: tuple[int, int]) -> None:
    assert parse_cores(text) == range_


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not a number of cores: write 4, 0.5 or a range as in 2..8"),
        ("-1", "is not a number of cores"),
        ("1e3", "is not a number of cores"),
        ("0.0001", "is not a number of cores"),
        ("..", "is not a number of cores"),
        ("2...8", "is not a number of cores"),
        ("2-8", "is not a number of cores"),
        ("½", "is not a number of cores"),
        ("٤", "is not a number of cores"),
        ("four", "is not a number of cores"),
        ("8..2", "'8..2': the range of cores ends below where it begins"),
        ("1000001", "'1000001' is more than a million cores"),
        ("9" * 10_000, "is not a number of cores"),
    ],
)
def test_cores_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cores(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 200


def test_formats() -> None:
    assert format_size(0) == "0"
    assert format_size(1536) == "1536B"
    assert format_size(3 * GIB) == "3G"
    assert format_duration(0) == "0s"
    assert format_duration(90_061) == "1d1h1m1s"
    assert format_cores(1500) == "1.5"
    assert format_cores(1) == "0.001"
    assert format_cores(2000, 8000) == "2..8"
    assert format_cores(2000, 2000) == "2"

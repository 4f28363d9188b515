"""What is written can be read back, and what a shell is given is what the user gave."""

import os
import subprocess
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.model import amounts
from rota.model.batch import BatchSpec, Template, count_of, index_at, position_of
from rota.model.command import CommandMaker, needs_shell, split_line
from rota.model.errors import UsageError
from rota.model.needs import Amounts, Needs
from rota.model.selector import parse_selector


@given(st.integers(0, amounts.MAX_BYTES))
@example(amounts.MAX_BYTES)
def test_sizes_come_back(count: int) -> None:
    assert amounts.parse_size(amounts.format_size(count)) == count


@given(st.integers(1, 2**62))
def test_shown_sizes_are_near_and_not_more(count: int) -> None:
    text = amounts.show_size(count)
    scale = 1024 ** "BKMGTPE".index(text[-1])
    assert 0.98 * count - 1 <= float(text[:-1]) * scale <= count + 1


@given(st.integers(0, amounts.MAX_SECONDS))
def test_durations_come_back(seconds: int) -> None:
    assert amounts.parse_duration(amounts.format_duration(seconds)) == seconds


@given(st.integers(0, 99), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_clock_times(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert amounts.parse_duration(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == total
    assert amounts.parse_duration(f"{days * 24 + hours}:{minutes:02}:{seconds:02}") == total


@given(st.integers(0, amounts.MAX_MILLICORES), st.integers(0, amounts.MAX_MILLICORES))
def test_cores_come_back(one: int, other: int) -> None:
    least, most = sorted((one, other))
    assert amounts.parse_cores(amounts.format_cores(least, most)) == (least, most)


WORDS = st.one_of(
    st.text(max_size=30),
    st.from_regex(r"[0-9\u0660-\u0669.:\-]{0,40}[kKmMgGtTiIbBsShHdDwW\u212a\u017f]{0,3}", fullmatch=True),
)


@given(WORDS)
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    for parse in (amounts.parse_size, amounts.parse_duration, amounts.parse_cores, lambda word: parse_selector([word])):
        try:
            parse(text)
        except UsageError as error:
            assert str(error)


COUNTS = st.integers(0, 50)
AMOUNTS = st.builds(
    Amounts,
    COUNTS,
    COUNTS,
    COUNTS,
    COUNTS,
    st.dictionaries(st.sampled_from("abc"), COUNTS, max_size=3).map(lambda named: tuple(sorted(named.items()))),
)


def vector(of: Amounts) -> dict[str, int]:
    return {"cores": of.cores, "memory": of.memory, "disk": of.disk, "gpus": of.gpus, **dict(of.named)}


@given(AMOUNTS, AMOUNTS, st.integers(-5, 5))
def test_plus_is_a_sum_of_vectors(one: Amounts, other: Amounts, times: int) -> None:
    total = vector(one.plus(other, times))
    for name in {*vector(one), *vector(other)}:
        assert total.get(name, 0) == vector(one).get(name, 0) + times * vector(other).get(name, 0)
    assert one.plus(other, times).plus(other, -times) == one.plus(Amounts())
    assert one.plus(other, times).negative() == any(count < 0 for count in total.values())


@given(AMOUNTS, AMOUNTS)
def test_times_in_and_lacking_agree(asked: Amounts, free: Amounts) -> None:
    times = asked.times_in(free)
    assert (times > 0) == (not asked.lacking(free))
    if times < 1 << 30:
        assert not free.plus(asked, -times).negative()
        assert free.plus(asked, -times - 1).negative()
    else:
        assert not any(vector(asked).values())
    for what, wanted, has in asked.lacking(free):
        assert wanted > has and vector(asked)[what] == wanted and vector(free).get(what, 0) == has


BELOW = st.builds(Amounts, st.integers(-3, 9), st.integers(-3, 9), st.integers(-3, 9), st.integers(-3, 9))


@given(AMOUNTS, BELOW)
def test_where_too_much_is_in_use_only_what_is_asked_for_counts(asked: Amounts, free: Amounts) -> None:
    """A node that came back smaller may lack memory and still have cores for jobs that ask for no memory."""
    fits = asked.times_in(free) > 0
    assert asked.fits(free) == fits == (not asked.lacking(free))
    assert fits == all(vector(free).get(name, 0) >= count for name, count in vector(asked).items() if count)


@given(AMOUNTS, st.integers(0, 5))
def test_nothing_fits_into_less_than_nothing(asked: Amounts, below: int) -> None:
    free = Amounts(-below, -below, -below, -below)
    assert asked.times_in(free) in ((0,) if any(vector(asked).values()) else (1 << 30,))


@st.composite
def ranges(draw: st.DrawFn) -> tuple[tuple[int, int, int], ...]:
    out, at = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 4))):
        step, size, slack = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(0, 4))
        last = at + (size - 1) * step
        out.append((at, last + min(slack, step - 1), step))
        at = last + 1 + draw(st.integers(0, 5))
    return tuple(out)


@given(ranges())
def test_numbers_and_positions_are_inverse(given_ranges: tuple[tuple[int, int, int], ...]) -> None:
    count = count_of(given_ranges)
    BatchSpec(count, (Template(argv=("true",)),), ranges=given_ranges).check()
    numbers = [index_at(given_ranges, pos) for pos in range(count)]
    assert numbers == sorted(set(numbers))
    assert [position_of(given_ranges, count, number) for number in numbers] == list(range(count))
    assert [position_of(given_ranges, count, number) for number in range(numbers[-1] + 9) if number not in numbers] == [
        None
    ] * (numbers[-1] + 9 - count)


@given(st.builds(Needs, COUNTS, COUNTS, COUNTS, st.none() | COUNTS, st.none() | COUNTS, st.none() | COUNTS, COUNTS))
def test_needs_travel(needs: Needs) -> None:
    assert msgspec.json.decode(msgspec.json.encode(needs), type=Needs) == needs
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(needs), type=Needs) == needs


# ---- what a shell makes of it ---------------------------------------------------------------------------------------


class Bash:
    """One shell that evaluates many lines, since to start one for each would take most of the time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            ["bash", "--norc", "-c", 'while IFS= read -r -d "" line; do eval "$line"; printf "\\1\\0"; done'],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            cwd="/",
        )

    def run(self, line: str) -> list[bytes]:
        """The NUL-ended words that the line printed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line.encode() + b"\0")
        self.process.stdin.flush()
        out = b""
        while not out.endswith(b"\1\0"):
            piece = os.read(self.process.stdout.fileno(), 65_536)
            assert piece, f"the shell ended at {line!r}"
            out += piece
        return out[:-2].split(b"\0")[:-1]


@pytest.fixture(scope="module")
def bash() -> Iterator[Bash]:
    shell = Bash()
    yield shell
    assert shell.process.stdin is not None and shell.process.stdout is not None
    shell.process.stdin.close()
    shell.process.stdout.close()
    shell.process.wait()


VALUES = st.text(st.characters(exclude_characters="\0\1", exclude_categories=("Cs",)), max_size=30) | st.text(
    "'\"\\$`!*?[]{}()~#;&|<>=% \t\n-ab", max_size=12
)
NASTY = [
    "",
    "'",
    '"',
    "\\",
    "a\nb",
    "\n",
    " ",
    "$(exit 3)",
    "`exit 3`",
    "-n",
    "~",
    "!!",
    "*",
    "é",
    "\\'",
    "'\\''",
    "${x}",
    "{}",
]


@pytest.mark.parametrize(
    "text",
    [
        r"printf '%s\0' {}",
        r'''printf "%s\0" "{}"''',
        r"""printf '%s\0' '{}'""",
        r"""printf '%s\0' "$(printf '%s.' {})" | sed -z 's/[.]$//' """,
        r"""printf '%s\0' "$(printf '%s.' "{}")" | sed -z 's/[.]$//' """,
        r"""bash -c 'printf "%s\0" "$1"' x {}""",
        r"(printf '%s\0' {})",
        r"""x="{}"; printf '%s\0' "$x" """,
        r"printf '%s\0' {} # it's only a remark",
    ],
)
def test_a_value_reaches_the_command_byte_for_byte(bash: Bash, text: str) -> None:
    maker = CommandMaker(Template(shell=text), ("",), 1)

    @settings(max_examples=40)
    @given(VALUES)
    def check(value: str) -> None:
        line = maker.command(value, 1, 1)
        assert isinstance(line, str)
        assert bash.run(line) == [value.encode()]

    check()
    for value in NASTY:
        line = maker.command(value, 1, 1)
        assert isinstance(line, str)
        assert bash.run(line) == [value.encode()]


def test_a_new_shell_says_the_same() -> None:
    maker = CommandMaker(Template(shell=r"""printf '%s\0' {} "{}" '{}' a{}b"""), ("",), 1)
    for value in NASTY:
        line = maker.command(value, 1, 1)
        assert isinstance(line, str)
        printed = subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout
        assert printed == b"".join(word.encode() + b"\0" for word in (value, value, value, f"a{value}b"))


@given(st.text("ab/.:,=+%@_- \t01", min_size=1, max_size=30))
@settings(max_examples=150)
def test_plain_lines_split_as_a_shell_would(bash: Bash, rest: str) -> None:
    line = "/x " + rest
    assert not needs_shell(line)
    words = split_line(line)
    assert bash.run(f"/x() {{ :; }}; printf '%s\\0' {line}") == [word.encode() for word in words]


@given(
    st.lists(st.text("a $;'{}", max_size=5).map(lambda word: word.replace("{}", "")), min_size=1, max_size=4), VALUES
)
def test_an_argv_takes_values_as_they_are(words: list[str], value: str) -> None:
    made = CommandMaker(Template(argv=("x", *words, "{}", "={}=")), ("",), 1).command(value, 1, 1)
    assert isinstance(made, list)
    assert made[-2:] == [value, f"={value}="]
    assert len(made) == len(words) + 3


@given(st.text("{}$ab ", max_size=20), VALUES)
def test_only_placeholders_are_replaced(text: str, value: str) -> None:
    """Without braces in a row, the text around `{}` stays, and after `$` all of it."""
    if "{{" in text:
        return
    (made,) = CommandMaker(Template(argv=(text or "x",)), ("",), 1).command(value, 1, 1)
    pieces = (text or "x").replace("${}", "\0").split("{}")
    assert made == value.join(pieces).replace("\0", "${}") or "\0" in value

"""Answers of batch systems, and names, that are made to harm."""

import asyncio
import threading

import pytest

from driver_world import FACTS, ScriptedTransport, ToyDialect
from rota.cli.jobs import field_text
from rota.cli.show import clean, print_json
from rota.drivers import native
from rota.drivers.api import Known
from rota.drivers.command import CommandDriver
from rota.drivers.dialect import Answer
from rota.drivers.transport import ROWS_MOST, LocalTransport


def test_a_few_bytes_do_not_become_millions_of_rows():
    with native.Room() as room:
        total = sum(len(native.ranges("0-99998") or ()) for _ in range(30))
    assert total <= native.EXPANDED_MOST
    assert room.exceeded
    with native.Room(4) as room:
        assert native.ranges("3-4,6") == [3, 4, 6]
        assert not room.exceeded
        assert native.ranges("1-2") is None
    assert room.exceeded, "more than anybody asked for"


def test_a_large_answer_does_not_hold_up_the_loop():
    """The reader waits for the loop: in the loop it would wait for ever."""
    ticked = threading.Event()

    class Slow(ToyDialect):
        def read_listing(self, answer, options):
            assert ticked.wait(30), "the loop stood still while an answer was read"
            return super().read_listing(answer, options)

    async def look():
        listing = "".join(f"{n} R {n:012x} 0 -\n" for n in range(10_000))
        transport = ScriptedTransport(tstat=[Answer(0, listing, "")])
        driver = CommandDriver("toy", Slow(), transport, FACTS, user="me")
        asyncio.get_running_loop().call_later(0.05, ticked.set)
        return await driver.poll([Known("a1", f"{7:012x}", "7")])

    assert [seen.id for seen in asyncio.run(look())] == ["a1"]


def test_lines_of_an_answer_are_bounded(tmp_path):
    with open(tmp_path / "x", "w+b") as file:
        file.write(b"1\n" * (ROWS_MOST + 5))
        file.flush()
        text, cut = LocalTransport()._text(file)
    assert cut
    assert text.count("\n") == ROWS_MOST


def test_names_cannot_do_anything_to_a_terminal():
    hostile = "a\x1b]0;x\x07\u202egnp.exe\u2066\u200b\r\n\tz"
    for shown in (clean(hostile), field_text(hostile), field_text([hostile])):
        assert shown.isprintable(), shown
        assert not set("\x1b\u202e\u2066\u200b\r\n\t") & set(shown)


@pytest.mark.parametrize(
    "char", "\u00ad\u180e\u200c\u200d\u2060\u2064\u3164\u115f\ufff9\ud800\U000e0041\U000e0101\U0001d173"
)
def test_what_cannot_be_seen_is_shown_by_its_number(char: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert clean(f"a{char}b") == (f"a\\u{ord(char):04x}b" if char <= "\uffff" else f"a\\U{ord(char):08x}b")
    print_json({"name": char})
    assert capsys.readouterr().out.isascii()


def test_what_can_be_seen_stays_as_it_is() -> None:
    for text in ("größe", "日本語　x", "naïve\u00a0y", "e\u0301", "😀", "\ue0b0"):
        assert clean(text) == text

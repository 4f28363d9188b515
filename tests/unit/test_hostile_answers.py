"""Answers of batch systems, and names, that are made to harm."""

from rota.cli.jobs import field_text
from rota.cli.show import clean
from rota.drivers import native
from rota.drivers.transport import ROWS_MOST, LocalTransport


def test_a_few_bytes_do_not_become_millions_of_rows():
    with native.room:
        total = sum(len(native.ranges("0-99998") or ()) for _ in range(30))
    assert total <= native.EXPANDED_MOST
    assert native.room.exceeded
    with native.room:
        assert native.ranges("3-4,6") == [3, 4, 6]
    assert not native.room.exceeded


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

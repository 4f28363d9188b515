"""Tables of places: what is long and the same for many is said once."""

from rota.cli.jobs import attempt_line
from rota.cli.places import _numbered
from rota.cli.show import Once


def test_a_long_reason_of_many_is_said_once_with_a_count():
    refusal = "site hpc: nothing was submitted. The command was: sbatch " + "x" * 400
    rows = [{"reason": refusal} for _ in range(100)] + [{"reason": "short"}, {"reason": None}, {"reason": "y" * 90}]
    assert _numbered(rows) == {refusal: (1, 100), "y" * 90: (2, 1)}
    assert {row["reason"] for row in rows[:100]} == {f"{refusal[:60]}… [1]"}
    assert [row["reason"] for row in rows[100:]] == ["short", None, "y" * 60 + "… [2]"]


def test_a_long_note_of_many_attempts_is_shown_in_full_once():
    refusal = "site hpc: nothing was submitted. " + "x" * 400
    rows = [{"id": f"7.{number}", "attempt": 1, "state": "FAILED", "note": refusal} for number in (1, 2, 3)]
    once = Once()
    notes = [attempt_line(row, once)[-1] for row in [*rows, {**rows[0], "note": "short"}, {**rows[0], "note": None}]]
    assert notes[0] == refusal and notes[3:] == ["short", ""]
    assert notes[1] == notes[2] == f"{refusal[:60]}… (as try 1 of 7.1)"
    assert Once(f"FAILED: {refusal}").show(refusal, "of hpc") == f"{refusal[:60]}… (as above)"

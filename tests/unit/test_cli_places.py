"""Tables of places: what is long and the same for many is said once."""

from rota.cli.places import _numbered


def test_a_long_reason_of_many_is_said_once_with_a_count():
    refusal = "site hpc: nothing was submitted. The command was: sbatch " + "x" * 400
    rows = [{"reason": refusal} for _ in range(100)] + [{"reason": "short"}, {"reason": None}, {"reason": "y" * 90}]
    assert _numbered(rows) == {refusal: (1, 100), "y" * 90: (2, 1)}
    assert {row["reason"] for row in rows[:100]} == {f"{refusal[:60]}… [1]"}
    assert [row["reason"] for row in rows[100:]] == ["short", None, "y" * 60 + "… [2]"]

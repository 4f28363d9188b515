"""The accounting over witnessed jobs: what the manager does not know of, and a success that was none, are found."""

from process.support_witness import check


def told(state: str = "COMPLETED", attempt: int = 1) -> dict[str, object]:
    return {"id": "1.1", "state": state, "attempt": attempt, "reason": None}


def test_what_is_as_it_was_told_is_right(tmp_path):
    (tmp_path / "1").write_text("start 1.1 1 77 1.0\nend 1.1 1 77 2.0\n")
    found = check(str(tmp_path), [told()], [told()])
    assert (found.wrong, found.executions) == ([], 1)


def test_an_execution_that_is_not_in_the_history_is_untold(tmp_path):
    (tmp_path / "1").write_text("start 1.1 1 77 1.0\nstart 1.1 2 78 3.0\nend 1.1 2 78 4.0\n")
    found = check(str(tmp_path), [told(attempt=2)], [told(attempt=2)])
    assert found.untold == ["1.1 attempt 1 was executed and is not in the history"]
    assert not found.doubled


def test_a_success_of_what_never_came_to_its_end_is_untold(tmp_path):
    (tmp_path / "1").write_text("start 1.1 1 77 1.0\n")
    found = check(str(tmp_path), [told()], [told()])
    assert found.untold == ["1.1 is COMPLETED in attempt 1, which never came to its end"]

"""Many small batches that are settled: a restart tells the same of them, and they can be used again."""

import json

from process.support_filled import fill
from process.support_home import Home, home

__all__ = ["home"]


def told(home: Home) -> tuple[list[str], list[str]]:
    """All that `status` and `jobs` say of all batches; but not whether there is a manager."""
    said = home.json("status", "--all")
    batches, jobs = said.pop("batches"), home.rows("jobs")
    for row in (said, *jobs):
        row.pop("manager", None)
    texts = [[json.dumps(row, sort_keys=True) for row in rows] for rows in ([said, *batches], jobs)]
    return texts[0], texts[1]


def test_a_restart_tells_the_same_of_thousands(home: Home) -> None:
    fill(home.path, 5_000, 1)
    home.rota("up")
    before = told(home)
    assert [len(part) for part in before] == [5_001, 5_000]
    home.rota("down")
    home.rota("up")
    assert told(home) == before, "now from a checkpoint"
    home.kill_manager()
    home.rota("up")
    assert told(home) == before
    assert home.counts("4711") == {"ABORTED": 1}
    home.rota("down")
    assert told(home) == before, "and without a manager"


def test_a_job_of_a_settled_batch_is_run_again_after_a_restart(home: Home) -> None:
    flag = home.work / "flag"
    first = home.add("--name", "fine", "--", "true")
    failing = home.add("--name", "failing", "--array", "1-3", "--", f"test $ROTA_INDEX != 2 || test -e {flag}")
    home.rota("wait", first, failing, code=1)
    home.rota("down")
    home.rota("up")
    assert home.counts(failing) == {"COMPLETED": 2, "FAILED": 1}
    after = [home.add("--after", what, "--", "true") for what in (first, "@fine", f"{failing}.1")]
    assert home.settled(*after) == {"COMPLETED": 3}, "what is settled is waited for"
    never = home.add("--after", failing, "--", "true")
    assert home.settled(never) == {"OMITTED": 1}
    flag.touch()
    home.rota("retry", f"{failing}.2")
    waits = home.add("--after", failing, "--", "true")
    assert home.settled(waits) == {"COMPLETED": 1}
    assert [(row["state"], row["attempt"]) for row in home.rows("jobs", failing)] == [
        ("COMPLETED", 1),
        ("COMPLETED", 2),
        ("COMPLETED", 1),
    ]
    assert len(home.rows("history", f"{failing}.2")) == 2
    home.rota("down")
    home.rota("up")
    home.rota("remove", first)
    home.rota("prune", failing, waits, never, after[2])
    assert {row["id"] for row in home.json("status", "--all")["batches"]} == {int(number) for number in after[:2]}

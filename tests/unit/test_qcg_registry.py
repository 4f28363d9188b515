"""QCG's jobs by name: how their states follow from those of their iterations, and what a later pilot knows."""

from pathlib import Path
from typing import Any

import pytest

from rota.model.errors import RefusedError, UsageError
from rota.qcg.desk import Desk
from rota.qcg.jobs import Jobs
from rota.qcg.registry import Entry, Registry, qcg_state
from rota.qcg.translating import Room


class Manager:
    """Takes submissions, and knows nothing of what becomes of them."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.refuse = False

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        if op == "status":
            return {"batches": [{"id": at + 1, "name": each.spec.name} for at, each in enumerate(self.sent)]}
        if op == "count":
            return {"counts": {"PENDING": 1}}
        return {"jobs": [], "skipped": []} if op in ("jobs", "live") else {"jobs": 1, "skipped": []}

    def send(self, submission: Any) -> Any:
        if self.refuse:
            raise RefusedError("no space")
        self.sent.append(submission)

        class Batch:
            id = len(self.sent)

        return Batch


class World:
    """A desk, and what it told."""

    def __init__(self, path: Path, manager: Manager | None = None) -> None:
        self.manager = manager or Manager()
        self.followed: list[int] = []
        self.events: list[tuple[str, str]] = []
        self.desk = Desk(self.manager, Registry(str(path / "jobs")), Room((2,), str(path)), self.followed.extend)

    def submit(self, *jobs: dict[str, Any]) -> dict[str, Any]:
        return self.desk.answer({"request": "submit", "jobs": list(jobs)})

    def ends(self, batch: int, **states: str) -> list[tuple[str, str]]:
        """Jobs end: `_2="FAILED"`; the events of that."""
        self.events.clear()
        rows = [{"id": f"{batch}.{key[1:]}", "state": state} for key, state in states.items()]
        self.desk.take(rows, self.tell)
        return list(self.events)

    def tell(self, topic: str, what: dict[str, Any]) -> None:
        if topic in ("JFI", "IFI"):
            self.events.append((f"{what['job']}:{what['it']}" if "it" in what else what["job"], what["state"]))
        elif topic == "NOJ":
            self.events.append(("", "NOJ"))


def job(name: str, count: int | None = None, after: tuple[str, ...] = ()) -> dict[str, Any]:
    out: dict[str, Any] = {"name": name, "execution": {"exec": "true"}, "dependencies": {"after": list(after)}}
    return out if count is None else {**out, "iteration": {"stop": count}}


def test_a_job_ends_after_its_last_iteration_with_a_state_of_its_own(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.submit(job("a", 3), job("b"))["data"] == {"submitted": 2, "jobs": ["a", "b"]}
    assert world.followed == [1]
    assert world.ends(1, _2="FAILED", _4="COMPLETED") == [("a:1", "FAILED"), ("b", "SUCCEED")]
    assert world.ends(1, _2="FAILED") == [], "told once"
    assert world.ends(1, _1="COMPLETED", _3="COMPLETED") == [
        ("a:0", "SUCCEED"),
        ("a:2", "SUCCEED"),
        ("a", "FAILED"),
        ("", "NOJ"),
    ]


def test_who_waits_for_nobody_is_omitted_and_who_waits_for_him(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(job("late", after=("b",)), job("b", 2, after=("nobody",)), job("c"))
    assert len(world.manager.sent) == 1
    assert world.manager.sent[0].spec.count == 1
    assert world.ends(1) == [("late", "OMITTED"), ("b:0", "OMITTED"), ("b:1", "OMITTED"), ("b", "OMITTED")]
    world.submit(job("d", after=("b",)))
    assert world.ends(1, _1="COMPLETED") == [("d", "OMITTED"), ("c", "SUCCEED"), ("", "NOJ")]
    assert len(world.manager.sent) == 1


def test_all_or_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    for jobs, said in (
        ((job("a"), job("a")), "jobs[1].name: 'a' is the name of jobs[0] too"),
        ((job("a"), job("b", after=("b",))), "jobs[1].dependencies.after[0]: b waits for itself"),
        ((job("a", 2), job("b", after=("a:2",))), "jobs[1].dependencies.after[0]: a has no iteration 2"),
        ((job("a", 2), job("b", 3, after=("a:${it}",))), "a has no iteration 2"),
        ((job("a", 2), job("b", after=("a:x",))), "'x' is no number of an iteration"),
    ):
        answer = world.submit(*jobs)
        assert answer["code"] == 1
        assert said in answer["message"]
    world.manager.refuse = True
    assert world.submit(job("a")) == {"code": 1, "message": "no space"}
    assert not world.manager.sent
    assert not world.desk.registry.entries
    world.manager.refuse = False
    assert world.submit(job("a"))["code"] == 0


def test_a_later_pilot_knows_what_arrived_was_removed_and_was_cancelled(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.submit(job("a"), job("b", 2), job("o", after=("x",)))
    world.ends(1, _1="COMPLETED")
    assert world.desk.answer({"request": "removeJob", "jobNames": ["a", "b"]})["data"] == {
        "removed": 1,
        "errors": {"b": "b is not finished"},
    }
    assert world.desk.answer({"request": "cancelJob", "jobNames": ["b"]})["data"] == {"canceled": 1}
    world.desk.registry.announce("qcg-never-sent", [Entry("ghost", 0, 1, None)])
    with open(tmp_path / "jobs", "a") as file:
        file.write('{"request": "qcg-torn')
    again = World(tmp_path, world.manager)
    assert list(again.desk.registry.entries) == ["b", "o"]
    assert again.followed == [1]
    assert again.ends(1, _1="COMPLETED", _2="ABORTED", _3="COMPLETED") == [
        ("b:0", "CANCELED"),
        ("b:1", "SUCCEED"),
        ("b", "CANCELED"),
        ("", "NOJ"),
    ]
    assert again.submit(job("a"))["code"] == 0, "the name is free"


@pytest.mark.parametrize(
    ("counts", "cancelled", "state"),
    [
        ({"WAITING": 2}, False, "QUEUED"),
        ({"PENDING": 1, "COMPLETED": 1}, False, "EXECUTING"),
        ({"STARTING": 1, "PENDING": 5}, False, "SCHEDULED"),
        ({"RUNNING": 1, "PENDING": 5}, False, "EXECUTING"),
        ({"COMPLETED": 2}, False, "SUCCEED"),
        ({"COMPLETED": 2, "FAILED": 1}, False, "FAILED"),
        ({"OMITTED": 2}, False, "OMITTED"),
        ({"COMPLETED": 1, "OMITTED": 2}, False, "FAILED"),
        ({"COMPLETED": 1, "ABORTED": 2}, True, "CANCELED"),
        ({"ABORTED": 1}, False, "CANCELED"),
    ],
)
def test_states(counts: dict[str, int], cancelled: bool, state: str) -> None:
    assert qcg_state(counts, cancelled) == state


def test_groups_of_descriptions(tmp_path: Path) -> None:
    jobs = Jobs().add(name="a", exec="x", args="y", iteration=3, numCores=2, after="z").add({"script": "true"})
    assert jobs.jobs()[0] == {
        "name": "a",
        "execution": {"exec": "x", "args": ["y"]},
        "resources": {"numCores": 2},
        "iteration": {"start": 0, "stop": 3},
        "dependencies": {"after": ["z"]},
    }
    path = str(tmp_path / "jobs.json")
    jobs.save_to_file(path)
    again = Jobs()
    again.load_from_file(path)
    assert again.ordered_job_names() == jobs.job_names()
    again.remove("a")
    assert again.clear() == 1
    for wrong in ({"name": "a", "exec": "x", "nope": 1}, {"name": "b"}):
        with pytest.raises(UsageError):
            Jobs().add(**wrong)

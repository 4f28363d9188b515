"""Settled batches are put away: what they hold then, what is told of them, and how they come back."""

import gc
import tracemalloc

import pytest

from core_world import World, run_jobs
from rota.core.batch import BatchState
from rota.core.settled import SMALL, Settled, put_all_away, put_away, whole
from rota.core.snapshot import durable_view
from rota.core.stimuli import Prune
from rota.manager.answers.status import count_jobs, status
from rota.model.batch import Template
from rota.model.patch import Patch
from rota.model.selector import parse_selector
from rota.wire.messages import Status
from state_print import whole_print

FAILING = Template(argv=("false",), group="g", limits=("db",), set={"A": "1"})


def away(world: World) -> list[int]:
    """The batches that were put away."""
    return [batch.id for batch in world.state.batches.rows() if isinstance(batch, Settled)]


def rest(world: World) -> None:
    world.checkpoint()
    world.check_restart()


def a_past() -> World:
    """1 completed, 2 failed, 3 partly, 4 killed, 5 waits for nothing any more, 6 lives."""
    world = World()
    run_jobs(world, world.submit(name="x"), 0)
    run_jobs(world, world.submit(template=FAILING, name="x"), 1)
    run_jobs(world, world.submit(3, ranges=((2, 6, 2),)), 0, 1, 0)
    world.change("kill", str(world.submit(2)))
    world.submit(after=["2"])
    world.submit(2)
    return world


def test_what_is_settled_is_put_away() -> None:
    world = a_past()
    assert away(world) == []
    put_away(world.state.batches, [3, 6, 7])
    assert away(world) == [3], "6 lives, and there is no 7"
    rest(world)
    assert away(world) == [1, 2, 3, 4, 5]
    assert list(world.state.batches) == [1, 2, 3, 4, 5, 6]
    assert len(world.state.batches) == 6 and 3 in world.state.batches and 7 not in world.state.batches
    assert [batch.id for batch in world.state.batches.open()] == [6]


def test_what_was_put_away_before_a_checkpoint_is_kept_by_it() -> None:
    world = World()
    world.checkpoint()
    for _ in range(3):
        run_jobs(world, world.submit(name="x"), 0)
    put_all_away(world.state.batches)
    assert isinstance(world.state.batches[2], BatchState), "whole again, and no checkpoint has it yet"
    world.checkpoint()
    assert {(batch, chunk) for batch, chunk in world.columns} == {(n, chunk) for n in (1, 2, 3) for chunk in (-1, 0)}
    world.check_restart()
    world.change("retry", "1")
    put_all_away(world.state.batches)
    world.checkpoint()
    world.check_restart()


def test_whole_again_it_is_what_it_was() -> None:
    world = a_past()
    world.checkpoint()
    kept = [world.state.batches.peek(number) for number in (1, 2, 3, 4, 5)]
    world = a_past()
    for number, settled in enumerate(kept, 1):
        assert isinstance(settled, Settled)
        before, after = world.state.batches[number], whole(settled)
        before.dirty.clear()  # that a checkpoint has written it,
        before.followed, before.met, before.seen, before.epoch = False, 0, -1, after.epoch  # and looks that start over
        for name in BatchState.__slots__:
            if name not in ("graph", "queues"):
                assert getattr(after, name) == getattr(before, name), name
        assert [queue.count for queue in after.queues] == [0] * len(before.queues)
        for name in ("id", "name", "submitted", "count", "counts", "unsettled", "edges", "changes"):
            assert getattr(settled, name) == getattr(before, name), name


def test_questions_leave_it_where_it_is() -> None:
    world = a_past()
    rest(world)
    before = whole_print(world.state)
    assert count_jobs(world.state, []) == {
        "jobs": 10,
        "counts": {"COMPLETED": 3, "FAILED": 2, "ABORTED": 2, "OMITTED": 1, "PENDING": 2},
    }
    said = status(world.state, Status(), world.at)
    assert [(row["id"], row["name"], row["jobs"]) for row in said["batches"]][:3] == [
        (1, "x", 1),
        (2, "x", 1),
        (3, "", 3),
    ]
    assert said["batches"][4]["after"][0]["target"] == "2"
    looked = world.state.batches.look(2)
    assert looked is not None and looked.template(0).set == {"A": "1"}
    assert away(world) == [1, 2, 3, 4, 5] and world.state.batches.fetched == 0
    assert whole_print(world.state) == before


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_of_it_is_retried(restarted: bool) -> None:
    world = a_past()
    rest(world)
    if restarted:
        world.restart()
        assert away(world) == [1, 2, 3, 4, 5]
        world.greet(world.runners["r1"])
    world.change("retry", "3.4")
    assert world.states(3) == ["COMPLETED", "PENDING", "COMPLETED"]
    assert away(world) == [1, 2, 4, 5]
    world.change("retry", "2", patch=Patch(priority=7))
    run_jobs(world, 2, 0)
    run_jobs(world, 3, 0)
    assert world.states(3) == ["COMPLETED"] * 3
    assert world.state.batches[2].template(0).priority == 7
    ended = [(result.batch, result.pos, result.attempt) for result in world.results]
    assert len(set(ended)) == len(ended), "no attempt is given twice"
    rest(world)
    assert 2 in away(world) and 3 in away(world)
    kept = world.state.batches.peek(2)
    assert kept is not None and kept.changes == 1, "known to `--once`, which compares what jobs are changed to"


@pytest.mark.parametrize("restarted", [False, True])
def test_others_depend_on_it(restarted: bool) -> None:
    world = a_past()
    rest(world)
    if restarted:
        world.restart()
        world.greet(world.runners["r1"])
    expected = {
        ("1",): "PENDING",
        ("2",): "OMITTED",
        (("2", "failure"),): "PENDING",
        ("3.2",): "PENDING",
        ("3.4",): "OMITTED",
        ("@x",): "OMITTED",
        (("@x", "any"),): "PENDING",
    }
    for after, state in expected.items():
        assert world.states(world.submit(after=list(after))) == [state], after
    world.change("retry", "2")
    waits = world.submit(after=["2", ("@x", "any")])
    assert world.states(waits) == ["WAITING"]
    run_jobs(world, 2, 0)
    assert world.states(waits) == ["PENDING"], "it is told of a batch that was put away, and lived again"
    rest(world)


def test_it_is_removed_and_pruned() -> None:
    world = a_past()
    rest(world)
    world.change("remove", "3.2")
    assert world.counts(3) == {"REMOVED": 1, "FAILED": 1, "COMPLETED": 1}
    rest(world)
    world.step(
        Prune(at=world.at, selector=parse_selector([]), older_than_s=0, keep=0, dry_run=False, young=frozenset())
    )
    assert list(world.state.batches) == [6]
    assert "x" not in world.state.names and len(world.state.keys) == 1
    rest(world)


def test_what_is_needed_elsewhere_stays_whole() -> None:
    world = World()
    stays = [
        world.submit(2, at_once=1),
        world.submit(not_before=world.wall + 1000),
        world.submit(SMALL + 1),
        twin := world.submit(2),
    ]
    world.submit(2, after=[(str(twin), "success", True)])
    world.change("kill", *map(str, world.state.batches))
    rest(world)
    assert not set(away(world)) & set(stays)
    world.restart()
    assert not set(away(world)) & set(stays)
    world.change("retry", str(stays[1]))
    world.tick(2000)
    assert world.states(stays[1]) == ["PENDING"], "its time is not forgotten"


def test_a_key_is_known_for_good() -> None:
    world = World()
    first = world.submit(key="same")
    world.change("kill", str(first))
    rest(world)
    assert world.submit(key="same") == first
    world.restart()
    assert world.submit(key="same") == first
    assert away(world) == [first]


def test_a_chain_of_many_is_no_recursion() -> None:
    world = World(check=False)
    world.submit()
    for number in range(1, 3000):
        world.submit(after=[str(number)])
    world.change("kill", *map(str, world.state.batches))
    world.checkpoint()
    assert len(away(world)) == 3000
    assert world.state.batches[3000].edges == ((2999, 0, 1),)
    assert durable_view(world.rebuilt(False)) == durable_view(world.state)


def test_it_takes_a_fraction_of_a_whole_one() -> None:
    world = World(check=False)
    template = Template(argv=("process", "--input", "sample.dat"), cwd="/home/someone/project", group="process")

    def settle(count: int) -> None:
        for _ in range(count):
            world.change("kill", str(world.submit(template=template, name="align", key=f"{world.keys:032x}")))
            world.log[:] = [b""] * len(world.log)  # what the test itself keeps does not count
        world.checkpoint()
        for kept in (world.columns, world.results, world.effects):
            kept.clear()
        gc.collect()

    settle(200)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        settle(1000)
        each = (tracemalloc.get_traced_memory()[0] - before) / 1000
    finally:
        tracemalloc.stop()
    assert each < 1300, f"{each:.0f} bytes"

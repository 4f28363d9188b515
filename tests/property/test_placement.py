"""Random work on random stacks: nothing is over-booked at any level, and everything is returned."""

import asyncio
import random
from typing import Any

import pytest

from placement_world import Connector, Context, Waits, a_target, asynchronous, host, settle
from rota.model.needs import Amounts
from rota.placement import BindingConfig, DefaultScheduler, Hardware, PlacementError, Status, Storage
from rota.placement.levels import capacity_of
from rota.placement.policies import POLICIES


def a_world(chance: random.Random) -> list[Connector]:
    """Hosts, containers on some of them, containers in these, and a queue on a login node."""
    nodes = [
        host(
            f"n{number}",
            "nodes",
            hardware=Hardware(
                chance.choice((2, 4)),
                chance.choice((400, 1000)),
                {"/": Storage("/", 50), "/data": Storage("/data", 100)},
                {"gpus": chance.choice((0, 2))},
            ),
        )
        for number in range(chance.randint(1, 3))
    ]
    boxes = []
    for number in range(chance.randint(1, 4)):
        below = chance.choice([*nodes, *boxes])
        bind = "/data/b" if below in nodes else "/w/b"
        inner = Hardware(3, 500, {"/": Storage("/", 20), "/w": Storage("/w", 60, bind=bind)}, {"gpus": 1})
        boxes.append(host(f"c{number}", "boxes", hardware=inner, stacked=chance.random() < 0.8, wraps=below))
    queue = host("q", "queue", hardware=None, slots=chance.randint(1, 3), wraps=nodes[0])
    return [Connector("nodes", *nodes), Connector("boxes", *boxes), Connector("queue", queue)]


def a_need(chance: random.Random) -> Hardware | None:
    if chance.random() < 0.1:
        return None
    paths = {chance.choice(("/w/x", "/data/y", "/tmp/z"))}
    disk = {"out": Storage("/", chance.choice((0, 5, 15)), paths)}
    return Hardware(chance.choice((0.5, 1, 3)), chance.choice((0, 100, 400)), disk, {"gpus": chance.choice((0, 0, 1))})


def check(scheduler: DefaultScheduler) -> None:
    """No location is over-booked, and what is in use is what jobs hold."""
    usage = scheduler.usage
    booked = usage.booked
    for name, used in usage.ledger.used.items():
        assert used == booked.get(name, Amounts()), name
        capacity = capacity_of(usage.known[name])
        assert not capacity.plus(used, -1).negative(), f"{name}: {used} of {capacity}"
    active = {
        name for name, each in scheduler.job_allocations.items() if each.status in (Status.FIREABLE, Status.RUNNING)
    }
    listed = {
        job for names in scheduler.location_allocations.values() for each in names.values() for job in each.active
    }
    assert listed == active


@pytest.mark.parametrize("seed", range(25))
@asynchronous
async def test_random_work(seed: int) -> None:
    chance = random.Random(seed)
    scheduler = DefaultScheduler(Context(*a_world(chance)), reserve_after=chance.choice((0, 0.001, 60)))
    waits = Waits(scheduler)
    ends = [each for each in Status if each not in (Status.RUNNING, Status.FIREABLE)]
    for number in range(60):
        names = chance.sample(["nodes", "boxes", "queue"], chance.randint(1, 3))
        targets = [
            a_target(name, chance.choice(sorted(POLICIES)), locations=chance.choice((1, 1, 1, 2))) for name in names
        ]
        filters: list[Any] = ["shuffle"] if chance.random() < 0.3 else []
        try:
            await waits.add(f"j{number}", BindingConfig(targets, filters), a_need(chance))
        except PlacementError as error:
            assert "can never be placed" in str(error)
            del waits.tasks[f"j{number}"]
        check(scheduler)
        for name in [name for name, task in waits.tasks.items() if chance.random() < 0.25]:
            task = waits.tasks[name]
            if not task.done():
                if chance.random() < 0.5:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    del waits.tasks[name]
                    assert name not in scheduler.job_allocations
            else:
                task.result()
                if scheduler.get_allocation(name).status == Status.FIREABLE and chance.random() < 0.7:
                    await scheduler.notify_status(name, Status.RUNNING)
                await scheduler.notify_status(name, chance.choice(ends))
                del waits.tasks[name]
            await settle()
            check(scheduler)
    while waits.tasks:  # on a busy machine connectors are asked again before the next is placed
        done, _ = await asyncio.wait(waits.tasks.values(), timeout=30, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            break
        for name in [name for name, task in waits.tasks.items() if task.done()]:
            waits.tasks.pop(name).result()
            await scheduler.notify_status(name, Status.COMPLETED)
            await settle()
            check(scheduler)
    assert not waits.tasks, f"these wait though nothing runs: {[scheduler.explain(name) for name in waits.tasks]}"
    assert waits.is_empty() and not scheduler.queue.requests

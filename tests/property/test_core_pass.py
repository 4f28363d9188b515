"""The pass that costs by what changed does exactly what a full pass does, whatever has happened between passes."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from core_world import GIB, FakeRunner, World
from full_pass import ComparingCore
from place_world import PlaceWorld
from rota.core.plan import alone
from rota.core.plan.alone import place_alone
from rota.core.plan.turns import Turns
from rota.core.state import Settings
from rota.core.stimuli import Ended, Greet
from rota.model.batch import Template
from rota.model.errors import RotaError
from rota.model.limits import local_text
from rota.model.needs import Amounts, Needs
from rota.schedule.facts import Facts
from rota.schedule.places import Places
from rota.schedule.waiting import Entry

MIB = 1 << 20
LIMITS = {"few": 3, "some": 8, "rate": "1/s", "both": "4,6/min"}


class Chances:
    """A world to which things happen by chance; after each of them a pass is compared with a full one."""

    def __init__(self, seed: int, short: bool = False, crowd: bool = False) -> None:
        self.chance = random.Random(seed)
        after_s = self.chance.choice((None, 60.0, 300.0))
        self.world = World(Settings(backfill_after_s=after_s, missing_s=1e6), seed, check=False, site=False)
        self.world.core.__class__ = ComparingCore
        node = Amounts(8000, 16 * GIB, 50 * GIB, 2, (("lic", 2),))
        self.world.site("local", node)
        self.world.site("big", Amounts(16_000, 64 * GIB), most=50, tags=("big",), job_s=self.chance.choice((None, 900)))
        self.short = short
        self.crowd = crowd
        """Whether most shapes name one limit and nothing else."""
        self.numbers = 0

    def happen(self) -> None:
        kinds = (self.submit, self.end, self.runner, self.time, self.limit, self.change, self.away, self.mode)
        (kind,) = self.chance.choices(kinds, (6, 12, 2, 4, 1, 2, 2, 1))
        try:
            kind()
        except RotaError:
            pass
        self.world.schedule()

    def submit(self) -> None:
        chance = self.chance
        cores = chance.choice((500, 1000, 2000, 4000, 8000, 12_000))
        needs = Needs(
            cores=cores,
            cores_most=chance.choice((0, 0, 0, cores + 2000)),
            memory=chance.choice((None, GIB, 2 * GIB, 8 * GIB + chance.randrange(5) * MIB)),
            time_s=chance.choice((None, None, 30, 600, 4000)),
            gpus=chance.choice((0, 0, 0, 0, 1)),
            named=chance.choice(((), (), (), (("lic", 1),))),
            tags=chance.choice(((), (), (), ("big",))),
            site=chance.choice((None, None, None, "local")),
        )
        names = chance.sample(sorted(LIMITS), chance.choice((0, 0, 1, 1, 2)))
        if self.crowd:
            names = ["some"] if chance.random() < 0.8 else names if chance.random() < 0.1 else []
        template = Template(
            argv=("true",),
            needs=needs,
            priority=chance.choice((0, 0, 0, 5)),
            limits=tuple(sorted(names)),
            group=chance.choice(("", "", "learn")),
        )
        more = {"at_once": chance.randrange(1, 4)} if chance.random() < 0.2 else {}
        limits = {name: LIMITS[name] for name in names}
        self.world.submit(chance.randrange(1, 60 if self.short else 6), template, limits=limits, **more)

    def held(self) -> Iterator[tuple[FakeRunner, tuple[int, int, int]]]:
        for runner in self.world.runners.values():
            if self.world.state.runners[runner.name].state in ("SERVING", "DRAINING"):
                yield from ((runner, job) for job in runner.held)

    def end(self) -> None:
        held = list(self.held())
        for runner, job in self.chance.sample(held, min(len(held), self.chance.choice((1, 1, 2, 5)))):
            contact = self.world.state.soft.contacts[runner.name]
            if contact.connected:
                wall, peak = self.world.wall, self.chance.choice((1000, 3 * GIB))
                took = self.chance.choice((0.01, 0.05, 0.2)) if self.short else 10.0
                code = self.chance.choice((0, 0, 0, 1))
                row = Ended(*job, code, None, None, wall - took, wall, 0.5, peak, None, None)
                self.world.report(runner, ended=[row])

    def runner(self) -> None:
        chance, world = self.chance, self.world
        live = [name for name, each in world.state.runners.items() if each.state in ("SERVING", "DRAINING")]
        if len(live) > 6:
            return
        self.numbers += 1
        name = f"r{self.numbers}"
        planned = [each for each in world.state.allocations.values() if each.state == "SUBMITTING"]
        allocation = chance.choice([*planned, None])
        big = allocation is not None and allocation.site == "big"
        runner = world.runners[name] = FakeRunner(name, None if allocation is None else allocation.id)
        capacity = Amounts(16_000, 64 * GIB) if big else Amounts(8000, 16 * GIB, 50 * GIB, 2, (("lic", 2),))
        runner.connect += 1
        if allocation is not None:
            world.allocation(allocation.id, "run")
        world.step(
            Greet(
                at=world.at, by=name, runner=name, allocation=runner.allocation, connect=1, clock=world.mono, host=name,
                pid=1, capacity=capacity, held=[], tags=("big",) if big else (),
                until=chance.choice((None, world.wall + chance.randrange(20, 5000))),
            )
        )  # fmt: skip

    def time(self) -> None:
        self.world.tick(self.chance.choice((0.5, 2.0, 9.0, 60.0)))

    def limit(self) -> None:
        name = self.chance.choice(sorted(LIMITS))
        window = f"{local_text(int(self.world.wall) + 20)}<datetime"
        self.world.limit(name, self.chance.choice((0, 1, 5, LIMITS[name], None, window)))

    def change(self) -> None:
        batches = list(self.world.state.batches)
        if batches:
            self.world.change(
                self.chance.choice(("hold", "release", "kill", "remove")), str(self.chance.choice(batches))
            )

    def away(self) -> None:
        """A runner's connection breaks, or it is back, or it is to end."""
        names = [name for name, each in self.world.state.runners.items() if each.state in ("SERVING", "DRAINING")]
        if names:
            runner = self.world.runners[self.chance.choice(names)]
            capacity = self.world.state.runners[runner.name].capacity
            if self.chance.random() < 0.3:
                self.world.bye(runner)
            else:
                self.world.greet(runner, capacity=capacity)

    def mode(self) -> None:
        self.world.mode(self.chance.choice(("paused", "serving", "serving", "serving")))


@pytest.mark.parametrize("seed", range(60))
def test_it_does_what_a_full_pass_does(seed: int) -> None:
    chances = Chances(seed)
    for _ in range(120):
        chances.happen()


@pytest.mark.parametrize("seed", range(40))
def test_it_does_what_a_full_pass_does_with_gangs_and_queues(seed: int) -> None:
    world = PlaceWorld(seed, more=False)
    world.core.__class__ = ComparingCore
    for _ in range(100):
        world.happen()


@pytest.mark.parametrize("seed", [*range(30), 102, 138, 160, 200])
def test_it_leases_ahead_what_a_full_pass_does(seed: int) -> None:
    chances = Chances(seed, short=True)
    for _ in range(120):
        chances.happen()


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("short", [False, True])
def test_a_crowd_at_a_limit_gets_what_it_does_in_a_full_pass(seed: int, short: bool) -> None:
    chances = Chances(seed, short, crowd=True)
    for _ in range(120):
        chances.happen()


class Lonely(Chances):
    """Jobs come one by one, mostly alike, and mostly nobody waits."""

    def happen(self) -> None:
        kinds = (self.one, self.end, self.runner, self.time, self.away, self.change, self.mode, self.submit)
        (kind,) = self.chance.choices(kinds, (20, 24, 1, 3, 1, 1, 1, 1))
        try:
            kind()
        except RotaError:
            pass
        self.world.schedule()

    def one(self) -> None:
        chance = self.chance
        if chance.random() < 0.7:
            self.world.submit(1, Template(argv=("true",)))
            return
        needs = Needs(
            cores=chance.choice((1000, 1000, 1000, 2000, 8000)),
            cores_most=chance.choice((0, 0, 0, 0, 4000)),
            time_s=chance.choice((None, None, None, 60)),
            named=chance.choice(((), (), (), (("lic", 1),))),
        )
        group = chance.choice(("", "learn"))
        self.world.submit(chance.choice((1, 1, 1, 1, 2)), Template(argv=("true",), needs=needs, group=group))


@pytest.mark.parametrize("seed", range(0, 50, 5))
def test_who_comes_alone_gets_what_it_does_in_a_full_pass(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    monkeypatch.setattr("rota.core.plan.place_alone", lambda *args: found.append(1) or place_alone(*args))
    for each in range(seed, seed + 5):
        lonely = Lonely(each)
        for _ in range(3):
            lonely.runner()
        for _ in range(150):
            lonely.happen()
    assert len(found) > 40, "nobody came alone"


def test_filters_are_not_asked_again_about_what_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    refused = alone.refused
    monkeypatch.setattr(alone, "refused", lambda *args: asked.append(1) or refused(*args))
    world = World(check=False)
    world.core.__class__ = ComparingCore
    runner = world.start_runner()
    for _ in range(5):
        world.submit(1, Template(argv=("true",), group="learn"))
        world.schedule()
        (job,) = runner.held
        world.end(runner, job)
        world.schedule()
    first = len(asked)
    assert 1 <= first < 5, "what is asked for changes only with the first that is learned"
    world.start_runner("r2")
    world.submit(1, Template(argv=("true",), group="learn"))
    world.schedule()
    assert len(asked) == first + 1, "there is another place"


def test_a_place_that_is_not_as_it_was_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes a remembered place void is watched by these tests: without it they fail."""
    monkeypatch.setattr(Places, "changes", property(lambda self: 0, lambda self, value: None), raising=False)
    with pytest.raises(AssertionError, match=r"a full one does|over-committed"):
        for seed in range(0, 50, 5):
            with pytest.MonkeyPatch.context() as patch:
                test_who_comes_alone_gets_what_it_does_in_a_full_pass(seed, patch)


def test_a_change_that_wakes_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.schedule.places.Places.refresh", lambda self, changed, view: changed.clear() or [])
    with pytest.raises(AssertionError, match="a full one does"):
        for seed in range(10):
            test_it_does_what_a_full_pass_does(seed)


def test_a_fact_that_wakes_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = Facts.tell

    def untold(self: Facts, *args: Any) -> bool:
        is_news = tell(self, *args)
        self.changed.clear()
        return is_news

    monkeypatch.setattr(Facts, "tell", untold)
    with pytest.raises(AssertionError, match="a full one does"):
        for seed in range(15, 40):
            test_it_does_what_a_full_pass_does_with_gangs_and_queues(seed)


def test_limits_that_open_for_nobody_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.schedule.waiting.Waiting.naming", lambda self, names: iter(()))
    monkeypatch.setattr("rota.core.plan.watching._reopen", lambda state, view, woken: None)
    with pytest.raises(AssertionError, match="a full one does"):
        for seed in range(10):
            test_it_does_what_a_full_pass_does(seed)


@pytest.mark.parametrize("shapes", [10, 1000])
def test_one_job_that_ends_gives_turns_to_few_shapes(shapes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(check=False)
    runner = world.start_runner()
    world.submit(100, Template(argv=("true",), needs=Needs(cores=4000), priority=1))
    for number in range(shapes):
        world.submit(1, Template(argv=("true",), needs=Needs(cores=3000, memory=GIB + number * MIB)))
    world.schedule()
    had: list[int] = []
    give = Turns._turn

    def counted(self: Turns, entry: Entry, *args: Any, **more: Any) -> Any:
        had.append(entry.want.shape_id)
        return give(self, entry, *args, **more)

    monkeypatch.setattr(Turns, "_turn", counted)
    for _ in range(5):
        (job,) = runner.held
        world.end(runner, job)
        world.schedule()
        assert len(runner.held) == 1
    assert len(had) == 5  # the shape that goes first; all others are not looked at

"""A world in which all that has to do with places happens by chance: gangs, queues, gpus, limits, policies, faults."""

import random
from collections import Counter
from typing import Any

from msgspec.structs import replace

from core_world import GIB, FakeRunner, Job, World
from rota.core.effects import Effect, Hold, Order
from rota.core.state import Settings
from rota.core.step import Step
from rota.core.stimuli import Disconnected, Greet, Held, Released, SiteSeen, Touch
from rota.model import events as ev
from rota.model.batch import Template
from rota.model.errors import RotaError
from rota.model.needs import Amounts, Needs
from rota.model.site import QueueFacts, SiteFacts
from rota.model.slot import Slot
from rota.schedule.policy import DEFAULT, Policy

LOCAL = Amounts(8000, 16 * GIB, 50 * GIB, 2, (("lic", 2),))
THIN = Amounts(8000, 16 * GIB, 50 * GIB, 0, (("lic", 1),))
FAT = Amounts(16_000, 64 * GIB, 100 * GIB, 4)
SITES = {
    "local": SiteFacts(LOCAL, most=1, linger_s=1e9),
    "hpc": SiteFacts(
        FAT,
        most=5,
        linger_s=1e9,
        nodes_most=4,
        job_s=60,
        shared=(("tape", 2),),
        queues=(
            QueueFacts("thin", THIN, 20, 600, True, nodes_most=4),
            QueueFacts("fat", FAT, 6, tags=("big",), nodes_most=2),
        ),
    ),
}
POLICIES: dict[str, Policy] = {
    "default": DEFAULT,
    "ageing": replace(DEFAULT, order="ageing", scorers={"spread": 1.0, "snug": 1.0}),
    "turns": replace(DEFAULT, pick="round_robin"),
    "fair": replace(DEFAULT, order="fair_share", share_by="user", half_life_s=600, pick="weighted"),
}
LIMITS: dict[str, int | str] = {"few": 3, "some": 8, "rate": "1/s", "both": "4,6/min"}
GONE = ("CLOSED", "EXPIRED")


class PlaceWorld(World):
    """Its runners hold parts and release them, and their own books say what is given out."""

    def __init__(self, seed: int, policies: tuple[str, ...] = tuple(POLICIES), more: bool = True) -> None:
        self.chance = random.Random(seed)
        self.holds: dict[str, dict[Job, str]] = {}
        """Runner → the parts that it was asked to hold, and has not released."""
        self.releases: dict[str, set[Job]] = {}
        self.policies = policies
        self.more = more
        """Whether there are restarts and failures, too."""
        self.numbers = 0
        after_s = self.chance.choice((None, 60.0, 300.0))
        settings = Settings(backfill_after_s=after_s, policies=POLICIES, bad_host_failures=1000)
        super().__init__(settings, seed, check=False)

    def site(self, *given: Any, **more: Any) -> Step:
        for name, facts in SITES.items():
            step = self.step(SiteSeen(at=self.at, site=name, facts=facts))
        return step

    def _perform(self, effect: Effect) -> None:
        super()._perform(effect)
        if isinstance(effect, Hold) and effect.session == self.runners[effect.runner].session:
            for batch, pos, attempt, _ in effect.jobs:
                job = (batch, self.state.batches[batch].index(pos), attempt)
                if job not in self.releases.get(effect.runner, ()):
                    self.holds.setdefault(effect.runner, {})[job] = f"{effect.runner}:7"
        elif isinstance(effect, Order) and effect.what == "release":
            self.releases.setdefault(effect.runner, set()).update(effect.jobs)

    # ---- what happens ----

    def happen(self) -> None:
        """One thing, then a pass."""
        kinds = (
            self.add, self.finish, self.come, self.pass_some_time, self.set_limit, self.alter, self.cut, self.answer,
            self.die, self.replaced, self.over, self.pause, self.leave,
        )  # fmt: skip
        weights = (6, 10, 4, 4, 1, 2, 1, 9, *((1, 1, 1, 1, 1) if self.more else (0, 1, 1, 1, 0)))
        (kind,) = self.chance.choices(kinds, weights)
        try:
            kind()
        except RotaError:
            pass
        self.schedule()

    def add(self) -> None:
        chance = self.chance
        cores = chance.choice((500, 1000, 2000, 4000, 8000, 12_000))
        gpus, share = chance.choice(((0, 0), (0, 0), (0, 0), (1, 0), (2, 0), (0, 500), (0, 250)))
        needs = Needs(
            cores=cores,
            cores_most=chance.choice((0, 0, cores + 3000)),
            nodes=chance.choice((1, 1, 1, 2, 2, 3, 4)),
            memory=chance.choice((None, GIB, 8 * GIB)),
            time_s=chance.choice((None, 30, 500, 4000)),
            gpus=gpus,
            gpu_share=share,
            named=chance.choice(((), (), (("lic", 1),), (("tape", 1),))),
            tags=chance.choice(((), (), (), ("big",))),
            bind=chance.choice(("", "", "cores")),
        )
        names = chance.sample(sorted(LIMITS), chance.choice((0, 0, 1, 2)))
        template = Template(
            argv=("true",),
            needs=needs,
            priority=chance.choice((0, 0, 5)),
            limits=tuple(sorted(names)),
            retries=chance.choice((0, 1, 3)),
            rerunnable=chance.random() < 0.3,
            policy=chance.choice(self.policies),
        )
        more = {"at_once": chance.randrange(1, 4)} if chance.random() < 0.2 else {}
        self.submit(chance.randrange(1, 5), template, limits={name: LIMITS[name] for name in names}, **more)

    def serving(self) -> list[FakeRunner]:
        """Runners that are connected."""
        state = self.state
        return [
            runner
            for runner in self.runners.values()
            if not runner.expired
            and state.runners[runner.name].state not in GONE
            and state.soft.contacts[runner.name].connected
        ]

    def finish(self, most: int = 2) -> None:
        """Jobs start or end; what is to be killed is."""
        rows = [(runner, job) for runner in self.serving() for job in runner.held]
        for runner, job in self.chance.sample(rows, min(len(rows), most)):
            if runner.held[job] == "leased" and self.chance.random() < 0.5:
                self.report(runner, started=[job])
            elif any(order.what == "kill" and job in order.jobs for order in runner.orders):
                self.end(runner, job, None, 15, "killed")
            else:
                code = self.chance.choice((0, 0, 0, 1))
                self.end(runner, job, code, None, "exit" if code else None)

    def come(self) -> None:
        """A runner comes: on the next node of an allocation, or on none."""
        state = self.state
        for allocation in state.allocations.values():
            nodes = {name.split(".")[2] for name, each in state.runners.items() if each.allocation == allocation.id}
            if allocation.state in ("SUBMITTING", "PENDING", "RUNNING") and len(nodes) < allocation.nodes:
                if allocation.state != "RUNNING":
                    self.allocation(allocation.id, "run")
                self.start(allocation.id, len(nodes))
                return

    def start(self, allocation: str, node: int, **more: Any) -> None:
        self.numbers += 1
        it = self.state.allocations[allocation]
        name = f"{it.tag}.{it.element}.{node}.x{self.numbers}"
        self.runners[name] = FakeRunner(name, allocation)
        self.greet(self.runners[name], **more)

    def greet(self, runner: FakeRunner, *given: Any, **more: Any) -> Step:
        runner.connect += 1
        runner.got = 0
        runner.orders.clear()
        allocation = self.state.allocations[runner.allocation or ""]
        queue = next((each for each in SITES[allocation.site].queues if each.name == allocation.queue), None)
        return self.step(
            Greet(
                at=self.at,
                by=runner.name,
                runner=runner.name,
                allocation=runner.allocation,
                connect=runner.connect,
                clock=self.mono,
                host=f"{allocation.id}-{runner.name.split('.')[2]}",
                pid=1,
                capacity=allocation.capacity,
                tags=queue.tags if queue is not None else (),
                held=list(runner.held),
                holds=self.hold_rows(runner),
                gangs=True,
                **more,
            )
        )

    def hold_rows(self, runner: FakeRunner) -> list[tuple[int, int, int, str]]:
        return [(*job, address) for job, address in self.holds.get(runner.name, {}).items()]

    def answer(self) -> None:
        """Runners say what they hold, or that it is released; or give a sign of life."""
        for runner in self.serving():
            kind = self.chance.random()
            if kind < 0.5:
                self.step(
                    Held(at=self.at, runner=runner.name, session=runner.session, holds=self.hold_rows(runner))
                )  # fmt: skip
            elif kind < 0.8 and self.releases.get(runner.name):
                self.released(runner)
            elif kind < 0.9:
                self.touch(runner)

    def touch(self, runner: FakeRunner) -> Step:
        told = {"holds": self.hold_rows(runner), "held": list(runner.held)}
        return self.step(
            Touch(at=self.at, runner=runner.name, session=runner.session, got=runner.got, clock=self.mono, **told)
        )

    def released(self, runner: FakeRunner) -> None:
        jobs = self.releases.pop(runner.name, set())
        for job in jobs:
            self.holds.get(runner.name, {}).pop(job, None)
        self.step(Released(at=self.at, runner=runner.name, session=runner.session, jobs=sorted(jobs)))

    def pass_some_time(self) -> None:
        self.tick(self.chance.choice((0.5, 2.0, 9.0, 70.0)))

    def set_limit(self) -> None:
        name = self.chance.choice(sorted(LIMITS))
        self.limit(name, self.chance.choice((0, 1, 5, LIMITS[name], None)))

    def alter(self) -> None:
        batches = list(self.state.batches)
        if batches:
            self.change(
                self.chance.choice(("hold", "release", "kill", "retry")),
                str(self.chance.choice(batches)),
                confirm_dead=self.chance.random() < 0.1,
            )

    def cut(self) -> None:
        """A connection breaks; or a runner whose connection is gone is back."""
        live = [runner for runner in self.runners.values() if not self.is_over(runner)]
        if live:
            runner = self.chance.choice(live)
            if self.state.soft.contacts[runner.name].connected and self.chance.random() < 0.6:
                self.step(Disconnected(at=self.at, runner=runner.name, session=runner.session))
            else:
                self.greet(runner)

    def is_over(self, runner: FakeRunner) -> bool:
        return runner.expired or self.state.runners[runner.name].state in GONE

    def die(self) -> None:
        """The manager is killed, and starts again."""
        if self.chance.random() < 0.5:
            self.checkpoint()
        self.check_restart()
        self.restart(self.chance.random() < 0.5)
        for runner in self.runners.values():
            if not self.is_over(runner) and self.chance.random() < 0.7:
                self.greet(runner)

    def replaced(self) -> None:
        """A runner is killed, and its supervisor starts another."""
        live = [runner for runner in self.runners.values() if not self.is_over(runner)]
        if live:
            runner = self.chance.choice(live)
            self.forget(runner)
            self.start(runner.allocation or "", int(runner.name.split(".")[2]), replaces=runner.name)

    def forget(self, runner: FakeRunner) -> None:
        runner.expired = True
        runner.held.clear()
        self.holds.pop(runner.name, None)
        self.releases.pop(runner.name, None)

    def over(self) -> None:
        """An allocation ends, with all that ran there, or is refused, and its site is left alone for a while."""
        live = [each for each in self.state.allocations.values() if each.state.endswith("ING")]
        if live:
            allocation = self.chance.choice(live)
            for runner in self.runners.values():
                if runner.allocation == allocation.id:
                    self.forget(runner)
            refused = allocation.state == "SUBMITTING"
            self.allocation(allocation.id, "fail" if refused else self.chance.choice(("complete", "fail")), "so it is")

    def pause(self) -> None:
        self.mode(self.chance.choice(("paused", "serving", "serving", "serving")))

    def leave(self) -> None:
        """A runner that has nothing left goes."""
        idle = [r for r in self.serving() if not r.held and not self.holds.get(r.name)]
        if idle:
            runner = self.chance.choice(idle)
            self.bye(runner)
            self.forget(runner)

    # ---- to the end ----

    def settle(self, rounds: int = 400) -> None:
        """Nothing goes wrong any more: all that can run does."""
        self.mode("serving")
        for name, limit in LIMITS.items():
            if name in self.state.limits:
                self.limit(name, limit)
        for number in range(rounds):
            for allocation in list(self.state.allocations.values()):
                if allocation.state == "KILLING":
                    for runner in self.runners.values():
                        if runner.allocation == allocation.id:
                            self.forget(runner)
                    self.allocation(allocation.id, "complete")
            for runner in list(self.runners.values()):
                if not self.is_over(runner):
                    if not self.state.soft.contacts[runner.name].connected:
                        self.greet(runner)
                    self.touch(runner)
                    self.released(runner) if self.releases.get(runner.name) else None
            for _ in range(4):
                self.come()
            self.schedule()
            self.finish(1000)
            self.schedule()
            self.check_books()
            if self.is_settled():
                return
            if number % 8 == 7:
                self.vacate()
                self.change("release", ":holding")
            self.tick(self.chance.choice((1.0, 5.0, 31.0)))
        left = {number: self.counts(number) for number, batch in self.state.batches.items() if batch.unsettled}
        raise AssertionError(f"after {rounds} rounds these are left: {left}, parts {self.state.parts}")

    def vacate(self) -> None:
        """Allocations with nothing to do end, so that others can be had."""
        busy = {runner.allocation for runner in self.state.runners.values() if runner.jobs or runner.parts}
        for allocation in list(self.state.allocations.values()):
            if allocation.state == "RUNNING" and allocation.id not in busy:
                for runner in self.runners.values():
                    if runner.allocation == allocation.id:
                        self.forget(runner)
                self.allocation(allocation.id, "complete")

    def is_settled(self) -> bool:
        return not self.state.parts and all(not batch.unsettled for batch in self.state.batches.values())

    # ---- what must hold ----

    def check_books(self) -> None:
        """Nothing is given twice, on any level; a gang is whole. Counted from slots, not from the ledger."""
        shared: Counter[tuple[str, str]] = Counter()
        for runner in self.state.runners.values():
            given = [*runner.slots.items(), *((slot, 1) for slot in runner.parts.values())]
            self._check_node(runner.id, runner.capacity, given, dict(SITES[runner.site].shared))
            for slot, count in given:
                for name, amount in slot.amounts.named:
                    shared[runner.site, name] += amount * count
        for site, facts in SITES.items():
            for name, most in facts.shared:
                assert shared[site, name] <= most, f"{shared[site, name]} {name} at {site}, which has {most}"
        for batch in self.state.batches.values():
            for pos, live in batch.live.items():
                names = [live.runner, *(name for name, _ in live.parts)]
                assert len(set(names)) == len(names) == batch.template(pos).needs.nodes, f"{batch.id}/{pos}: {names}"
                if live.parts and pos not in batch.broken:
                    assert len({self.runners[name].allocation for name in names}) == 1, "a gang of two allocations"

    def _check_node(
        self, name: str, capacity: Amounts, given: list[tuple[Slot, int]], shared: dict[str, int]
    ) -> None:  # fmt: skip
        gpus: Counter[int] = Counter()
        used = Amounts()
        for slot, count in given:
            used = used.plus(replace(slot.amounts, gpus=0, gpu_share=0), count)
            wanted = slot.amounts.gpus or bool(slot.amounts.gpu_share)
            assert len(slot.gpus) == wanted, f"{name}: {slot}"
            for number in slot.gpus:
                gpus[number] += count * (slot.amounts.gpu_share or 1000)
        used = replace(used, named=tuple(pair for pair in used.named if pair[0] not in shared))
        assert not capacity.plus(used, -1).negative(), f"{name} has {capacity} and gave {used}"
        for number, share in gpus.items():
            assert share <= 1000 and number < capacity.gpus, f"{name}: {share}/1000 of gpu {number} are given"

    def check_returned(self) -> None:
        """All that was booked is given back."""
        state = self.state
        assert not any(amounts != Amounts() for amounts in state.ledger.used.values()), state.ledger.used
        assert not any(any(shares) for shares in state.ledger.gpus.values()), state.ledger.gpus
        assert not any(limit.used for limit in state.limits.values()), state.limits
        assert not any(runner.slots or runner.parts or runner.jobs for runner in state.runners.values())
        assert not any(batch.closing or batch.broken or batch.live for batch in state.batches.values())
        assert not state.soft.unsent and not state.soft.sent
        ended = Counter((event.batch, pos) for event in self.events() if isinstance(event, ev.Leased)
                        for low, high in zip(event.spans[::2], event.spans[1::2], strict=True)
                        for pos in range(low, high))  # fmt: skip
        for number, batch in state.batches.items():
            for pos in range(batch.count):
                assert batch.attempts[pos] == ended[number, pos], "each attempt was leased once"

"""Whatever happens, in whatever order: invariants hold, nothing is given out twice, the log rebuilds the state."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core_world import FakeRunner, Job, World
from rota.core.effects import Lease
from rota.core.state import Settings
from rota.core.stimuli import Disconnected, Tick
from rota.model.batch import Dependency, Template
from rota.model.errors import NotFoundError, RotaError, UsageError
from rota.model.needs import Amounts, Needs
from rota.model.tables import JOB_STATES

NODE = Amounts(4000, 100, 100, 1, (("lic", 2),))
TEMPLATES = st.builds(
    Template,
    st.just(("true",)),
    needs=st.builds(
        Needs,
        st.sampled_from((500, 1000, 3000)),
        st.sampled_from((0, 0, 4000)),
        memory=st.sampled_from((None, 40)),
        named=st.sampled_from(((), (("lic", 1),))),
    ),
    priority=st.integers(0, 1),
    retries=st.integers(0, 2),
    limits=st.sampled_from(((), ("db",), ("db", "net"))),
    rerunnable=st.booleans(),
)
CODES = st.sampled_from(
    ((0, None, None), (1, None, None), (127, None, None), (None, 9, None), (None, 15, "runner-stopped"))
)
WORDS = st.sampled_from((":failed", ":completed", ":running", ":pending", ":omitted", ":missing"))


class Machine(RuleBasedStateMachine):
    """Clients, runners, drivers and the clock, all at random."""

    make = World

    @initialize(seed=st.integers(0, 9), most=st.integers(1, 2))
    def begin(self, seed: int, most: int) -> None:
        self.most = most
        self.world = self.make(Settings(losses=1), seed, site=False)
        self.world.site(node=NODE, most=most)
        self.world.step(Tick(at=self.world.at))
        self.made = 0
        self.sent: dict[Job, str] = {}
        """To whom each attempt was ever sent."""
        self.seen = 0

    # ---- clients ----

    @rule(data=st.data(), count=st.integers(1, 5), templates=st.lists(TEMPLATES, min_size=1, max_size=2))
    def submit(self, data: st.DataObject, count: int, templates: list[Template]) -> None:
        more: dict[str, Any] = {}
        if len(templates) == 2:
            cut = data.draw(st.integers(0, count))
            more["runs"] = [0, cut, 1, count - cut] if data.draw(st.booleans()) else [1, cut, 0, count - cut]
        if data.draw(st.booleans()):
            more["at_once"] = data.draw(st.integers(1, 2))
        if data.draw(st.booleans()):
            more["name"] = data.draw(st.sampled_from("xy"))
        if data.draw(st.booleans()):
            first = data.draw(st.integers(0, 3))
            step = data.draw(st.integers(1, 3))
            more["ranges"] = ((first, first + (count - 1) * step, step),)
        if data.draw(st.integers(0, 4)) == 0:
            more["not_before"] = self.world.wall + data.draw(st.integers(-5, 100))
        targets = ["@x", "@y", "@z"]
        for batch in self.world.state.batches.values():
            targets += [
                str(batch.id),
                f"{batch.id}.{batch.index(0)}",
                f"{batch.id}.{batch.index(0)}-{batch.index(batch.count - 1)}",
            ]
        condition = st.sampled_from(("success", "any", "failure"))
        if data.draw(st.booleans()):
            chosen = data.draw(st.lists(st.tuples(st.sampled_from(targets), condition), max_size=2))
            more["after"] = [self.dependency(data, *one) for one in chosen]
        before = self.world.state.seq
        try:
            self.world.submitted(count, templates=tuple(templates), **more)
        except UsageError as error:  # the batch would wait for itself, or has other numbers than its twin
            assert "wait for itself" in str(error) or "--each" in str(error)
            assert self.world.state.seq == before

    def dependency(self, data: st.DataObject, target: str, condition: Any) -> Dependency:
        live = target.startswith("@") and data.draw(st.booleans())
        rerun = live and data.draw(st.booleans())
        return Dependency(target, condition, not live and data.draw(st.booleans()), live, rerun)

    @precondition(lambda self: self.world.state.batches)
    @rule(
        data=st.data(),
        what=st.sampled_from(("kill", "hold", "release", "retry", "remove")),
        flags=st.sampled_from(({}, {}, {"stop": True}, {"confirm_dead": True}, {"dry_run": True})),
    )
    def change(self, data: st.DataObject, what: str, flags: dict[str, bool]) -> None:
        number = data.draw(st.sampled_from(list(self.world.state.batches)))
        batch = self.world.state.batches[number]
        low = data.draw(st.integers(0, batch.count - 1))
        words = data.draw(
            st.sampled_from(([str(number)], [f"{number}.{batch.index(low)}"], [f"{number}.{batch.index(low)}-99"]))
        )
        words = [*words, *data.draw(st.lists(WORDS, max_size=1))]
        before = len(self.world.log)
        try:
            reply = self.world.change(what, *words, **flags)
        except RotaError:
            assert len(self.world.log) == before, "a refusal changes nothing"
            return
        if flags.get("dry_run"):
            assert len(self.world.log) == before
        assert reply["jobs"] >= len(reply["sample"])

    @rule(name=st.sampled_from(("db", "net")), count=st.sampled_from((None, 0, 1, 3)))
    def limit(self, name: str, count: int | None) -> None:
        known = self.world.state.limits.get(name)
        if count is None and (known is None or known.count is None):
            with pytest.raises(NotFoundError):
                self.world.limit(name, count)
        else:
            self.world.limit(name, count)

    @rule(mode=st.sampled_from(("serving", "serving", "paused")))
    def mode(self, mode: str) -> None:
        self.world.mode(mode)

    # ---- the manager ----

    @rule()
    def schedule(self) -> None:
        self.world.schedule()

    @rule(seconds=st.sampled_from((0.5, 5.0, 40.0, 65.0, 700.0, 2000.0)))
    def time(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule()
    def checkpoint(self) -> None:
        self.world.checkpoint()
        self.world.check_restart()

    @rule(from_start=st.booleans())
    def restart(self, from_start: bool) -> None:
        self.world.check_restart()
        self.world.restart(from_start)
        self.world.site(node=NODE, most=self.most)

    # ---- drivers and runners ----

    @rule(data=st.data(), verb=st.sampled_from(("pend", "run", "complete", "fail", "abort", "unsure", "kill")))
    def driver(self, data: st.DataObject, verb: str) -> None:
        names = list(self.world.state.allocations)
        self.world.allocation(data.draw(st.sampled_from([*names[-3:], "a99"])), verb, "so it is")

    @precondition(lambda self: self.made < 4)
    @rule()
    def runner(self) -> None:
        self.made += 1
        self.world.start_runner(f"r{self.made}", NODE)

    def pick(self, data: st.DataObject) -> FakeRunner | None:
        alive = [runner for runner in self.world.runners.values() if not runner.expired]
        return data.draw(st.sampled_from(alive)) if alive else None

    @precondition(lambda self: self.world.runners)
    @rule(data=st.data(), lose=st.booleans())
    def report(self, data: st.DataObject, lose: bool) -> None:
        runner = self.pick(data)
        if runner is None:
            return
        leased = [job for job, what in runner.held.items() if what == "leased"]
        started = data.draw(st.lists(st.sampled_from(leased), unique=True, max_size=4)) if leased else []
        held = list(runner.held)
        ending = data.draw(st.lists(st.sampled_from(held), unique=True, max_size=4)) if held else []
        ended = [self.world.row(job, *data.draw(CODES)) for job in ending]
        rest = [job for job in leased if job not in started and job not in ending]
        disclaimed = data.draw(st.lists(st.sampled_from(rest), unique=True, max_size=2)) if rest else []
        before = runner.seq
        self.world.report(runner, started, ended, disclaimed)
        if runner.acked < runner.seq:  # not taken: an old session, or given up; it would be repeated
            runner.seq = before
        elif lose:
            events = len(self.world.log)
            self.world.report(runner, started, ended, disclaimed, seq=runner.seq)
            extra = self.world.events()[events:]
            gone = self.world.state.runners[runner.name].state in ("CLOSED", "EXPIRED")
            assert gone or not extra, "a repeat changes nothing"

    @precondition(lambda self: self.world.runners)
    @rule(data=st.data())
    def nonsense(self, data: st.DataObject) -> None:
        """A report of attempts that may not be, or not be its own."""
        runner = self.pick(data)
        if runner is None:
            return
        job = (data.draw(st.integers(0, 3)), data.draw(st.integers(-1, 4)), data.draw(st.integers(0, 3)))
        if job in runner.held:
            return
        before = runner.seq
        what = data.draw(st.sampled_from(("started", "ended", "disclaimed")))
        row: Any = self.world.row(job) if what == "ended" else job
        self.world.report(runner, **{what: [row]})
        if runner.acked < runner.seq:
            runner.seq = before

    @precondition(lambda self: self.world.runners)
    @rule(data=st.data())
    def greet(self, data: st.DataObject) -> None:
        runner = self.pick(data)
        if runner is None:
            return
        unstarted = [job for job, what in runner.held.items() if what == "leased"]
        for job in data.draw(st.lists(st.sampled_from(unstarted), unique=True, max_size=2)) if unstarted else []:
            del runner.held[job]  # it never got that far
        self.world.greet(runner, NODE)

    @precondition(lambda self: self.world.runners)
    @rule(data=st.data(), what=st.sampled_from(("touch", "bye", "cut", "old")))
    def talk(self, data: st.DataObject, what: str) -> None:
        runner = self.pick(data)
        if runner is None:
            return
        if what == "touch":
            self.world.touch(runner)
        elif what == "cut":
            self.world.step(Disconnected(at=self.world.at, runner=runner.name, session=runner.session))
        elif what == "old":
            self.world.greet(runner, NODE, connect=max(1, runner.connect - 1))
        elif not any(state == "running" for state in runner.held.values()):
            runner.held.clear()
            self.world.bye(runner)
            runner.expired = True

    # ---- what must hold ----

    @invariant()
    def nothing_is_sent_twice(self) -> None:
        if not hasattr(self, "world"):
            return
        for effect in self.world.effects[self.seen :]:
            if isinstance(effect, Lease):
                for batch, pos, attempt, _ in effect.jobs:
                    job = (batch, pos, attempt)
                    assert self.sent.setdefault(job, effect.runner) == effect.runner, f"{job} went to two runners"
        self.seen = len(self.world.effects)

    @invariant()
    def nothing_is_over_committed(self) -> None:
        if not hasattr(self, "world"):
            return
        for name, location in self.world.state.ledger.locations.items():
            if location.capacity is not None:
                assert not self.world.state.ledger.free(name).negative(), name

    @invariant()
    def every_settled_job_stays_known(self) -> None:
        if not hasattr(self, "world"):
            return
        for batch in self.world.state.batches.values():
            assert sum(batch.counts) == batch.count
            assert all(byte < len(JOB_STATES) for byte in batch.states)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_restart()


Machine.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
test_core = Machine.TestCase

"""What the simulator and the model checker found, each once more by hand: short, and independent of any seed."""

from typing import Any

import pytest

from rota.core.effects import Allocate, Lease, Order
from rota.core.invariants import check
from rota.core.state import Settings
from rota.core.step import Core, Step
from rota.core.stimuli import At, ChangeJobs, Ended, Greet, Report, SiteSeen, Stimulus, Submit, Tick, Touch
from rota.model.batch import BatchSpec, Dependency, Template
from rota.model.errors import RefusedError
from rota.model.needs import Amounts
from rota.model.selector import parse_selector
from rota.model.site import SiteFacts
from rota.model.tables import JOB_STATES
from rota.runner.protocol import Runner

WALL = 1.7e9


class Bench:
    """A core with one site, driven by hand."""

    def __init__(self, nodes: int = 1) -> None:
        self.core = Core(Settings(missing_s=10, rerun_s=30, backoff_first_s=5, backoff_most_s=20, backoff_jitter_s=0))
        self.wall, self.mono = WALL, 1000.0
        self.told: list[Any] = []
        self.say(SiteSeen(at=self.at, site="s", facts=SiteFacts(Amounts(1000), most=nodes, linger_s=1e9)))

    @property
    def at(self) -> At:
        return At(self.wall, self.mono)

    def say(self, stimulus: Stimulus) -> Step:
        stimulus.at = self.at
        step = self.core.step(stimulus)
        plan = self.core.schedule(self.at)
        self.told = [*step.effects, *plan.effects]
        check(self.core.state)
        return step

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.wall += 1
            self.mono += 1
            self.say(Tick(at=self.at))

    def submit(self, count: int = 1, **spec: Any) -> int:
        template = Template(argv=("true",), retries=spec.pop("retries", 0), rerunnable=spec.pop("rerunnable", False))
        return self.say(
            Submit(at=self.at, spec=BatchSpec(count, (template,), **spec), key=str(len(self.core.state.batches)))
        ).reply["batch"]

    def greet(
        self, runner: str = "r1", allocation: str = "a1", connect: int = 1, held: list[Any] | None = None
    ) -> None:
        self.say(
            Greet(at=self.at, runner=runner, allocation=allocation, connect=connect, clock=5e5, host="h", pid=1,
                  capacity=Amounts(1000), held=held or [])
        )  # fmt: skip

    def report(self, seq: int, session: int = 1, runner: str = "r1", **rows: Any) -> Step:
        return self.say(Report(at=self.at, runner=runner, session=session, seq=seq, got=1, clock=5e5, **rows))

    def change(self, what: str, *words: str, **more: Any) -> Step:
        return self.say(ChangeJobs(at=self.at, what=what, selector=parse_selector(words), **more))

    def states(self, batch: int = 1) -> list[str]:
        return [JOB_STATES[byte] for byte in self.core.state.batches[batch].states]


def ended(batch: int, index: int, attempt: int, code: int | None, reason: str | None = None) -> Ended:
    return Ended(batch, index, attempt, code, None if code is not None else 15, reason, 0.0, 9.0, 0.0, 0, None, None)


def test_the_first_lease_is_timed_by_the_clock_of_the_greeting() -> None:
    bench = Bench()
    bench.submit()
    bench.greet()
    leases = [effect for effect in bench.told if isinstance(effect, Lease)]
    assert [lease.clock for lease in leases] == [5e5]


def test_an_older_greeting_does_not_set_the_clock_back() -> None:
    bench = Bench()
    bench.submit()
    bench.greet(connect=2)
    bench.say(
        Greet(
            at=bench.at,
            runner="r1",
            allocation="a1",
            connect=1,
            clock=3.0,
            host="h",
            pid=1,
            capacity=Amounts(1),
            held=[],
        )
    )
    assert bench.core.state.soft.contacts["r1"].clock == 5e5


@pytest.mark.parametrize("back", [3600, 86400, WALL])
def test_a_back_off_is_not_prolonged_by_setting_the_clock_back(back: float) -> None:
    bench = Bench()
    bench.submit(retries=1)
    bench.greet()
    bench.report(1, ended=[ended(1, 1, 1, 1)])
    assert bench.states() == ["WAITING"]
    bench.wall -= back
    bench.wait(2)
    assert bench.states() == ["STARTING"]


def test_a_not_before_that_had_passed_is_waited_for_again_after_the_clock_was_set_back() -> None:
    bench = Bench()
    bench.submit(not_before=WALL + 5)
    bench.wait(6)
    bench.greet()
    bench.report(1, ended=[ended(1, 1, 1, 1)])
    assert bench.states() == ["FAILED"]
    bench.wall -= 3600
    bench.wait(1)
    bench.change("retry", "1")
    assert bench.states() == ["WAITING"]
    bench.wall += 3600
    bench.wait(1)
    assert bench.states() == ["STARTING"]


def test_a_dependent_that_is_pending_waits_again_when_what_it_depends_on_is_retried() -> None:
    bench = Bench()
    bench.submit()
    bench.submit(count=2, after=(Dependency("1"),))
    bench.greet()
    bench.report(1, ended=[ended(1, 1, 1, 0)])
    assert bench.states(2) == ["STARTING", "PENDING"]
    bench.change("retry", "1", ":completed")
    assert bench.states(2) == ["STARTING", "WAITING"]
    bench.report(2, disclaimed=[(2, 1, 1, "recalled")])
    assert bench.states(2) == ["WAITING", "WAITING"]


def test_a_dependent_on_one_job_is_omitted_as_soon_as_that_job_is_killed() -> None:
    bench = Bench()
    bench.submit(count=3)
    bench.submit(count=2, after=(Dependency("1.2"),))
    bench.change("kill", "1.2")
    assert bench.states(2) == ["OMITTED", "OMITTED"]


def test_what_an_unsettled_batch_depends_on_is_not_removed() -> None:
    bench = Bench()
    bench.submit()
    bench.submit(after=(Dependency("1"),), retries=3)
    bench.greet()
    bench.report(1, ended=[ended(1, 1, 1, 0)])
    assert bench.states(2) == ["STARTING"]
    with pytest.raises(RefusedError, match="depends on batch 1"):
        bench.change("remove", "1")


def test_release_takes_back_a_hold_that_has_not_come_to_pass() -> None:
    bench = Bench()
    bench.submit()
    bench.greet()
    bench.change("hold", "1", stop=True)
    step = bench.change("release", "1")
    assert step.reply["jobs"] == 1
    bench.report(1, ended=[ended(1, 1, 1, None, "killed")])
    assert bench.states() == ["STARTING"]
    assert bench.core.state.batches[1].failures == {}, "a kill that was our own wish is no failure"


def missing(rerunnable: bool) -> Bench:
    """A job leased to a runner that never said a word more."""
    bench = Bench()
    bench.submit(rerunnable=rerunnable)
    bench.greet()
    bench.wait(12)
    assert bench.states() == ["MISSING"]
    return bench


@pytest.mark.parametrize("how", ["confirmed", "rerunnable"])
def test_a_lease_that_was_given_up_is_never_sent_again(how: str) -> None:
    bench = missing(how == "rerunnable")
    if how == "confirmed":
        bench.change("kill", "1", confirm_dead=True)
    else:
        bench.wait(25)
    assert any(isinstance(effect, Order) and effect.what == "kill" for effect in bench.told) or how == "rerunnable"
    bench.say(Touch(at=bench.at, runner="r1", session=1, got=0, clock=5e5))
    repeated = [effect for effect in bench.told if isinstance(effect, Lease) and effect.n == 1]
    assert all(not lease.jobs for lease in repeated), "attempt 1 is closed"
    kills = [effect for effect in bench.told if isinstance(effect, Order) and effect.what == "kill"]
    assert [(1, 1, 1)] in [kill.jobs for kill in kills], "what was given up is to be ended"
    bench.report(1, ended=[ended(1, 1, 1, None, "killed")])
    bench.say(Touch(at=bench.at, runner="r1", session=1, got=1, clock=5e5))
    assert not any(isinstance(effect, Order) and effect.jobs == [(1, 1, 1)] for effect in bench.told)


def test_an_old_attempt_that_ends_does_not_hide_that_the_new_one_is_disclaimed() -> None:
    bench = missing(rerunnable=True)
    bench.wait(25)
    bench.greet(connect=2, held=[(1, 1, 1)])
    assert bench.states() == ["STARTING"]
    bench.report(1, session=2, ended=[ended(1, 1, 1, 0)], disclaimed=[(1, 1, 2, "start-by passed")])
    assert bench.core.state.batches[1].attempts[0] == 3


def test_a_missing_runner_is_asked_about() -> None:
    bench = missing(rerunnable=False)
    assert any(isinstance(effect, Allocate) and effect.what == "check" for effect in bench.told)


def test_batches_of_one_name_can_be_chained_by_it() -> None:
    bench = Bench()
    for _ in range(3):
        bench.submit(name="step", after=(Dependency("@step"),) if bench.core.state.batches else ())
    bench.greet()
    for number in (1, 2, 3):
        assert bench.states(number) == ["STARTING"]
        bench.report(number, ended=[ended(number, 1, 1, 0)])


def runner() -> Runner:
    facts = {"allocation": None, "host": "h", "pid": 1, "cores": 1, "memory": 1, "disk": 0, "gpus": 0, "tags": []}
    return Runner("r1", facts)


def test_a_welcome_to_a_connection_that_is_gone_opens_no_session() -> None:
    protocol = runner()
    protocol.greet(1.0)
    protocol.lost_connection()
    protocol.receive({"t": "welcome", "connect": 1, "session": 1}, 2.0)
    assert protocol.session is None


def test_an_expired_runner_that_waits_has_no_deadline_in_the_past() -> None:
    protocol = runner()
    protocol.greet(1.0)
    protocol.receive({"t": "welcome", "connect": 1, "session": 1}, 1.0)
    job = ["0:1000", "s", 1, 1, 1, ["true"], None]
    protocol.receive(
        {"t": "lease", "session": 1, "n": 1, "clock": 1.0, "slots": [["0:1000", 1]], "specs": {"s": {}}, "jobs": [job]},
        1.0,
    )
    assert protocol.startable(1.0)
    protocol.lost_connection()
    protocol.greet(2.0)
    protocol.receive({"t": "expired", "connect": 2, "reason": "given up"}, 2.0)
    protocol.outgoing(1000.0)
    deadline = protocol.deadline(1000.0)
    assert deadline is None or deadline > 1000.0, "the agent would not sleep"

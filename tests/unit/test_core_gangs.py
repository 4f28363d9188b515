"""Gangs: jobs on several nodes. Parts are held before the root is sent, and given back each on its own node's word."""

import msgspec
import pytest

from core_world import FakeRunner, Job, World
from rota.core.effects import Effect, Hold, Lease
from rota.core.explain import reason
from rota.core.step import Step
from rota.core.stimuli import Disconnected, Ended, Greet, Held, Prune, Released, SiteSeen, Touch, Used, Written
from rota.model import events as ev
from rota.model.batch import Template
from rota.model.errors import UsageError
from rota.model.needs import Amounts, Needs
from rota.model.selector import parse_selector
from rota.model.site import SiteFacts

NODE = Amounts(4000, 8 << 30)


class Gangs(World):
    """One allocation with some nodes, on each a runner: `n1`, `n2` …"""

    def __init__(self, nodes: int = 2) -> None:
        super().__init__(site=False)
        self.holds: dict[str, dict[Job, str]] = {}
        """Runner → the parts that it was asked to hold, and has not been asked to release."""
        self.nodes_most = nodes
        self.site()

    def site(self, *given: object, **more: object) -> Step:
        facts = SiteFacts(NODE, most=2, linger_s=1e9, nodes_most=self.nodes_most)
        return self.step(SiteSeen(at=self.at, site="s", facts=facts))

    def _perform(self, effect: Effect) -> None:
        super()._perform(effect)
        if isinstance(effect, Hold):
            for batch, pos, attempt, _ in effect.jobs:
                job = (batch, self.state.batches[batch].index(pos), attempt)
                self.holds.setdefault(effect.runner, {})[job] = f"{effect.runner}:7"

    def start(self, count: int | None = None) -> list[FakeRunner]:
        """Have an allocation asked for, and its runners greet."""
        self.schedule()
        (name,) = (a.id for a in self.state.allocations.values() if a.state == "SUBMITTING")
        runners = [FakeRunner(f"tag.0.n{number + 1}.x", name) for number in range(count or self.nodes_most)]
        for runner in runners:
            self.runners[runner.name] = runner
            self.greet(runner)
        return runners

    def greet(self, runner: FakeRunner, *given: object, **more: object) -> Step:
        runner.connect += 1
        runner.got = 0
        holds = [(*job, address) for job, address in self.holds.get(runner.name, {}).items()]
        return self.step(
            Greet(
                at=self.at,
                by=runner.name,
                runner=runner.name,
                allocation=runner.allocation,
                connect=runner.connect,
                clock=self.mono,
                host=runner.name.split(".")[2],
                pid=1,
                capacity=NODE,
                held=list(runner.held),
                **{"holds": holds, "gangs": True, **more},
            )
        )

    def confirm(self, runner: FakeRunner) -> Step:
        """A runner tells what it holds."""
        holds = [(*job, address) for job, address in self.holds.get(runner.name, {}).items()]
        return self.step(Held(at=self.at, runner=runner.name, session=runner.session, holds=holds))

    def release(self, runner: FakeRunner, *jobs: Job) -> Step:
        """A runner says that nothing of attempts is left."""
        for job in jobs:
            self.holds.get(runner.name, {}).pop(job, None)
        return self.step(Released(at=self.at, runner=runner.name, session=runner.session, jobs=list(jobs)))

    def orders(self, runner: FakeRunner, what: str) -> list[Job]:
        """The jobs that a runner was last ordered something about."""
        found = [order.jobs for order in runner.orders if order.what == what]
        return found[-1] if found else []

    def why(self, batch: int = 1, pos: int = 0) -> str:
        return reason(self.state, self.state.batches[batch], pos, None, self.at)


def gang(nodes: int = 2, **more: object) -> Template:
    fields = {name: more.pop(name) for name in ("retries", "rerunnable", "never_retry_on", "limits") if name in more}
    return Template(argv=("true",), needs=Needs(3000, nodes=nodes, **more), **fields)


def running(nodes: int = 2, **more: object) -> tuple[Gangs, list[FakeRunner], Job]:
    """A world in which one gang runs: its runners (root first) and its attempt."""
    world = Gangs(nodes)
    world.submit(1, gang(nodes, **more))
    runners = world.start()
    world.schedule()
    for runner in runners[1:]:
        world.confirm(runner)
    (job,) = runners[0].held
    world.report(runners[0], started=[job])
    assert world.states(1) == ["RUNNING"]
    return world, runners, job


# ---- the start -----------------------------------------------------------------------------------------------------


def test_all_nodes_are_charged_at_once_and_the_root_is_sent_last() -> None:
    world = Gangs(3)
    world.submit(1, gang(3), limits={"lic": 1})
    runners = world.start()
    step = world.schedule()
    (leased,) = (event for event in step.events if isinstance(event, ev.Leased))
    assert [name for name, _ in leased.parts] == [runner.name for runner in runners[1:]]
    assert [type(effect) for effect in step.effects] == [Hold, Hold]
    assert [world.state.ledger.free(world.state.runners[r.name].location).cores for r in runners] == [1000] * 3
    assert world.state.shapes[0].slots == 1, "limits and shares count the root"
    assert "starts when n2, n3 have confirmed" in world.why()
    assert not world.confirm(runners[1]).effects
    assert "starts when n3 has confirmed" in world.why()
    (lease,) = world.confirm(runners[2]).effects
    assert isinstance(lease, Lease) and lease.runner == runners[0].name
    assert [(m.host, m.address) for m in lease.gangs[1, 0]] == [
        ("n1", ""), ("n2", "tag.0.n2.x:7"), ("n3", "tag.0.n3.x:7")
    ]  # fmt: skip
    assert world.confirm(runners[2]).effects == [], "once"
    world.check_restart()


def test_a_hold_is_repeated_until_it_is_confirmed() -> None:
    world = Gangs()
    world.submit(1, gang())
    root, part = world.start()
    world.schedule()
    world.holds.clear()  # it did not arrive
    assert [effect for effect in world.touch(part).effects if isinstance(effect, Hold)]
    assert not [effect for effect in world.touch(root).effects if isinstance(effect, Hold | Lease)]
    world.confirm(part)
    assert list(root.held) == [(1, 1, 1)]
    assert not [effect for effect in world.touch(part).effects if isinstance(effect, Hold)]


def test_a_touch_confirms_too_and_tells_what_a_part_uses() -> None:
    world = Gangs()
    world.submit(1, gang())
    root, part = world.start()
    world.schedule()
    used = [Used(1, 1, 1, None, 3.0, 77)]
    world.step(Touch(at=world.at, runner=part.name, session=1, got=0, clock=0.0, holds=[(1, 1, 1, "n2:9")], used=used))
    assert list(root.held) == [(1, 1, 1)]
    assert world.state.soft.contacts[part.name].usage[1, 0].memory == 77


def test_runners_that_cannot_hold_parts_get_none() -> None:
    world = Gangs()
    world.submit(1, gang())
    world.schedule()
    for number in (1, 2):
        runner = world.runners[f"tag.0.n{number}.x"] = FakeRunner(f"tag.0.n{number}.x", "a1")
        world.greet(runner, gangs=False)
    world.schedule()
    assert world.states(1) == ["PENDING"] and not world.state.parts


def test_more_nodes_than_any_site_gives_are_refused() -> None:
    world = Gangs(2)
    with pytest.raises(UsageError, match="s gives 2 nodes at most, 3 are asked for"):
        world.submit(1, gang(3))


def test_what_a_site_has_once_is_asked_for_by_every_node() -> None:
    world = Gangs(3)
    facts = SiteFacts(NODE, most=2, linger_s=1e9, nodes_most=3, shared=(("tape", 2),))
    world.step(SiteSeen(at=world.at, site="s", facts=facts))
    with pytest.raises(UsageError, match="s has 2 tape, 3 tape are asked for"):
        world.submit(1, gang(3, named=(("tape", 1),)))
    world.submit(1, gang(2, named=(("tape", 1),)))


# ---- the end -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "after"), [(0, "COMPLETED"), (1, "FAILED")])
def test_the_root_ends_first_then_the_parts(code: int, after: str) -> None:
    world, (root, part), job = running()
    assert not world.orders(part, "release")
    world.end(root, job, code)
    assert world.states(1) == [after]
    assert world.orders(part, "release") == [job]
    assert world.state.ledger.free(world.state.runners[root.name].location) == NODE
    assert world.state.ledger.free(world.state.runners[part.name].location).cores == 1000, "until it is released"
    world.check_restart()
    world.release(part, job)
    assert world.state.ledger.free(world.state.runners[part.name].location) == NODE and not world.state.parts
    world.check_restart()


def test_a_retry_waits_until_all_nodes_have_ended() -> None:
    world, (root, part), job = running(retries=1)
    world.end(root, job, 1)
    part.orders.clear()
    silence(world, 100, root, part)
    assert world.orders(part, "release") == [job], "it is repeated"
    assert world.states(1) == ["WAITING"]
    assert "waits until attempt 1 has ended on n2 too" in world.why()
    world.checkpoint()
    world.check_restart()
    world.release(part, job)
    assert world.states(1) == ["PENDING"]
    world.schedule()
    assert world.states(1) == ["STARTING"]


def test_failures_of_gangs_are_held_against_none_of_their_nodes() -> None:
    world = Gangs(2)
    world.submit(6, gang(2), at_once=1)
    root, part = world.start()
    for _ in range(6):
        world.schedule()
        world.confirm(part)
        for job in list(root.held):
            world.report(root, ended=[Ended(*job, 1, None, "exit", 0.0, 0.1, 0.1, 1 << 20, None, None)])
            world.release(part, job)
    assert world.states(1) == ["FAILED"] * 6 and not world.state.soft.weather.hosts


def test_a_settled_gang_is_not_run_again_nor_forgotten_while_a_node_has_not_ended() -> None:
    world, (root, part), job = running()
    world.end(root, job, 0)
    pruned = world.step(Prune(at=world.at, selector=parse_selector(["1"]))).reply
    assert pruned["batches"] == 0
    assert pruned["skipped"] == [{"reason": "has ended on some of its nodes only", "batches": 1}]
    world.change("retry", "1", ":completed")
    assert world.states(1) == ["WAITING"]
    world.release(part, job)
    assert world.states(1) == ["PENDING"]


def test_a_kill_ends_the_root_first() -> None:
    world, (root, part), job = running()
    world.change("kill", "1")
    assert world.orders(root, "kill") == [job] and not world.orders(part, "release")
    world.end(root, job, None, 15, "killed")
    assert world.states(1) == ["ABORTED"] and world.orders(part, "release") == [job]


@pytest.mark.parametrize(("what", "after"), [("kill", "ABORTED"), ("hold", "HOLDING")])
def test_what_was_never_sent_is_settled_at_once(what: str, after: str) -> None:
    world = Gangs()
    world.submit(1, gang())
    root, part = world.start()
    world.schedule()
    world.change(what, "1")
    assert world.states(1) == [after]
    assert world.orders(part, "release") == [(1, 1, 1)]
    world.confirm(part)
    assert not root.held, "its lease is not sent any more"
    world.release(part, (1, 1, 1))
    assert not world.state.parts
    world.check_restart()


# ---- losses --------------------------------------------------------------------------------------------------------


def replace_runner(world: Gangs, old: FakeRunner, **more: object) -> FakeRunner:
    """The supervisor of a node starts another runner."""
    new = world.runners[old.name + "2"] = FakeRunner(old.name + "2", old.allocation)
    world.holds.pop(old.name, None)
    world.greet(new, replaces=old.name, **more)
    return new


def test_a_lost_part_ends_the_root_and_counts_as_one_loss() -> None:
    world, (root, part), job = running()
    replace_runner(world, part)
    assert world.state.runners[part.name].state == "EXPIRED"
    assert world.orders(root, "kill") == [job]
    assert "is being ended on n1" in world.why() and "it lost its part on n2" in world.why()
    world.checkpoint()
    world.check_restart()
    world.end(root, job, 143, None, None)
    assert world.state.batches[1].losses == {0: 1} and not world.state.batches[1].failures
    (result,) = world.results
    assert (result.state, result.reason) == ("LOST", "lost") and "its part on n2" in (result.note or "")
    assert world.states(1) == ["PENDING"], "its last part is gone already"
    assert not world.state.soft.contacts[root.name].given_up, "the root said itself that it is over"


def test_a_root_that_succeeds_has_though_a_part_was_lost() -> None:
    world, (root, part), job = running()
    replace_runner(world, part)
    world.end(root, job, 0)
    assert world.states(1) == ["COMPLETED"] and not world.state.batches[1].losses


def cut(world: Gangs, runner: FakeRunner) -> None:
    world.step(Disconnected(at=world.at, runner=runner.name, session=runner.session))


@pytest.mark.parametrize("silent", [False, True])
def test_a_root_that_fails_while_a_part_is_not_connected_is_a_loss(silent: bool) -> None:
    world, (root, part), job = running()
    silence(world, 70, root) if silent else cut(world, part)
    world.end(root, job, 1, None, "exit")
    assert world.state.batches[1].losses == {0: 1} and not world.state.batches[1].failures
    (result,) = world.results
    assert (result.state, result.reason, result.exit_code) == ("LOST", "lost", 1)
    assert result.note == "its part on n2 is not connected"
    assert world.states(1) == ["WAITING"] and "waits until attempt 1 has ended on n2" in world.why()
    assert not world.state.soft.contacts[root.name].given_up
    world.check_restart()
    replace_runner(world, part)
    assert world.states(1) == ["PENDING"] and world.state.batches[1].losses == {0: 1}, "one loss"


@pytest.mark.parametrize(
    ("code", "signal", "reason", "after"),
    [(0, None, None, "COMPLETED"), (None, 9, "memory", "FAILED"), (None, 15, "killed", "WAITING")],
)
def test_a_part_that_is_not_connected_explains_no_other_end(
    code: int | None, signal: int | None, reason: str | None, after: str
) -> None:
    world, (root, part), job = running()
    cut(world, part)
    world.end(root, job, code, signal, reason)
    assert world.states(1) == [after] and not world.state.batches[1].losses


def test_a_gang_that_is_killed_while_a_part_is_not_connected_was_killed() -> None:
    world, (root, part), job = running()
    cut(world, part)
    world.change("kill", "1")
    world.end(root, job, 1)
    assert world.states(1) == ["ABORTED"] and not world.state.batches[1].losses


def test_a_report_that_was_left_behind_tells_nothing_of_who_was_connected() -> None:
    world, (root, part), job = running()
    cut(world, root)
    cut(world, part)
    world.words["a1"] = [Written(root.name, [world.row(job, 1)])]
    world.allocation("a1", "complete")
    assert world.states(1) == ["FAILED"] and not world.state.batches[1].losses


def test_a_root_that_fails_too_often_while_a_part_is_not_connected_fails() -> None:
    world, (root, part), job = running()
    while True:
        cut(world, part)
        world.end(root, job, 1)
        if world.states(1) == ["FAILED"]:
            break
        world.greet(part)
        world.release(part, job)
        world.schedule()
        world.confirm(part if world.holds.get(part.name) else root)
        root, part = (root, part) if root.held else (part, root)
        (job,) = root.held
    assert [result.state for result in world.results] == ["LOST"] * 5 + ["FAILED"]
    assert world.results[-1].reason == "lost-too-often"


def test_a_lost_root_releases_the_parts() -> None:
    world, (root, part), job = running()
    replace_runner(world, root)
    assert world.states(1) == ["WAITING"] and world.state.batches[1].losses == {0: 1}
    assert world.orders(part, "release") == [job]
    world.release(part, job)
    assert world.states(1) == ["PENDING"]


def test_root_and_part_lost_together_are_one_loss_and_one_result() -> None:
    world, _, _ = running(3)
    world.allocation("a1", "fail", "the nodes went away")
    assert world.state.batches[1].losses == {0: 1}
    assert [result.state for result in world.results] == ["LOST"]
    assert not any(isinstance(event, ev.GangBroken) for event in world.events())
    assert world.states(1) == ["PENDING"] and not world.state.parts
    world.check_restart()


def test_what_a_replaced_runner_could_not_send_counts() -> None:
    world, (root, _), job = running()
    replace_runner(world, root, written=[Written(root.name, [world.row(job, 0)])])
    assert world.states(1) == ["COMPLETED"]


def test_a_late_greeting_of_a_replaced_process_is_turned_away() -> None:
    world, (_, part), _ = running()
    replace_runner(world, part)
    world.greet(part)
    assert part.expired
    never_seen = FakeRunner("tag.0.n2.y", part.allocation)
    world.runners["tag.0.n2.z"] = FakeRunner("tag.0.n2.z", part.allocation)
    world.greet(world.runners["tag.0.n2.z"], replaces=never_seen.name)
    world.runners[never_seen.name] = never_seen
    world.greet(never_seen)
    assert never_seen.expired


def test_all_earlier_processes_of_a_node_are_replaced() -> None:
    world, (root, part), job = running()
    late = FakeRunner("tag.0.n2.y", part.allocation)  # replaced the first, and died before it could say so
    world.runners["tag.0.n2.z"] = FakeRunner("tag.0.n2.z", part.allocation)
    world.holds.clear()
    world.greet(world.runners["tag.0.n2.z"], replaces=late.name)
    assert world.state.runners[part.name].state == "EXPIRED" and world.orders(root, "kill") == [job]
    world.runners[late.name] = late
    world.greet(late, replaces=part.name)
    assert late.expired and world.state.runners["tag.0.n2.z"].state == "SERVING"


def test_a_gang_that_is_lost_too_often_fails() -> None:
    world, (root, part), job = running()
    while world.states(1) != ["FAILED"]:
        part = replace_runner(world, part)
        world.end(root, job, 1)
        world.schedule()
        if world.states(1) == ["FAILED"]:
            break
        world.confirm(part if world.holds.get(part.name) else root)
        holder = part if part.held else root
        (job,) = holder.held
        root, part = (holder, root if holder is part else part)
    assert [result.state for result in world.results] == ["LOST"] * 5 + ["FAILED"]
    assert world.results[-1].reason == "lost-too-often"


# ---- silence -------------------------------------------------------------------------------------------------------


def silence(world: Gangs, seconds: float, *talking: FakeRunner) -> None:
    for _ in range(int(seconds / 10)):
        world.tick(10)
        for runner in talking:
            world.touch(runner)


def test_a_gang_is_missing_while_any_node_is_silent() -> None:
    world, (root, one, other), job = running(3)
    silence(world, 70, root)
    assert world.states(1) == ["MISSING"] and "n2, n3" in world.why()
    world.greet(one)
    assert world.states(1) == ["MISSING"]
    world.greet(other)
    assert world.states(1) == ["RUNNING"]
    world.end(root, job, 0)
    assert world.states(1) == ["COMPLETED"]


def test_one_that_was_never_started_does_not_wait_for_a_silent_node() -> None:
    world = Gangs(3)
    world.submit(1, gang(2))
    root, part, other = world.start()
    world.schedule()
    silence(world, 70, root, other)
    assert world.states(1) in (["PENDING"], ["STARTING"]) and not world.state.runners[part.name].parts
    world.schedule()
    world.confirm(other)
    assert [*root.held, *other.held] == [(1, 1, 2)]
    world.greet(part)  # it has the hold of the first attempt
    assert world.orders(part, "release") == [(1, 1, 1)]
    assert world.state.soft.contacts[part.name].strange
    world.release(part, (1, 1, 1))
    world.confirm(part)
    assert not world.state.soft.contacts[part.name].strange


def test_a_user_can_confirm_that_a_part_is_dead() -> None:
    world, (root, part), job = running()
    silence(world, 70, root)
    assert world.change("kill", "1", confirm_dead=True)["jobs"] == 1
    assert not world.state.parts and world.orders(root, "kill") == [job]
    world.end(root, job, None, 15, "killed")
    assert world.state.batches[1].losses == {0: 1}
    world.greet(part)
    assert world.orders(part, "release") == [job]


def test_a_node_that_was_not_dead_gets_nothing_before_it_has_released_its_part() -> None:
    world, (root, part), job = running()
    silence(world, 70, root)
    world.change("kill", "1", confirm_dead=True)
    world.submit(3, Template(argv=("true",), needs=Needs(3000)))
    world.report(part)  # it was only silent, and is back in the same session
    world.schedule()
    assert world.state.runners[part.name].state == "SERVING" and not part.held, "ranks may run there"
    holding = Touch(at=world.at, runner=part.name, session=part.session, got=0, clock=0.0, holds=[(*job, "n2:7")])
    world.step(holding)
    world.schedule()
    assert world.orders(part, "release") == [job] and not part.held
    world.release(part, job)
    world.touch(part)
    world.schedule()
    assert len(part.held) == 1


def test_a_user_can_confirm_that_what_a_retry_waits_for_is_dead() -> None:
    world, (root, _), job = running(retries=1)
    world.end(root, job, 1)
    silence(world, 70, root)
    assert "(silent)" in world.why()
    assert world.change("kill", "1", confirm_dead=True)["jobs"] == 1
    assert world.states(1) == ["PENDING"] and not world.state.parts


def test_a_rerunnable_gang_is_given_up_once_when_all_of_it_stays_silent() -> None:
    world, _, _ = running(rerunnable=True)
    silence(world, 700)
    assert world.state.batches[1].losses == {0: 1} and not world.state.parts
    assert [result.state for result in world.results] == ["LOST"]


def test_an_allocation_with_a_silent_node_is_ended_once_nothing_runs_there() -> None:
    world, (root, _), job = running()
    world.end(root, job, 0)
    (allocation,) = world.state.allocations.values()
    silence(world, 60, root)
    assert allocation.state == "RUNNING"
    silence(world, 20, root)
    assert allocation.state == "KILLING"
    assert allocation.reason == "nothing runs there, and its node n2 has not been heard of for 80 s"


@pytest.mark.parametrize("heard", [True, False])
def test_an_allocation_with_a_node_that_stays_silent_is_ended_if_its_others_are_heard(heard: bool) -> None:
    world, (_, part), _ = running()
    (allocation,) = world.state.allocations.values()
    talking = [part] if heard else []
    silence(world, world.settings.rerun_s, *talking)
    assert allocation.state == "RUNNING" and world.states(1) == ["MISSING"]
    silence(world, 20, *talking)
    assert allocation.state == ("KILLING" if heard else "RUNNING")
    if heard:
        assert allocation.reason == "its node n1 has not been heard of for 610 s, its others have"


def test_what_runs_beside_a_silent_node_is_waited_for_and_nothing_new_comes() -> None:
    world = Gangs(3)
    world.submit(1, gang(2))
    root, part, other = world.start()
    world.schedule()
    world.confirm(part)
    (job,) = root.held
    world.report(root, started=[job])
    world.submit(2, Template(argv=("true",), needs=Needs(3000)))
    world.schedule()
    (single,) = other.held
    world.report(other, started=[single])
    (allocation,) = (a for a in world.state.allocations.values() if a.state == "RUNNING")
    silence(world, world.settings.rerun_s + 50, part, other)
    assert world.states(1) == ["MISSING"] and allocation.state == "RUNNING"
    assert world.state.runners[other.name].state == "DRAINING"
    assert "its node n1 has not been heard of" in (world.state.runners[other.name].why or "")
    world.end(other, single, 0)
    silence(world, 20, part, other)
    assert allocation.state == "KILLING" and world.states(2) == ["COMPLETED", "PENDING"]


def test_a_process_that_names_nobody_waits_for_one_that_may_live() -> None:
    """Its provider has started it in the place of the other, which is told to end; until it has, nothing is free."""
    world, (_, part), _ = running()
    world.tick(1)
    world.greet(part)
    world.tick(1)
    other = FakeRunner("tag.0.n2.other", part.allocation)
    world.runners[other.name] = other
    world.greet(other, challenged=world.mono - 1)
    assert other.name not in world.state.runners and not part.expired, "it may be the older of the two"
    assert world.state.runners[part.name].state == "SERVING"
    world.greet(other)
    assert other.name not in world.state.runners and part.expired
    assert world.state.runners[part.name].state == "DRAINING" and not world.state.batches[1].broken
    world.step(Disconnected(at=world.at, runner=part.name, session=part.session))
    world.greet(other)
    assert world.state.runners[part.name].state == "EXPIRED" and world.state.runners[other.name].state == "SERVING"
    assert world.state.batches[1].broken
    world.greet(part)
    assert world.state.runners[part.name].state == "EXPIRED", "a late greeting of what was replaced"


# ---- restarts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [True, False])
def test_after_a_restart_what_the_root_lists_tells_whether_it_was_sent(sent: bool) -> None:
    world = Gangs()
    world.submit(1, gang())
    root, part = world.start()
    world.schedule()
    if sent:
        world.confirm(part)
    world.checkpoint()
    world.restart()
    world.greet(part)
    assert world.states(1) == ["STARTING"]
    world.greet(root)
    assert list(root.held) == [(1, 1, 1)], "the same attempt: it was sent before, or is now"
    assert len(world.state.batches[1].live[0].parts) == 1


def test_a_root_that_does_not_list_what_it_was_sent_gives_it_back() -> None:
    world = Gangs()
    world.submit(1, gang())
    root, part = world.start()
    world.schedule()
    world.confirm(part)
    root.held.clear()  # it did not arrive
    world.greet(root)
    assert world.states(1) == ["WAITING"] and world.orders(part, "release") == [(1, 1, 1)]
    assert not world.state.batches[1].losses


def test_a_restart_tells_nodes_again_to_release() -> None:
    world, (root, part), job = running()
    world.end(root, job, 0)
    world.checkpoint()
    world.restart()
    part.orders.clear()
    world.greet(part)
    assert world.orders(part, "release") == [job]


def test_a_part_that_will_not_hold_breaks_the_gang() -> None:
    world = Gangs()
    world.submit(1, gang())
    _, part = world.start()
    world.schedule()
    world.release(part, (1, 1, 1))
    assert world.states(1) == ["PENDING"] and world.state.batches[1].losses == {0: 1}
    assert "n2 gave up its part" in (world.results[-1].note or "")


def test_the_root_of_a_gang_leaves_without_its_lease() -> None:
    world = Gangs()
    world.submit(1, gang())
    root, part = world.start()
    world.schedule()
    world.bye(root)
    assert world.states(1) == ["WAITING"] and world.orders(part, "release") == [(1, 1, 1)]


def test_old_leases_have_no_parts() -> None:
    slot = ["Leased", 1, [0, 1], "r1", "0:1000:0:0", 1]
    decoded = msgspec.convert(slot, ev.Event)
    assert isinstance(decoded, ev.Leased) and decoded.parts == ()


def test_nodes_of_another_allocation_are_no_place_for_a_gang() -> None:
    world = Gangs()
    world.submit(1, Template("true", "/", needs=Needs(cores=1000)))
    world.start(1)
    world.schedule()
    batch = world.submit(1, Template("true", "/", needs=Needs(cores=1000, nodes=2)))
    world.schedule()
    assert reason(world.state, world.state.batches[batch], 0, None, world.at) == (
        "allocation a2 is SUBMITTING (at s), asked for 0 s ago"
    )

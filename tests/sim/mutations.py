"""Broken cores and runners, to see that the simulator and the model checker have teeth."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from rota.core import decide, evolve, react, step, stimuli
from rota.core.decide import deadlines, gangs, greeting
from rota.core.decide.decision import Decision
from rota.core.decide.ends import lost
from rota.core.decide.reopening import Again
from rota.core.dependencies import following
from rota.core.effects import Order
from rota.core.evolve import jobs as evolve_jobs
from rota.core.plan import ahead
from rota.core.stimuli import Greet
from rota.model.events import RerunWanted
from rota.model.tables import MISSING
from rota.runner.protocol import Runner
from rota.schedule import limits
from rota.sim.requeue_world import Process

Patch = pytest.MonkeyPatch


def releases_missing_jobs(patch: Patch) -> None:
    """Silence frees: a MISSING job is given to another at once."""
    original = deadlines._watch

    def watch(state: Any, decision: Any, runner: Any, at: Any, lapsed: Any) -> None:
        original(state, decision, runner, at, lapsed)
        if runner.state == "MISSING":
            jobs = [job for job in runner.jobs if state.batches[job[0]].states[job[1]] == MISSING]
            decision.add(lost(state, runner.id, jobs, "silent", at))
            decision.reconsider.update(number for number, _ in jobs)

    patch.setattr(deadlines, "_watch", watch)


def ignores_sessions(patch: Patch) -> None:
    """The runner takes every lease, whatever session and number it has."""
    original = Runner._lease

    def lease(self: Runner, message: dict[str, Any], clock: float) -> None:
        original(self, {**message, "session": self.session, "n": self.got + 1}, clock)

    patch.setattr(Runner, "_lease", lease)


def forgets_what_is_held(patch: Patch) -> None:
    """The manager does not look at what a greeting says is held."""

    def greet(state: Any, stimulus: Greet) -> Any:
        stimulus.held = []
        return greeting.greet(state, stimulus)

    patch.setitem(decide._DECIDE, Greet, greet)


def leases_gangs_ahead(patch: Patch) -> None:
    """Short gangs are leased ahead of their slots, as other short jobs are: on one node."""

    def is_short(state: Any, memo: Any) -> bool:
        return memo.mean_s is not None and memo.mean_s <= state.settings.ahead_below_s

    patch.setattr(ahead, "_is_short", is_short)


def frees_no_parts(patch: Patch) -> None:
    """What a part says of its release is not heard."""
    patch.setitem(decide._DECIDE, stimuli.Released, lambda state, stimulus: Decision())


def frees_parts_with_their_root(patch: Patch) -> None:
    """The slots of all parts are given back as soon as the root is over."""
    original = evolve_jobs.close_root

    def close_root(state: Any, batch: Any, pos: int, live: Any) -> None:
        original(state, batch, pos, live)
        for name in batch.closing.pop(pos, ()):
            runner, key = state.runners[name], (batch.id, pos, live.attempt)
            slot = runner.parts.pop(key)
            state.ledger.charge(runner.location, slot.amounts, -1, slot.gpus)
            state.parts -= 1

    patch.setattr(evolve_jobs, "close_root", close_root)


def releases_parts_with_the_kill(patch: Patch) -> None:
    """The parts of a gang are told to release when its root is told to end, not when it has ended."""
    original = react._orders

    def orders(state: Any, event: Any) -> Any:
        out, batch = original(state, event), state.batches[event.batch]
        for pos, live in batch.live.items():
            job = (batch.id, batch.index(pos), live.attempt)
            out += [Order(name, state.runners[name].session, "release", [job]) for name, _ in live.parts if out]
        return out

    patch.setattr(react, "_orders", orders)


def requeues_a_gang_that_lost_a_part(patch: Patch) -> None:
    """A gang that has lost a part is given up, though its root may run."""

    def give_up(state: Any, decision: Any, keys: Any, why: str) -> None:
        for number, pos, _ in keys:
            live = state.batches[number].live.get(pos)
            if live is not None:
                decision.add(lost(state, live.runner, [(number, pos)], why, None))

    patch.setattr(gangs, "_break", give_up)


def ends_ranks_with_no_release(patch: Patch) -> None:
    """A runner says that it has released a part, and leaves what runs of it."""
    original = Runner._release

    def release(self: Runner, message: dict[str, Any]) -> Any:
        orders = original(self, message)
        for order in orders:
            if order[0] == "release":
                self.released(order[1])
        return [order for order in orders if order[0] != "release"]

    patch.setattr(Runner, "_release", release)


def sends_the_root_at_once(patch: Patch) -> None:
    """The root of a gang is sent its lease before its parts have confirmed."""
    original = gangs._members

    def members(state: Any, batch: Any, pos: int, live: Any) -> Any:
        for name, _ in live.parts:
            state.soft.contacts[name].confirmed[batch.id, batch.index(pos), live.attempt] = "?"
        return original(state, batch, pos, live)

    patch.setattr(gangs, "_members", members)


def does_not_count_limits(patch: Patch) -> None:
    """Limits are set, and never charged."""
    original = evolve_jobs.set_slots

    def set_slots(state: Any, runner: Any, slot: str, count: int, restoring: bool = False) -> None:
        before = dict(state.limits)
        original(state, runner, slot, count, restoring)
        state.limits.update({name: replace(state.limits[name], used=limit.used) for name, limit in before.items()})

    patch.setattr(evolve_jobs, "set_slots", set_slots)
    patch.setattr("rota.sim.shell.check", lambda state: None)


def starts_dependents_early(patch: Patch) -> None:
    """A dependency that is open counts as met."""
    original = following.look

    def look(state: Any, batch: Any) -> tuple[int, str]:
        code, text = original(state, batch)
        return (0, "") if code == 1 else (code, text)

    patch.setattr(following, "look", look)


def starts_elements_early(patch: Patch) -> None:
    """The job of the same number is not waited for."""
    for condition, table in following._CODES.items():
        patch.setitem(following._CODES, condition, table.replace(b"\x01", b"\x00"))


def omits_elements_early(patch: Patch) -> None:
    """The job of the same number is taken for failed before it has ended."""
    for condition, table in following._CODES.items():
        patch.setitem(following._CODES, condition, table.replace(b"\x01", b"\x02"))


def overlooks_new_batches(patch: Patch) -> None:
    """A new batch of a live name disturbs nobody."""
    patch.setattr(Again, "new_batch", lambda self, name: None)


def forgets_to_run_again(patch: Patch) -> None:
    """What runs when a live name gets a new batch is left at that."""
    patch.setitem(evolve._APPLY, RerunWanted, lambda state, event: None)


def does_not_tell(patch: Patch) -> None:
    """Who waits is not told of an end."""
    patch.setattr(step, "woken", lambda state, number, low, high: ())
    patch.setattr("rota.sim.shell.check", lambda state: None)


def starts_in_closed_windows(patch: Patch) -> None:
    """Windows are set, and never closed."""
    original = limits.at_time

    def at_time(*arguments: Any) -> Any:
        return replace(original(*arguments), closed=None)

    patch.setattr(limits, "at_time", at_time)


def forgets_starts(patch: Patch) -> None:
    """What a rate has counted is not there any more after a restart."""
    patch.setattr("rota.core.snapshot.Starts", lambda rows: limits.Starts())
    patch.setattr("rota.sim.shell.durable_view", lambda state: None)


def counts_late(patch: Patch) -> None:
    """Starts are counted as if they had been a quarter of the period earlier."""
    original = limits.Starts.counted

    def counted(self: Any, at: float, per_s: int) -> int:
        return original(self, at + per_s / 4, per_s)

    patch.setattr(limits.Starts, "counted", counted)


SIMULATED: dict[str, tuple[Callable[[Patch], None], int]] = {
    "releases missing jobs": (releases_missing_jobs, 200),
    "ignores sessions": (ignores_sessions, 400),
    "forgets what is held": (forgets_what_is_held, 60),
    "does not count limits": (does_not_count_limits, 60),
    "starts dependents early": (starts_dependents_early, 60),
    "starts in closed windows": (starts_in_closed_windows, 60),
    "forgets starts": (forgets_starts, 400),
    "counts late": (counts_late, 100),
    "starts elements early": (starts_elements_early, 60),
    "omits elements early": (omits_elements_early, 60),
    "overlooks new batches": (overlooks_new_batches, 200),
    "forgets to run again": (forgets_to_run_again, 400),
    "does not tell": (does_not_tell, 20),
}
"""Mutation → the number of seeds within which the simulator must see it."""


def takes_a_process_for_the_one_before(patch: Patch) -> None:
    """A runner's id has no nonce: what is started again is taken for a reconnect."""
    original = Process.__init__

    def init(self: Process, element: str, name: str) -> None:
        original(self, element, name.rpartition(".")[0] + ".same")

    patch.setattr(Process, "__init__", init)


def replaces_by_arrival(patch: Patch) -> None:
    """Whoever greets last is the newest: also a process that is long dead."""
    patch.setattr(greeting, "_may_be_newer", lambda *_: False)
    patch.setattr(greeting, "_may_live", lambda *_: False)

"""What clients ask of jobs: modify, kill, hold, release, retry, remove.

Each says what it did, and what it left alone and why.
"""

from collections.abc import Iterator

import msgspec

from rota.core.awaited import culprit
from rota.core.decide.batches import check_reopened, respecify
from rota.core.decide.decision import Decision
from rota.core.decide.ends import lost
from rota.core.decide.gangs import parts_lost
from rota.core.decide.limits import check_window
from rota.core.decide.reopening import Again
from rota.core.dependencies.meaning import touched
from rota.core.graph import spans as spans_at
from rota.core.plan.asked import asked_now, unoffered
from rota.core.plan.policies import no_policy
from rota.core.selection import by_state, states_pattern
from rota.core.shares import as_policy_sees
from rota.core.spans import spans_of, without
from rota.core.state import BatchState, State
from rota.core.stimuli import ChangeJobs
from rota.model import events as ev
from rota.model.batch import MAX_TEMPLATES, Template
from rota.model.errors import RefusedError, UsageError
from rota.model.job import Result, format_job
from rota.model.patch import Patch, patched
from rota.model.tables import (
    ACTIVE,
    COMPLETED,
    HOLDING,
    JOB_STATES,
    KILLABLE,
    KILLING,
    MISSING,
    OMITTED,
    PENDING,
    QUEUED,
    REMOVED,
    RUNNING,
    STARTING,
    UNSUCCESSFUL,
    WAITING,
)
from rota.schedule.queues import impossible

__all__ = ["change"]

_SETTLED = (COMPLETED, *UNSUCCESSFUL)
MAX_CHAIN = 1000
"""Steps from an omitted job to the one that failed that are followed."""
_UNSETTLED_RUN = states_pattern(range(COMPLETED))


def change(state: State, stimulus: ChangeJobs) -> Decision:
    """Decide what a client's request changes about jobs."""
    if stimulus.what not in _CHANGES:
        raise UsageError(f"no such change: {stimulus.what}")
    if stimulus.selector.empty and not stimulus.everything:
        raise UsageError(
            f"which jobs? Name some (7, 7.12, @name, :failed), or give --all to {stimulus.what} everything"
        )
    plan = _Plan(state, stimulus)
    _CHANGES[stimulus.what](plan, state, stimulus)
    decision = Decision(reply={"jobs": plan.jobs, "skipped": plan.skipped, "sample": plan.sample, **plan.answer})
    if not stimulus.dry_run:
        decision.events, decision.results, decision.reconsider = plan.events, plan.results, plan.reconsider
    return decision


class _Plan:
    """What a change would do to the jobs it means: events, results, and the counts for the answer."""

    def __init__(self, state: State, stimulus: ChangeJobs) -> None:
        self.state = state
        self.stimulus = stimulus
        self.by = f"changed by {stimulus.by}"
        self.events: list[ev.Event] = []
        self.results: list[Result] = []
        self.reconsider: set[int] = set()
        self.jobs = 0
        self.sample: list[str] = []
        self.skipped: list[dict[str, object]] = []
        self.answer: dict[str, object] = {}
        """What the answer has besides the counts."""

    def count(self, batch: BatchState, spans: list[int]) -> None:
        """Count jobs that will be changed, and take some of them as examples."""
        for low, high in zip(spans[::2], spans[1::2], strict=True):
            self.jobs += high - low
            for pos in range(low, min(high, low + self.state.settings.sample - len(self.sample))):
                self.sample.append(format_job(batch.id, batch.index(pos)))

    def move(self, verb: str, *states: int, reason: str | None = None) -> None:
        """Move every selected job that is in one of these states."""
        for batch, spans in by_state(self.state, self.stimulus.selector, states):
            self.count(batch, spans)
            self.events.append(ev.Moved(batch.id, verb, spans, reason))

    def retemplate(self, batch: BatchState, spans: list[int], patch: Patch) -> None:
        """Give every one of these jobs its template with the changes: one event for each template that comes of it."""
        events: dict[int, ev.Retemplated] = {}
        for start, end in zip(spans[::2], spans[1::2], strict=True):
            for number, low, high in batch.runs(start, end):
                if number not in events:
                    events[number] = ev.Retemplated(batch.id, [], self._changed(batch, number, patch), self.by)
                events[number].spans.extend((low, high))
        if len(batch.templates) + len(events) > MAX_TEMPLATES:
            raise RefusedError(f"batch {batch.id} has been changed too often ({len(batch.templates)} templates)")
        self.events.extend(events.values())

    def _changed(self, batch: BatchState, number: int, patch: Patch) -> Template:
        shape = self.state.shapes[batch.shapes[number]]
        template = patched(batch.templates[number], patch, asked_now(self.state, shape).asked.needs)
        for name in patch.limits_add:
            check_window(name, self.stimulus.at)
        if patch.policy is not msgspec.UNSET and (why := no_policy(self.state, template.policy)) is not None:
            raise UsageError(why)
        why = impossible(template.needs, self.state.soft.queues)
        if why is not None:
            raise UsageError(unoffered(self.state, template.needs) or f"batch {batch.id} could then never run: {why}")
        policy = self.state.settings.policies.get(template.policy)
        return as_policy_sees(policy, template, batch.by, batch.spec.name, self.state.settings.shares)

    def skip(self, reason: str, *states: int, but: int = 0) -> None:
        """Say why selected jobs in these states are left alone; `but` so many of them, which are changed."""
        selected = by_state(self.state, self.stimulus.selector, states)
        count = sum(sum(spans[1::2]) - sum(spans[::2]) for _, spans in selected) - but
        if count > 0:
            self.skipped.append({"reason": reason, "jobs": count})


def _kill(plan: _Plan, state: State, stimulus: ChangeJobs) -> None:
    if stimulus.confirm_dead:
        _confirm_dead(plan)
        return
    by = f"killed by {stimulus.by}"
    plan.move("abort", *QUEUED, reason=by)
    queued = plan.jobs
    plan.move("kill", *KILLABLE, reason=by)
    plan.answer["ending"] = plan.jobs - queued
    plan.skip("is being killed already", KILLING)
    plan.skip("is settled already", *_SETTLED)


def _confirm_dead(plan: _Plan) -> None:
    """The user is the second witness: what is MISSING, or being killed on a runner that is, is over."""
    state, why = plan.state, f"confirmed dead by {plan.stimulus.by}"
    gone: dict[str, list[tuple[int, int]]] = {}
    parts: dict[str, list[tuple[int, int, int]]] = {}
    for batch, spans in by_state(state, plan.stimulus.selector, range(REMOVED + 1)):
        ranges = list(zip(spans[::2], spans[1::2], strict=True))
        for pos in sorted((*batch.live, *batch.closing)):
            if not any(low <= pos < high for low, high in ranges):
                continue
            live = batch.live.get(pos)
            if live is not None and batch.states[pos] not in (MISSING, KILLING):
                continue
            members = batch.closing.get(pos, ()) if live is None else (live.runner, *(name for name, _ in live.parts))
            silent = [name for name in members if name in state.runners and state.runners[name].state == "MISSING"]
            for name in silent:
                if live is not None and name == live.runner:
                    gone.setdefault(name, []).append((batch.id, pos))
                elif (batch.id, pos, batch.attempts[pos]) in state.runners[name].parts:
                    parts.setdefault(name, []).append((batch.id, pos, batch.attempts[pos]))
            if silent:
                plan.count(batch, [pos, pos + 1])
    decision = Decision()
    for name, jobs in gone.items():
        decision.add(lost(state, name, jobs, why, plan.stimulus.at))
    for name, keys in parts.items():
        parts_lost(state, decision, state.runners[name], why, keys)
    plan.events.extend(decision.events)
    plan.results.extend(decision.results)
    why = "is not MISSING: only what rota has lost sight of can be confirmed dead"
    plan.skip(why, *range(REMOVED), but=plan.jobs)


def _hold(plan: _Plan, state: State, stimulus: ChangeJobs) -> None:
    plan.move("hold", WAITING, PENDING, reason=f"held by {stimulus.by}")
    recalled = KILLABLE if stimulus.stop else (STARTING,)
    for batch, spans in by_state(state, stimulus.selector, recalled):
        plan.count(batch, spans)
        plan.events.append(ev.HoldWanted(batch.id, spans, stimulus.stop, reason=f"held by {stimulus.by}"))
    plan.skip("is held already", HOLDING)
    if not stimulus.stop:
        plan.skip("runs: hold it with --stop, or let it finish", RUNNING, MISSING)
    plan.skip("is being killed", KILLING)
    plan.skip("is settled already", *_SETTLED)


def _release(plan: _Plan, state: State, stimulus: ChangeJobs) -> None:
    plan.move("release", HOLDING)
    unwanted: set[tuple[int, int]] = set()
    for batch, spans in by_state(state, stimulus.selector, ACTIVE):
        if not batch.hold_wanted:
            continue
        ranges = zip(spans[::2], spans[1::2], strict=True)
        called_back = [pos for low, high in ranges for pos in range(low, high) if pos in batch.hold_wanted]
        if called_back:
            plan.count(batch, flat := [edge for pos in called_back for edge in (pos, pos + 1)])
            plan.events.append(ev.HoldWanted(batch.id, flat, wanted=False))
            unwanted.update((batch.id, pos) for pos in called_back)
    plan.skip("is not held", *(number for number in range(len(JOB_STATES)) if number != HOLDING), but=len(unwanted))


def _modify(plan: _Plan, state: State, stimulus: ChangeJobs) -> None:
    if stimulus.patch is None or stimulus.patch == Patch():
        raise UsageError("modify what? Say what is to change, as in --memory x2 or --priority 10")
    if stimulus.patch.batch is not None:
        whole = respecify(state, stimulus, stimulus.patch.batch)
        plan.events, plan.reconsider = whole.events, whole.reconsider
        plan.answer = {"batches": len(whole.batches), "warnings": whole.warnings}
        if msgspec.structs.replace(stimulus.patch, batch=None) == Patch():
            for batch in whole.batches:
                plan.count(batch, spans_of(batch, whole.concerns))
            for reason, states in whole.left_alone:
                plan.skip(reason, *states)
            return
    for batch, spans in by_state(state, stimulus.selector, (*QUEUED, *UNSUCCESSFUL)):
        plan.count(batch, spans)
        plan.retemplate(batch, spans, stimulus.patch)
    plan.skip("runs: kill it, or hold it with --stop, to change it", *ACTIVE)
    plan.skip("has succeeded", COMPLETED)


def _retry(plan: _Plan, state: State, stimulus: ChangeJobs) -> None:
    again = _SETTLED if stimulus.selector.states else UNSUCCESSFUL
    if stimulus.patch is not None:
        if stimulus.patch.batch is not None:
            raise UsageError("retry changes jobs, not whole batches: first rota modify, then rota retry")
        for batch, spans in by_state(state, stimulus.selector, again):
            plan.retemplate(batch, spans, stimulus.patch)
    spread = Again(state)
    for batch, spans in _hopeful(plan, state, list(by_state(state, stimulus.selector, again))):
        plan.count(batch, spans)
        plan.events.append(ev.Moved(batch.id, "reopen", spans, f"retried by {stimulus.by}"))
        spread.runs_again(batch, spans)
    spread.spread()
    plan.events.extend(spread.events)
    check_reopened(state, plan.events)
    plan.reconsider = spread.reconsider
    hastened = 0
    for batch, spans in by_state(state, stimulus.selector, (WAITING,)):
        if soon := backing_off(batch, spans):
            plan.count(batch, soon)
            plan.events.append(ev.Hastened(batch.id, soon, f"retried by {stimulus.by}"))
            hastened += sum(soon[1::2]) - sum(soon[::2])
    plan.skip("is not settled", *range(COMPLETED), but=hastened)
    if not stimulus.selector.states:
        plan.skip("has succeeded (to run it again, add :completed)", COMPLETED)


def backing_off(batch: BatchState, spans: list[int]) -> list[int]:
    """Those of these jobs that failed and wait for the time of their next try."""
    pairs = list(zip(spans[::2], spans[1::2], strict=True))
    found = sorted(pos for pos in batch.until if batch.states[pos] == WAITING)
    return spans_at([pos for pos in found if any(low <= pos < high for low, high in pairs)])


def _hopeful(
    plan: _Plan, state: State, chosen: list[tuple[BatchState, list[int]]]
) -> Iterator[tuple[BatchState, list[int]]]:
    """The chosen jobs without those that were omitted and would be so again, as what they depend on does not run again.

    Of those it is said why, and what helps.
    """
    wanted: dict[int, list[tuple[int, int]]] = {}
    for batch, spans in chosen:
        wanted.setdefault(batch.id, []).extend(zip(spans[::2], spans[1::2], strict=True))
    for batch, spans in chosen:
        hopeless: set[int] = set()
        alike = batch.graph is None and not batch.elements  # then what is true of one is true of all
        culprits: dict[str, int] = {}
        for low, high in zip(spans[::2], spans[1::2], strict=True):
            pos = batch.states.find(OMITTED, low, high)
            while pos >= 0:
                why = _still_failed(state, batch, pos, wanted)
                if alike and why is None:
                    break
                if why is not None:
                    hopeless.add(pos)
                    culprits[why] = culprits.get(why, 0) + 1
                pos = batch.states.find(OMITTED, pos + 1, high)
        for why, count in culprits.items():
            number, again = why.partition(".")[0], " :completed" if why.endswith("COMPLETED") else f" {batch.id}"
            both = f"rota retry {number}{again} runs both"
            drop = "" if not batch.spec.after else f", rota modify {batch.id} --after none runs it without"
            words = f"stays OMITTED, as it depends on {why}: {both}{drop}"
            plan.skipped.append({"reason": words, "jobs": count})
        left = without(spans, hopeless) if hopeless else spans
        if left:
            yield batch, left


def _still_failed(state: State, batch: BatchState, pos: int, wanted: dict[int, list[tuple[int, int]]]) -> str | None:
    """The job because of which an omitted one would be omitted again; None: there is none, or it runs again too."""
    for _ in range(MAX_CHAIN):
        found = culprit(state, batch, pos)
        if found is None:
            return None
        batch, pos = found
        if batch.states[pos] != OMITTED:
            if any(low <= pos < high for low, high in wanted.get(batch.id, ())):
                return None
            return f"{format_job(batch.id, batch.index(pos))}, which is {JOB_STATES[batch.states[pos]]}"
    return None


def _remove(plan: _Plan, state: State, stimulus: ChangeJobs) -> None:
    removed = (*QUEUED, *_SETTLED)
    chosen: dict[int, list[int]] = {}
    for batch, spans in by_state(state, stimulus.selector, removed):
        chosen.setdefault(batch.id, []).extend(spans)
    waiting: dict[str, list[tuple[BatchState, bytearray]]] = {}
    again = Again(state)
    for batch, spans in by_state(state, stimulus.selector, removed):
        blocked = _dependent(state, batch, spans, chosen, waiting)
        if blocked is not None:
            if blocked == batch.id:
                raise RefusedError(
                    f"other jobs of batch {batch.id} depend on these and have not run: remove them too (rota remove "
                    f"{batch.id}), or let them run first"
                )
            raise RefusedError(
                f"batch {blocked} depends on batch {batch.id} and has not run: "
                f"remove it too (rota remove {batch.id} {blocked}), or let it run first"
            )
        plan.count(batch, spans)
        plan.events.append(ev.Removed(batch.id, spans))
        again.removed(batch, spans)
    again.spread()
    plan.events.extend(again.events)
    plan.reconsider |= again.reconsider
    plan.skip("runs: kill it first", *ACTIVE)


def _dependent(
    state: State,
    batch: BatchState,
    spans: list[int],
    chosen: dict[int, list[int]],
    waiting: dict[str, list[tuple[BatchState, bytearray]]],
) -> int | None:
    """A batch with jobs that are not settled, not among the chosen, and depend on these."""
    if batch.graph is not None and batch.unsettled:
        left = _left(batch, chosen[batch.id])
        pairs = zip(spans[::2], spans[1::2], strict=True)
        waiting_here = (pos for low, high in pairs for node in range(low, high) for pos in batch.graph.waiting(node))
        if any(left[pos] < COMPLETED for pos in waiting_here):
            return batch.id
    for key in (str(batch.id), *(f"@{name}" for name in batch.names)):
        if key not in waiting:
            others = [state.batches[n] for n in sorted(state.waiters.get(key, ())) if n in state.batches]
            waiting[key] = [(waiter, _left(waiter, chosen.get(waiter.id, []))) for waiter in others if waiter.unsettled]
        for waiter, left in waiting[key]:
            for _, mine in touched(state, waiter, batch, spans):
                if any(_UNSETTLED_RUN.search(left, a, b) for a, b in zip(mine[::2], mine[1::2], strict=True)):
                    return waiter.id
    return None


def _left(batch: BatchState, spans: list[int]) -> bytearray:
    """The states of a batch once these jobs of it are removed."""
    if not spans:
        return batch.states
    left = bytearray(batch.states)
    for low, high in zip(spans[::2], spans[1::2], strict=True):
        left[low:high] = bytes((REMOVED,)) * (high - low)
    return left


_CHANGES = {"modify": _modify, "kill": _kill, "hold": _hold, "release": _release, "retry": _retry, "remove": _remove}

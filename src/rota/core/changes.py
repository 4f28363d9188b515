"""What clients ask of jobs: modify, kill, hold, release, retry, remove.

Each says what it did, and what it left alone and why.
"""

from rota.core.decision import Decision
from rota.core.dependencies import spans_of, watching
from rota.core.learning import refresh
from rota.core.losses import lost
from rota.core.selection import by_state, states_pattern
from rota.core.state import BatchState, State
from rota.core.stimuli import ChangeJobs
from rota.core.tables import (
    ABORTED,
    COMPLETED,
    FAILED,
    HOLDING,
    JOB_STATES,
    KILLING,
    MISSING,
    OMITTED,
    PENDING,
    RUNNING,
    STARTING,
    WAITING,
)
from rota.model import events as ev
from rota.model.batch import MAX_TEMPLATES, Template
from rota.model.errors import RefusedError, UsageError
from rota.model.job import Result, format_job
from rota.model.patch import Patch, patched
from rota.schedule.demand import impossible

__all__ = ["change"]

_QUEUED = (WAITING, PENDING, HOLDING)
_ACTIVE = (STARTING, RUNNING, MISSING)


def change(state: State, stimulus: ChangeJobs) -> Decision:
    """Decide one request."""
    if stimulus.what not in _CHANGES:
        raise UsageError(f"no such change: {stimulus.what}")
    plan = _CHANGES[stimulus.what](state, stimulus)
    decision = Decision(reply={"jobs": plan.jobs, "skipped": plan.skipped, "sample": plan.sample})
    if not stimulus.dry_run:
        decision.events, decision.results, decision.reconsider = plan.events, plan.results, plan.reconsider
    return decision


class _Plan:
    """What a change would do."""

    def __init__(self, state: State, stimulus: ChangeJobs) -> None:
        self.state = state
        self.stimulus = stimulus
        self.by = f"changed by {stimulus.by}"
        self.events: list[ev.Event] = []
        self.results: list[Result] = []
        self.reconsider: set[int] = set()
        self.blocked: set[int] = set()
        self.jobs = 0
        self.sample: list[str] = []
        self.skipped: list[dict[str, object]] = []

    def count(self, batch: BatchState, spans: list[int]) -> None:
        """These will be changed."""
        for low, high in zip(spans[::2], spans[1::2], strict=True):
            self.jobs += high - low
            for pos in range(low, min(high, low + self.state.settings.sample - len(self.sample))):
                self.sample.append(format_job(batch.id, batch.index(pos)))

    def move(self, verb: str, *states: int, reason: str | None = None) -> None:
        """Move every selected job that is in one of these states."""
        for batch, spans in by_state(self.state, self.stimulus.selector, states):
            self.count(batch, spans)
            self.events.append(ev.Moved(batch.id, verb, spans, reason))
            self.reconsider.add(batch.id)

    def retemplate(self, batch: BatchState, spans: list[int], patch: Patch) -> None:
        """Give every one of these jobs its template with the changes: one event for each template that comes of it."""
        events: dict[int, ev.Retemplated] = {}
        for start, end in zip(spans[::2], spans[1::2], strict=True):
            for number, low, high in batch.runs(start, end):
                if number not in events:
                    events[number] = ev.Retemplated(batch.id, [], self._changed(batch, number, patch), self.by)
                events[number].spans.extend((low, high))
        if len(batch.kinds) + len(events) > MAX_TEMPLATES:
            raise RefusedError(f"batch {batch.id} has been changed too often ({len(batch.kinds)} templates)")
        self.events.extend(events.values())

    def _changed(self, batch: BatchState, number: int, patch: Patch) -> Template:
        shape = self.state.shapes[batch.shapes[number]]
        refresh(self.state, shape)
        template = patched(batch.kinds[number], patch, shape.asked.needs)
        why = impossible(template.needs, self.state.site_views())
        if why is not None:
            raise UsageError(f"batch {batch.id} could then never run: {why}")
        return template

    def skip(self, reason: str, *states: int, but: int = 0) -> None:
        """Say what is left alone: all in these states, but so many that were not."""
        count = (
            sum(
                high - low
                for _, spans in by_state(self.state, self.stimulus.selector, states)
                for low, high in zip(spans[::2], spans[1::2], strict=True)
            )
            - but
        )
        if count > 0:
            self.skipped.append({"reason": reason, "jobs": count})


def _kill(state: State, stimulus: ChangeJobs) -> _Plan:
    plan = _Plan(state, stimulus)
    by = f"killed by {stimulus.by}"
    if stimulus.confirm_dead:
        _confirm_dead(plan)
        return plan
    plan.move("abort", *_QUEUED, reason=by)
    plan.move("kill", *_ACTIVE, reason=by)
    plan.skip("is being killed already", KILLING)
    plan.skip("is settled already", COMPLETED, FAILED, ABORTED, OMITTED)
    return plan


def _confirm_dead(plan: _Plan) -> None:
    """The user is the second witness: what is MISSING, or being killed on a runner that is, is over."""
    gone: dict[str, list[tuple[int, int]]] = {}
    seen = 0
    for batch, spans in by_state(plan.state, plan.stimulus.selector, (MISSING, KILLING)):
        for low, high in zip(spans[::2], spans[1::2], strict=True):
            for pos in range(low, high):
                runner = plan.state.runners[batch.live[pos].runner]
                if runner.state == "MISSING":
                    seen += 1
                    gone.setdefault(runner.id, []).append((batch.id, pos))
                    plan.count(batch, [pos, pos + 1])
                    plan.reconsider.add(batch.id)
    for runner_id, jobs in gone.items():
        events, results = lost(plan.state, runner_id, jobs, f"confirmed dead by {plan.stimulus.by}", plan.stimulus.at)
        plan.events.extend(events)
        plan.results.extend(results)
    plan.skip(
        "is not MISSING: only what rota has lost sight of can be confirmed dead",
        *_QUEUED,
        STARTING,
        RUNNING,
        MISSING,
        KILLING,
        COMPLETED,
        FAILED,
        ABORTED,
        OMITTED,
        but=seen,
    )


def _hold(state: State, stimulus: ChangeJobs) -> _Plan:
    plan = _Plan(state, stimulus)
    plan.move("hold", WAITING, PENDING, reason=f"held by {stimulus.by}")
    recalled = _ACTIVE if stimulus.stop else (STARTING,)
    for batch, spans in by_state(state, stimulus.selector, recalled):
        plan.count(batch, spans)
        plan.events.append(ev.HoldWanted(batch.id, spans, stimulus.stop, reason=f"held by {stimulus.by}"))
    plan.skip("is held already", HOLDING)
    if not stimulus.stop:
        plan.skip("runs: hold it with --stop, or let it finish", RUNNING, MISSING)
    plan.skip("is being killed", KILLING)
    plan.skip("is settled already", COMPLETED, FAILED, ABORTED, OMITTED)
    return plan


def _release(state: State, stimulus: ChangeJobs) -> _Plan:
    plan = _Plan(state, stimulus)
    plan.move("release", HOLDING)
    unwanted: set[tuple[int, int]] = set()
    for batch, spans in by_state(state, stimulus.selector, (*_ACTIVE, KILLING)):
        called_back = (
            [
                pos
                for low, high in zip(spans[::2], spans[1::2], strict=True)
                for pos in range(low, high)
                if pos in batch.hold_wanted
            ]
            if batch.hold_wanted
            else []
        )
        if called_back:
            plan.count(batch, flat := [edge for pos in called_back for edge in (pos, pos + 1)])
            plan.events.append(ev.HoldWanted(batch.id, flat, wanted=False))
            unwanted.update((batch.id, pos) for pos in called_back)
    plan.skip("is not held", *(number for number in range(len(JOB_STATES)) if number != HOLDING), but=len(unwanted))
    return plan


def _modify(state: State, stimulus: ChangeJobs) -> _Plan:
    plan = _Plan(state, stimulus)
    if stimulus.patch is None or stimulus.patch == Patch():
        raise UsageError("modify what? Say what is to change, as in --memory x2 or --priority 10")
    for batch, spans in by_state(state, stimulus.selector, (*_QUEUED, FAILED, ABORTED, OMITTED)):
        plan.count(batch, spans)
        plan.retemplate(batch, spans, stimulus.patch)
    plan.skip("runs: kill it, or hold it with --stop, to change it", *_ACTIVE, KILLING)
    plan.skip("has succeeded", COMPLETED)
    return plan


def _retry(state: State, stimulus: ChangeJobs) -> _Plan:
    plan = _Plan(state, stimulus)
    again = (FAILED, ABORTED, OMITTED, COMPLETED) if stimulus.selector.states else (FAILED, ABORTED, OMITTED)
    if stimulus.patch is not None:
        for batch, spans in by_state(state, stimulus.selector, again):
            plan.retemplate(batch, spans, stimulus.patch)
    plan.move("reopen", *again, reason=f"retried by {stimulus.by}")
    for batch_id in sorted(plan.reconsider):
        _reopen_dependents(plan, batch_id)
    for batch_id in sorted(plan.reconsider):
        _block_dependents(plan, batch_id)
    plan.skip("is not settled", *range(COMPLETED))
    if not stimulus.selector.states:
        plan.skip("has succeeded (to run it again, add :completed)", COMPLETED)
    return plan


def _reopen_dependents(plan: _Plan, batch_id: int) -> None:
    """What was omitted because of this batch gets another chance."""
    opened = {batch_id}
    queue = [batch_id]
    while queue:
        batch = plan.state.batches[queue.pop()]
        for key in (str(batch.id), f"@{batch.spec.name}"):
            for waiter in sorted(plan.state.waiters.get(key, ())):
                other = plan.state.batches[waiter]
                if waiter in opened or not other.counts[OMITTED]:
                    continue
                opened.add(waiter)
                queue.append(waiter)
                if waiter in plan.reconsider:
                    continue
                spans: list[int] = []
                for pos, byte in enumerate(other.states):
                    if byte == OMITTED:
                        spans += (pos, pos + 1)
                plan.events.append(ev.Moved(waiter, "reopen", spans, f"retried with {batch_id}"))
                plan.reconsider.add(waiter)


def _block_dependents(plan: _Plan, batch_id: int) -> None:
    """What waited for this batch and has not started waits again."""
    state = plan.state
    for waiter in sorted(watching(state, state.batches[batch_id])):
        if state.batches[waiter].counts[PENDING] and waiter not in plan.blocked:
            plan.blocked.add(waiter)
            spans = spans_of(state.batches[waiter], states_pattern((PENDING,)))
            plan.events.append(ev.Moved(waiter, "block", spans, f"batch {batch_id} runs again"))
            plan.reconsider.add(waiter)


def _remove(state: State, stimulus: ChangeJobs) -> _Plan:
    plan = _Plan(state, stimulus)
    chosen = {batch.id for batch, _ in by_state(state, stimulus.selector, range(len(JOB_STATES)))}
    for batch, spans in by_state(state, stimulus.selector, (*_QUEUED, COMPLETED, FAILED, ABORTED, OMITTED)):
        blocked = _dependents(state, batch, chosen)
        if blocked:
            raise RefusedError(
                f"batch {blocked[0]} depends on batch {batch.id} and has not run: "
                f"remove it too (rota remove {batch.id} {blocked[0]}), or let it run first"
            )
        plan.count(batch, spans)
        plan.events.append(ev.Removed(batch.id, spans))
        plan.reconsider.add(batch.id)
    plan.skip("runs: kill it first", STARTING, RUNNING, MISSING, KILLING)
    return plan


def _dependents(state: State, batch: BatchState, chosen: set[int]) -> list[int]:
    keys = [str(batch.id), *([f"@{batch.spec.name}"] if batch.spec.name else [])]
    waiters = {waiter for key in keys for waiter in state.waiters.get(key, ())}
    return sorted(waiter for waiter in waiters - chosen if state.batches[waiter].unsettled)


_CHANGES = {"modify": _modify, "kill": _kill, "hold": _hold, "release": _release, "retry": _retry, "remove": _remove}

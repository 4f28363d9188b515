"""Attempts that end: as their runner tells it, given back unstarted, lost, or too late to count."""

from collections.abc import Iterable, Iterator, Sequence

from rota.core.decide.decision import Decision
from rota.core.decide.hosts import Blow, avoid_host, is_fast, judge_host, succeeded
from rota.core.decide.learning import Sampling, escalated
from rota.core.decide.retries import after_failure, brakes, is_forbidden, stopped_by_a_full_disk
from rota.core.dependencies.meaning import dependents
from rota.core.notes import Forgot
from rota.core.shares import Spending
from rota.core.soft import Usage
from rota.core.state import BatchState, Live, RunnerState, State
from rota.core.stimuli import At, Ended
from rota.model import events as ev
from rota.model.job import Result, format_job
from rota.model.slot import Slot
from rota.model.tables import KILLING, MISSING, STARTING

__all__ = ["find_live", "give_back", "last_usage", "lost", "superseded", "take_ended"]

Row = tuple[int, int, str, float | None, int]
"""A row of an `Ended` event: batch, position, verb, not before, wall time in milliseconds."""
_REMOVED_BY = {"success": ("complete",), "failure": ("fail", "abort"), "exit": ("complete", "fail", "abort")}


def find_job(state: State, number: int, index: int) -> tuple[BatchState, int] | None:
    """(batch, position) of a job as runners name it."""
    batch = state.batches.get(number)
    if batch is None:
        return None
    pos = index - 1 if batch.ranges is None and 1 <= index <= batch.count else batch.position(index)
    return None if pos is None else (batch, pos)


def find_live(state: State, runner_id: str, job: tuple[int, int, int]) -> tuple[BatchState, int] | None:
    """(batch, position) of an attempt that this runner should hold, or whose end it may still report; else None."""
    found = find_job(state, job[0], job[1])
    live = None if found is None else found[0].live.get(found[1])
    return found if live is not None and live.runner == runner_id and live.attempt == job[2] else None


# ---- as the runner tells it -----------------------------------------------------------------------------------------


def take_ended(
    state: State,
    decision: Decision,
    runner: RunnerState,
    ended: Sequence[Ended],
    at: At,
    seq: int = 0,
    host: str | None = None,
) -> None:
    """Decide what becomes of attempts that ended on a runner; `host` is where, if that is not known of the runner.

    Seven parameters: not all ends come from a report (a driver may have told them).
    """
    _Ends(state, decision, runner, at, host or runner.host).take(ended, seq)


class _Ends:
    """The ends of one report, gathered into few events. The hot path."""

    def __init__(self, state: State, decision: Decision, runner: RunnerState, at: At, host: str) -> None:
        self.state = state
        self.decision = decision
        self.runner = runner
        self.at = at
        self.host = host
        self.rows: list[Row] = []
        self.stopped: list[Row] = []
        """Ends that count neither as success nor as failure."""
        self.losses: list[tuple[Row, str]] = []
        """Ends of gangs that had lost a part, and how."""
        self.holds: list[tuple[int, int]] = []
        """(batch, position) of jobs that are to be held now that they are back."""
        self.raised: dict[tuple[int, str], ev.Retemplated] = {}
        """New templates for jobs that exceeded their needs, by batch and new needs."""
        self.sampling = Sampling(runner.capacity)
        self.spending = Spending()
        self.good: set[Slot] = set()
        """Slots in which jobs succeeded."""
        self.bad: list[Blow] = []
        """Jobs that failed at once."""
        self.full: dict[int, str] = {}
        """Batch → which of its jobs found a disk full, and how."""

    def take(self, ended: Sequence[Ended], seq: int) -> None:
        """Go through the rows, then make the events."""
        state, decision, runner_id = self.state, self.decision, self.runner.id
        seen: set[tuple[int, int]] = set()
        batch: BatchState | None = None
        for row in ended:
            if batch is None or batch.id != row.batch:
                batch = state.batches.get(row.batch)
            pos = None if batch is None else batch.position(row.index)
            live = None if batch is None or pos is None else batch.live.get(pos)
            if batch is None or pos is None or live is None or live.runner != runner_id or live.attempt != row.attempt:
                superseded(state, decision, runner_id, self.host, row)
            elif (row.batch, pos) not in seen:
                seen.add((row.batch, pos))
                result = self._ended(batch, pos, live, row)
                result.cores = live.node_cores
                if live.parts:
                    result.host = ",".join(state.hosts(live))
                decision.results.append(result)
        self._make_events(seq)

    def _ended(self, batch: BatchState, pos: int, live: Live, row: Ended) -> Result:
        wall_ms = 0
        if row.started is not None and row.ended is not None and row.ended >= row.started:
            wall_ms = max(1, int((row.ended - row.started) * 1000))
        if row.exit_code != 0 or row.reason is not None:
            return self._failed(batch, pos, live, row, wall_ms)
        self.rows.append((row.batch, pos, "complete", None, wall_ms))
        self.good.add(live.slot)
        template = batch.template(pos)
        if template.group:
            self.sampling.add(template.group, row.peak_memory, wall_ms, row.peak_disk)
        if template.share:
            self.spending.add(template, live.cores, wall_ms)
        return result_of(pos, row, "COMPLETED", self.runner.id, self.host, None, row.note)

    def _failed(self, batch: BatchState, pos: int, live: Live, row: Ended, wall_ms: int) -> Result:
        number, note = row.batch, row.note
        if (template := batch.template(pos)).share:
            self.spending.add(template, live.cores, wall_ms)
        if live.parts and batch.states[pos] != KILLING:
            why = batch.broken.get(pos) or self._unconnected(batch, pos, live, row)
            if why is not None:
                return self._broken(batch, pos, row, wall_ms, why)
        if row.reason == "staging" and batch.states[pos] != KILLING:
            return self._unstaged(batch, pos, row)
        fast = False
        verb, outcome, until, counted = after_failure(self.state, self.decision, batch, pos, row, self.at)
        reason = row.reason or ("signal" if row.signal is not None else "exit")
        if reason == "runner-stopped" and not note:
            note = "its runner was told to stop: its allocation is ended from outside"
        if verb == "abort" and reason in ("runner-stopped", "cancelled", "signal"):
            reason = "killed"  # a signal, or the end of its runner, is how a direct job is killed
        if counted and verb != "abort":
            raised = escalated(self.state, batch, pos, live.slot, row, wall_ms)
            if raised is not None:
                larger, why = raised
                note = f"{note}; {why}" if note else why
                key = (number, str(larger.needs) + str(larger.level))
                self.raised.setdefault(key, ev.Retemplated(number, [], larger, why)).spans.extend((pos, pos + 1))
                self._sample_excess(template.group, row, reason, wall_ms)
            # of a gang nobody knows which of its nodes is to blame, and what nobody has is no host's fault
            fast = raised is None and not live.parts and reason != "input" and is_fast(self.state, wall_ms)
            if reason == "disk-full" and not row.peak_disk:
                job = format_job(number, batch.index(pos))
                self.full[number] = f"{job} found no space left to write to: {row.note or 'its disk is full'}"
        (self.rows if counted else self.stopped).append((number, pos, verb, until, wall_ms))
        if verb == "requeue" and pos in batch.hold_wanted:
            self.holds.append((number, pos))
        result = result_of(pos, row, outcome, self.runner.id, self.host, reason, note)
        if fast:
            may_again = verb in ("fail", "requeue") and pos not in batch.hold_wanted and not is_forbidden(template, row)
            self.bad.append(Blow(number, pos, live.slot, row, result, may_again))
        return result

    def _unconnected(self, batch: BatchState, pos: int, live: Live, row: Ended) -> str | None:
        """What of a gang is not connected when its root fails by itself: that often tells first of a lost node.

        A report that the root's runner left behind tells nothing of who was connected then.
        """
        runners, contacts = self.state.runners, self.state.soft.contacts
        by_itself = row.reason in (None, "exit", "signal") and not batch.hold_wanted.get(pos)
        if not by_itself or not contacts[live.runner].connected:
            return None
        parts = [runners[name] for name, _ in live.parts if name in runners]
        away = [part.host for part in parts if part.state == "MISSING" or not contacts[part.id].connected]
        return f"its part on {', '.join(away)} is not connected" if away else None

    def _broken(self, batch: BatchState, pos: int, row: Ended, wall_ms: int, why: str) -> Result:
        """Take the end of a gang that had lost a part: whatever its exit code, that is a loss."""
        verb, outcome, reason = _loss(self.state, batch, pos, "lost")
        self.losses.append(((row.batch, pos, verb, None, wall_ms), why))
        if verb == "requeue" and pos in batch.hold_wanted:
            self.holds.append((row.batch, pos))
        note = f"{why}; {row.note}" if row.note else why
        return result_of(pos, row, outcome, self.runner.id, self.host, reason, note)

    def _unstaged(self, batch: BatchState, pos: int, row: Ended) -> Result:
        """Take it that what a job reads could not be brought to its host: it goes elsewhere, as after a loss."""
        verb, outcome, _ = _loss(self.state, batch, pos, "staging")
        why = row.note or "what it reads could not be brought there"
        self.losses.append(((row.batch, pos, verb, None, 0), why))
        if verb == "requeue" and pos in batch.hold_wanted:
            self.holds.append((row.batch, pos))
        avoid_host(self.decision, (self.runner.site, self.host), self.at, why)
        return result_of(pos, row, outcome, self.runner.id, self.host, "staging", why)

    def _sample_excess(self, group: str, row: Ended, reason: str, wall_ms: int) -> None:
        """Take a sample of what a job exceeded, and of nothing else: it had not finished."""
        if not group:
            return
        if reason == "time":
            self.sampling.add(group, wall_ms=wall_ms)
        elif reason == "disk-full":
            self.sampling.add(group, disk=row.peak_disk)
        else:
            self.sampling.add(group, row.peak_memory)

    def _make_events(self, seq: int) -> None:
        state, events, runner = self.state, self.decision.events, self.runner
        if self.good:
            succeeded(state, self.decision, runner, self.good, self.at)
        elif self.bad:
            self._excuse(judge_host(state, self.decision, runner, self.bad, self.at))
        if self.rows:
            events.append(ev.Ended(runner.id, self.rows, seq=seq))
            events.extend(brakes(state, self.rows))
            events.extend(stopped_by_a_full_disk(state, self.full, self.rows))
            events.extend(_removals(state, self.rows))
        if self.stopped:
            events.append(ev.Ended(runner.id, self.stopped, "nothing", seq=seq))
        for row, why in self.losses:
            events.append(ev.Ended(runner.id, [row], "loss", why, seq))
            events.extend(_removals(state, [row]))
        events.extend(self.raised.values())
        events.extend(self.sampling.events())
        events.extend(self.spending.events(self.at.wall))
        events.extend(ev.Moved(number, "hold", [pos, pos + 1]) for number, pos in self.holds)

    def _excuse(self, jobs: set[tuple[int, int]]) -> None:
        """Have these run again, at once, without counting their failures."""
        if jobs:
            self.stopped += [(row[0], row[1], "requeue", None, row[4]) for row in self.rows if row[:2] in jobs]
            self.rows = [row for row in self.rows if row[:2] not in jobs]


def result_of(
    pos: int, row: Ended, state: str, runner_id: str, host: str, reason: str | None, note: str | None
) -> Result:
    """The result of an attempt, from the row that tells of its end. (Seven parameters: what the row does not say.)"""
    batch, _, attempt, code, signal, _, started, ended, cpu_s, peak, out, _, disk = row
    return Result(
        batch, pos, attempt, state, code, signal, reason, runner_id, host, started, ended, cpu_s, peak, out, note, disk
    )


def _removals(state: State, rows: Sequence[Row]) -> Iterator[ev.Removed]:
    """Remove jobs whose template says so (`remove_on`) once they have settled, if nothing waits for them."""
    by_batch: dict[int, list[int]] = {}
    for number, pos, verb, _, _ in rows:
        batch = state.batches[number]
        if batch.removes:
            when = batch.template(pos).remove_on
            if when is not None and verb in _REMOVED_BY[when] and pos not in batch.rerun_wanted:
                by_batch.setdefault(number, []).append(pos)
    for number, positions in by_batch.items():
        if not any(waiter.unsettled for waiter in dependents(state, state.batches[number])):
            yield ev.Removed(number, [edge for pos in sorted(positions) for edge in (pos, pos + 1)])


# ---- given back unstarted -------------------------------------------------------------------------------------------


def give_back(
    state: State, decision: Decision, runner: RunnerState, jobs: list[tuple[int, int]], seq: int, why: str
) -> None:
    """Take back leased jobs that never started: to the queue, or held or aborted if somebody asked for that.

    A gang that had lost a part is a loss, and any gang has to wait until its parts are released.
    """
    rows: list[Row] = []
    holds = []
    for number, pos in jobs:
        batch = state.batches[number]
        if batch.states[pos] == KILLING:
            rows.append((number, pos, "abort", None, 0))
            attempt, note = batch.live[pos].attempt, "killed before it started"
            aborted = Result(number, pos, attempt, "ABORTED", None, None, "killed", runner.id, runner.host, note=note)
            decision.results.append(aborted)
            continue
        if pos in batch.broken:
            decision.add(lost(state, runner.id, [(number, pos)], batch.broken[pos], None, seq=seq))
            continue
        waits = batch.spec.after or batch.graph is not None or batch.spec.not_before is not None
        free = not waits and not batch.live[pos].parts
        if batch.states[pos] in (STARTING, MISSING) and free:
            rows.append((number, pos, "return", None, 0))
        else:  # the jobs that it depends on may run again meanwhile
            rows.append((number, pos, "requeue", None, 0))
        if pos in batch.hold_wanted:
            holds.append((number, pos))
    if rows:
        decision.events.append(ev.Ended(runner.id, rows, "nothing", why, seq))
    decision.events.extend(ev.Moved(number, "hold", [pos, pos + 1]) for number, pos in holds)


# ---- lost -----------------------------------------------------------------------------------------------------------


def lost(
    state: State,
    runner_id: str,
    jobs: Iterable[tuple[int, int]],
    why: str,
    at: At | None,
    reason: str = "lost",
    seq: int = 0,
) -> Decision:
    """Give up attempts on one runner: two witnesses have said that they are over, or the user accepted the risk.

    A lost attempt is not a failure of the job: it counts against its own limit. Giving up closes the attempt, so that a
    late success of it is shown and changes nothing. `reason` is what the provider says became of the node, if it says;
    a job may forbid to be started again after that. `at` is None for attempts that were certainly never started.
    (Seven parameters: `seq` is that of the report which says so, if one does.)
    """
    rows: list[Row] = []
    holds: list[tuple[int, int]] = []
    decision, runner = Decision(), state.runners[runner_id]
    spending = Spending()
    for number, pos in jobs:
        batch = state.batches[number]
        live = batch.live[pos]
        attempt, host = live.attempt, ",".join(state.hosts(live)) if live.parts else runner.host
        verb, outcome, told = _loss(state, batch, pos, reason)
        if verb == "requeue" and pos in batch.hold_wanted:
            holds.append((number, pos))
        rows.append((number, pos, verb, None, 0))
        used = last_usage(state, runner_id, number, pos, attempt)
        usage = (used.started, None if at is None else at.wall, used.cpu_s, used.memory)
        if at is not None and used.started is not None and (template := batch.template(pos)).share:
            spending.add(template, live.cores, int(max(0.0, at.wall - used.started) * 1000))
        row = Ended(number, batch.index(pos), attempt, None, None, told, *usage, None, why)
        result = result_of(pos, row, outcome, runner_id, host, told, why)
        result.cores = live.node_cores
        decision.results.append(result)
    if rows:
        decision.events.append(ev.Ended(runner_id, rows, "loss", why, seq))
        decision.events.extend(ev.Moved(number, "hold", [pos, pos + 1]) for number, pos in holds)
        decision.events.extend(_removals(state, rows))
        if at is not None:
            decision.events.extend(spending.events(at.wall))
    return decision


def _loss(state: State, batch: BatchState, pos: int, reason: str) -> tuple[str, str, str]:
    """(verb, state of the attempt, reason) for an attempt that is lost."""
    if batch.states[pos] == KILLING:
        return "abort", "ABORTED", reason
    may_again = batch.losses.get(pos, 0) < state.settings.losses and reason not in batch.template(pos).never_retry_on
    if pos in batch.hold_wanted or may_again:
        return "requeue", "LOST", reason
    return "fail", "FAILED", "lost-too-often" if reason == "lost" else reason


def last_usage(state: State, runner_id: str, number: int, pos: int, attempt: int) -> Usage:
    """What an attempt had used by its runner's last word, if nobody reports its end."""
    contact = state.soft.contacts.get(runner_id)
    used = contact.usage.get((number, pos)) if contact is not None else None
    return used if used is not None and used.attempt == attempt else Usage(attempt, None)


# ---- too late -------------------------------------------------------------------------------------------------------


def superseded(state: State, decision: Decision, runner_id: str, host: str | None, row: Ended) -> None:
    """Take the end of an attempt that is not live on this runner.

    If it was given up there, it comes too late: recorded and shown, of no effect. Else it is told again, or it is
    nothing that this runner ever had: there is nothing to do.
    """
    decision.notes.append(Forgot(runner_id, ((row.batch, row.index, row.attempt),), look=False))
    found, runner = find_job(state, row.batch, row.index), state.runners.get(runner_id)
    if found is None or runner is None or (row.batch, found[1], row.attempt) not in runner.lost:
        return
    how = f"exit code {row.exit_code}" if row.exit_code is not None else f"signal {row.signal}"
    what = f"attempt {row.attempt} ended with {how} on {host or runner_id}"
    detail = f"{what} after it had been given up; this changes nothing"
    decision.events.append(ev.Noted(format_job(row.batch, row.index), "late result", detail))
    note = "came after it had been given up"
    decision.results.append(result_of(found[1], row, "SUPERSEDED", runner_id, host or "", row.reason, note))

"""What runners say: greetings, reports, touches, farewells."""

from collections.abc import Sequence

from rota.core.decide.decision import Decision
from rota.core.decide.hosts import is_fast, judge_host, turn_away
from rota.core.decide.learning import Sampling, escalated
from rota.core.decide.removals import removals
from rota.core.decide.retries import after_failure, brakes
from rota.core.effects import Ack, Lease, Order
from rota.core.state import BatchState, RunnerState, State
from rota.core.stimuli import At, Disconnected, Ended, Greet, Report, RunnerBye, Touch
from rota.model import events as ev
from rota.model.job import Result, format_job
from rota.model.tables import KILLING, MISSING, STARTING

__all__ = ["back", "bye", "disconnected", "give_back", "greet", "greeted", "report", "take_ended", "touch"]


def greet(state: State, stimulus: Greet) -> Decision:
    """A runner opens a session.

    What it does not hold never reached it and goes back; what it should not hold it is told to end.
    """
    decision = Decision()
    runner = state.runners.get(stimulus.runner)
    if runner is not None and stimulus.connect <= runner.connect:
        return decision  # an old greeting that comes late
    allocation = state.allocations.get(stimulus.allocation) if stimulus.allocation is not None else None
    gone = runner is not None and runner.state in ("CLOSED", "EXPIRED")
    if gone or (stimulus.allocation is not None and (allocation is None or allocation.state.endswith("ED"))):
        why = "this runner was given up" if gone else f"allocation {stimulus.allocation} is over or unknown"
        decision.effects.append(Order(stimulus.runner, 0, "expired", [], why))
        return decision
    site = allocation.site if allocation is not None else "local"
    session = 1 if runner is None else runner.session + 1
    decision.events.append(
        ev.RunnerGreeted(
            stimulus.runner,
            stimulus.allocation,
            stimulus.connect,
            session,
            stimulus.host,
            stimulus.pid,
            stimulus.capacity,
            stimulus.tags,
            stimulus.until,
            stimulus.output,
            site,
        )
    )
    if allocation is not None and allocation.state in ("SUBMITTING", "PENDING"):
        decision.events.append(ev.AllocationMoved(allocation.id, "run", reason=None))
    if allocation is not None and runner is None:
        avoided = turn_away(state, site, stimulus.host, stimulus.at)
        if allocation.state == "KILLING" or avoided is not None:
            decision.events.append(ev.RunnerMoved(stimulus.runner, "drain", avoided or allocation.reason))
    held = set(stimulus.held)
    if runner is not None:
        missing = [
            job
            for job in runner.jobs
            if (job[0], state.batches[job[0]].index(job[1]), state.batches[job[0]].live[job[1]].attempt) not in held
        ]
        give_back(state, decision, runner, missing, 0, "its lease never reached the runner")
        if runner.state == "MISSING":
            _resume(state, decision, runner, set(missing))
    strangers = [job for job in stimulus.held if not _is_live(state, stimulus.runner, job)]
    if strangers:
        decision.effects.append(Order(stimulus.runner, session, "kill", strangers, "not this runner's any more"))
    return decision


def greeted(state: State, stimulus: Greet) -> None:
    """Note the clock of an accepted greeting: leases are timed by it until the runner says more."""
    runner = state.runners.get(stimulus.runner)
    if runner is not None and runner.connect == stimulus.connect:
        runner.clock = max(runner.clock, stimulus.clock)
        if runner.state == "SERVING" and runner.site in state.sites:
            state.sites[runner.site].why = None


def _is_live(state: State, runner_id: str, job: tuple[int, int, int]) -> bool:
    """True for an attempt that this runner should hold, or whose end it may still report."""
    found = _find(state, job[0], job[1])
    if found is None:
        return False
    batch, pos = found
    live = batch.live.get(pos)
    return live is not None and live.runner == runner_id and live.attempt == job[2]


def _find(state: State, number: int, index: int) -> tuple[BatchState, int] | None:
    batch = state.batches.get(number)
    if batch is None:
        return None
    pos = index - 1 if batch.ranges is None and 1 <= index <= batch.count else batch.position(index)
    return None if pos is None else (batch, pos)


def give_back(
    state: State, decision: Decision, runner: RunnerState, jobs: list[tuple[int, int]], seq: int, why: str
) -> None:
    """Leases that were never started: back to the queue, or to where somebody wants them."""
    rows: list[tuple[int, int, str, float | None, int]] = []
    holds = []
    for number, pos in jobs:
        batch = state.batches[number]
        if batch.states[pos] == KILLING:
            rows.append((number, pos, "abort", None, 0))
            attempt = batch.live[pos].attempt
            decision.results.append(
                Result(
                    number,
                    pos,
                    attempt,
                    "ABORTED",
                    None,
                    None,
                    "killed",
                    runner.id,
                    runner.host,
                    None,
                    None,
                    note="killed before it started",
                )
            )
            continue
        if batch.states[pos] in (STARTING, MISSING) and not batch.spec.after and batch.spec.not_before is None:
            rows.append((number, pos, "return", None, 0))
        else:  # what it depends on may have come back to life meanwhile
            rows.append((number, pos, "requeue", None, 0))
        if pos in batch.hold_wanted:
            holds.append((number, pos))
    if rows:
        decision.events.append(ev.Ended(runner.id, rows, "nothing", why, seq))
    decision.events.extend(ev.Moved(number, "hold", [pos, pos + 1]) for number, pos in holds)


def _resume(state: State, decision: Decision, runner: RunnerState, without: set[tuple[int, int]]) -> None:
    """The runner is back, and so are its jobs."""
    decision.events.append(ev.RunnerMoved(runner.id, "resume", "it is back"))
    if runner.drain_wanted:
        decision.events.append(ev.RunnerMoved(runner.id, "drain", "it was draining"))
    by_batch: dict[int, list[int]] = {}
    for number, pos in runner.jobs:
        if (number, pos) not in without and state.batches[number].states[pos] == MISSING:
            by_batch.setdefault(number, []).extend((pos, pos + 1))
    decision.events.extend(ev.Moved(number, "resume", spans) for number, spans in by_batch.items())


def _contact(state: State, runner_id: str, session: int, got: int, clock: float, at: At) -> RunnerState | None:
    """Note a sign of life; None if the message belongs to no present session."""
    runner = state.runners.get(runner_id)
    if runner is None or runner.session != session or runner.state in ("CLOSED", "EXPIRED"):
        return None
    runner.contact = at.mono
    runner.clock = max(runner.clock, clock)
    if got > runner.got:
        runner.got = got
        for number in [number for number in runner.unacked if number <= got]:
            del runner.unacked[number]
    return runner


def back(state: State, runner_id: str, session: int) -> Decision:
    """The events by which a MISSING runner that speaks in its present session is back; empty for any other."""
    decision = Decision()
    runner = state.runners.get(runner_id)
    if runner is not None and runner.state == "MISSING" and runner.session == session:
        _resume(state, decision, runner, set())
    return decision


def touch(state: State, stimulus: Touch) -> Decision:
    """Not an event; but the moment to repeat what it did not get."""
    decision = Decision()
    runner = _contact(state, stimulus.runner, stimulus.session, stimulus.got, stimulus.clock, stimulus.at)
    if runner is None:
        return decision
    if runner.given_up:
        _forget_given_up(state, runner, stimulus.held)
    for number, (sent, jobs, slots) in runner.unacked.items():
        if sent + state.settings.resend_s <= stimulus.at.mono:
            live = [job for job in jobs if _is_open(state, runner.id, job)]
            decision.effects.append(Lease(runner.id, runner.session, number, runner.clock, live, slots))
    decision.effects.extend(standing_orders(state, runner))
    return decision


def _forget_given_up(state: State, runner: RunnerState, held: list[tuple[int, int, int]]) -> None:
    """What it got and does not hold (any more) needs no order to end, and keeps it from no new work."""
    open_ = set(held)
    for _, jobs, _ in runner.unacked.values():
        open_.update((number, state.batches[number].index(pos), attempt) for number, pos, attempt, _ in jobs)
    for job in [job for job in runner.given_up if job not in open_]:
        del runner.given_up[job]
        state.replan = True


def _is_open(state: State, runner_id: str, job: tuple[int, int, int, str]) -> bool:
    """False for a lease that was given up meanwhile: to repeat it would start a closed attempt."""
    live = state.batches[job[0]].live.get(job[1])
    return live is not None and live.runner == runner_id and live.attempt == job[2]


def standing_orders(state: State, runner: RunnerState) -> list[Order]:
    """Orders that hold until a report settles them."""
    kills = list(runner.given_up)
    recalls: list[tuple[int, int, int]] = []
    for number, pos in runner.jobs:
        batch = state.batches[number]
        if batch.states[pos] == KILLING:
            kills.append((number, batch.index(pos), batch.live[pos].attempt))
        elif pos in batch.hold_wanted and (batch.hold_wanted[pos] or batch.states[pos] == STARTING):
            where = kills if batch.hold_wanted[pos] else recalls
            where.append((number, batch.index(pos), batch.live[pos].attempt))
    out = []
    if kills:
        out.append(Order(runner.id, runner.session, "kill", kills))
    if recalls:
        out.append(Order(runner.id, runner.session, "recall", recalls))
    if runner.drain_wanted:
        out.append(Order(runner.id, runner.session, "close", []))
    return out


def report(state: State, stimulus: Report) -> Decision:
    """Take a report once, in order; a repeat is acknowledged again and changes nothing."""
    decision = Decision()
    runner = _contact(state, stimulus.runner, stimulus.session, stimulus.got, stimulus.clock, stimulus.at)
    if runner is None:
        return _late_report(state, stimulus)
    if stimulus.seq <= runner.seq:
        decision.effects.append(Ack(runner.id, runner.seq))
        return decision
    if stimulus.seq != runner.seq + 1 and runner.seq >= 0:
        return decision  # one before it is missing: it will be sent again, in order
    started: dict[tuple[int, int], None] = {}  # a runner may say a thing twice
    for number, index, attempt in stimulus.started:
        found = _find(state, number, index)
        if found is not None:
            batch, pos = found
            live = batch.live.get(pos)
            if (
                live is not None
                and live.runner == runner.id
                and live.attempt == attempt
                and batch.states[pos] == STARTING
            ):
                started[number, pos] = None
    if started:
        decision.events.append(ev.Started(runner.id, list(started), stimulus.seq))
    take_ended(state, decision, runner, stimulus.ended, stimulus.seq, stimulus.at, stimulus.host)
    over = {(row[0], row[1], row[2]) for row in stimulus.ended} if stimulus.disclaimed else set()
    returned = []
    for number, index, attempt, _ in stimulus.disclaimed:
        found = _find(state, number, index)
        if (
            found is not None
            and (number, index, attempt) not in over
            and _is_live(state, runner.id, (number, index, attempt))
        ):
            over.add((number, index, attempt))
            returned.append((number, found[1]))
    give_back(state, decision, runner, returned, stimulus.seq, stimulus.disclaimed[0][3] if returned else "")
    if not any(getattr(event, "seq", 0) for event in decision.events):
        decision.events.append(ev.Ended(runner.id, [], seq=stimulus.seq))
    if runner.state == "SERVING" and not runner.direct and _is_stopping(stimulus):
        decision.events.append(ev.RunnerMoved(runner.id, "drain", "it is being stopped from outside"))
    decision.effects.append(Ack(runner.id, stimulus.seq))
    return decision


def _is_stopping(stimulus: Report) -> bool:
    """A runner that was told to stop gives everything back, also what it would be given now."""
    return any(row[5] == "runner-stopped" for row in stimulus.ended) or any(
        why == "runner-stopped" for *_, why in stimulus.disclaimed
    )


def _late_report(state: State, stimulus: Report) -> Decision:
    """A report from a runner that was given up: shown, acknowledged, and of no effect.

    From an old session: ignored, it will be repeated in the present one.
    """
    decision = Decision()
    runner = state.runners.get(stimulus.runner)
    if runner is None or runner.state in ("CLOSED", "EXPIRED"):
        for row in stimulus.ended:
            _superseded(state, decision, stimulus.runner, runner.host if runner else None, row)
        decision.effects.append(Ack(stimulus.runner, stimulus.seq))
    return decision


def _superseded(state: State, decision: Decision, runner_id: str, host: str | None, row: Ended) -> None:
    """An end of an attempt that is not live.

    Told again (nothing to do), or too late (recorded and shown, of no effect).
    """
    runner = state.runners.get(runner_id)
    if runner is not None:
        runner.given_up.pop((row.batch, row.index, row.attempt), None)
    found = _find(state, row.batch, row.index)
    if found is not None and row.attempt == found[0].attempts[found[1]] and not found[0].losses.get(found[1]):
        live = found[0].live.get(found[1])
        if live is None or live.runner == runner_id:
            return
    job = format_job(row.batch, row.index)
    how = f"exit code {row.exit_code}" if row.exit_code is not None else f"signal {row.signal}"
    decision.events.append(
        ev.Noted(
            job,
            "late result",
            f"attempt {row.attempt} ended with {how} on {host or runner_id} "
            "after it had been given up; this changes nothing",
        )
    )
    if found is not None and row.attempt <= found[0].attempts[found[1]]:
        decision.results.append(
            _result(found[1], row, "SUPERSEDED", runner_id, host or "", row.reason, "came after it had been given up")
        )


def _result(
    pos: int, row: Ended, state: str, runner_id: str, host: str, reason: str | None, note: str | None
) -> Result:
    return Result(
        row.batch,
        pos,
        row.attempt,
        state,
        row.exit_code,
        row.signal,
        reason,
        runner_id,
        host,
        row.started,
        row.ended,
        row.cpu_s,
        row.peak_memory,
        row.output,
        note,
        row.peak_disk,
    )


def take_ended(
    state: State,
    decision: Decision,
    runner: RunnerState,
    ended_rows: Sequence[Ended],
    seq: int,
    at: At,
    host: str | None = None,
) -> None:
    """The hot path: what ended, and what becomes of it."""
    rows: list[tuple[int, int, str, float | None, int]] = []
    stopped: list[tuple[int, int, str, float | None, int]] = []
    results, runner_id = decision.results, runner.id
    host = host or runner.host
    holds: list[tuple[int, int]] = []
    raised: dict[tuple[int, str], ev.Retemplated] = {}
    sampling = Sampling(runner.capacity)
    good: set[str] = set()
    bad: list[str] = []
    batch: BatchState | None = None
    seen: set[tuple[int, int]] = set()
    for row in ended_rows:
        number, index = row[0], row[1]
        if batch is None or batch.id != number:
            batch = state.batches.get(number)
        pos = (
            None
            if batch is None
            else (index - 1 if batch.ranges is None and 0 < index <= batch.count else batch.position(index))
        )
        live = None if batch is None or pos is None else batch.live.get(pos)
        if batch is None or pos is None or live is None or live.runner != runner_id or live.attempt != row[2]:
            _superseded(state, decision, runner_id, host, row)
            continue
        if (number, pos) in seen:
            continue
        seen.add((number, pos))
        started, ended = row[6], row[7]
        wall_ms = (
            max(1, int((ended - started) * 1000))
            if started is not None and ended is not None and ended >= started
            else 0
        )
        note = row[11]
        group = batch.templates[0 if batch.template_numbers is None else batch.template_numbers[pos]].group
        if row[3] == 0 and row[5] is None:
            rows.append((number, pos, "complete", None, wall_ms))
            outcome, reason = "COMPLETED", None
            good.add(live.slot)
            if group:
                sampling.add(group, row[9], wall_ms, row[12])
        else:
            verb, outcome, until, counted = after_failure(state, batch, pos, row, at)
            reason = row[5] or ("signal" if row[4] is not None else "exit")
            if verb == "abort" and reason in ("runner-stopped", "cancelled", "signal"):
                reason = "killed"  # that was the way to do it
            more = escalated(state, batch, pos, live.slot, row, wall_ms) if counted and verb != "abort" else None
            if more is not None:
                note = f"{note}; {more[1]}" if note else more[1]
                key = (number, str(more[0].needs) + str(more[0].level))
                raised.setdefault(key, ev.Retemplated(number, [], *more)).spans.extend((pos, pos + 1))
                if group and reason == "time":
                    sampling.add(group, wall_ms=wall_ms)
                elif group and reason == "disk-full":
                    sampling.add(group, disk=row[12])
                elif group:
                    sampling.add(group, row[9])
            (rows if counted else stopped).append((number, pos, verb, until, wall_ms))
            if counted and verb != "abort" and is_fast(state, wall_ms):
                bad.append(live.slot)
            if verb == "requeue" and pos in batch.hold_wanted:
                holds.append((number, pos))
        results.append(
            Result(
                number,
                pos,
                row[2],
                outcome,
                row[3],
                row[4],
                reason,
                runner_id,
                host,
                started,
                ended,
                row[8],
                row[9],
                row[10],
                note,
                row[12],
            )
        )
    if rows:
        decision.events.append(ev.Ended(runner_id, rows, seq=seq))
        decision.events.extend(brakes(state, rows))
        decision.events.extend(removals(state, rows))
    if stopped:
        decision.events.append(ev.Ended(runner_id, stopped, "nothing", seq=seq))
    decision.events.extend(raised.values())
    decision.events.extend(sampling.events())
    decision.events.extend(ev.Moved(number, "hold", [pos, pos + 1]) for number, pos in holds)
    if good or bad:
        decision.events.extend(judge_host(state, runner, good, set(bad), len(bad), at))


def bye(state: State, stimulus: RunnerBye) -> Decision:
    """A runner leaves."""
    decision = Decision()
    runner = state.runners.get(stimulus.runner)
    if runner is None or runner.session != stimulus.session or runner.state in ("CLOSED", "EXPIRED"):
        return decision
    give_back(state, decision, runner, list(runner.jobs), 0, "the runner left without starting it")
    decision.events.append(ev.RunnerMoved(runner.id, "close", stimulus.reason))
    return decision


def disconnected(state: State, stimulus: Disconnected) -> Decision:
    """No evidence of anything; but a good moment to ask the driver."""
    runner = state.runners.get(stimulus.runner)
    if runner is not None and runner.session == stimulus.session:
        runner.connected = False
    return Decision()

"""What runners say in their sessions: reports, touches, farewells."""

from collections.abc import Container, Iterable

from rota.core.decide.decision import Decision
from rota.core.decide.ends import find_live, give_back, lost, superseded, take_ended
from rota.core.decide.gangs import are_all_back, live_part, part_at, parts_lost, parts_orders, parts_told
from rota.core.decide.hosts import avoid_host
from rota.core.effects import Ack, Allocate, Hold, Lease, Order
from rota.core.notes import Forgot, Heard, Told, Unheard
from rota.core.soft import Contact, Key, LeasedJob, Sent, Usage
from rota.core.state import RunnerState, State
from rota.core.stimuli import Disconnected, Left, Report, RunnerBye, Stimulus, Touch, Unstaged, Used, Written
from rota.model import events as ev
from rota.model.tables import KILLING, MISSING, STARTING

__all__ = [
    "ask_driver", "back", "bye", "disconnected", "report", "resume", "standing_orders", "take_written", "touch",
    "unstaged",
]  # fmt: skip


def resume(state: State, decision: Decision, runner: RunnerState, without: set[tuple[int, int]]) -> None:
    """Have a runner back, and the jobs on it."""
    decision.events.append(ev.RunnerMoved(runner.id, "resume", "it is back"))
    if runner.drain_wanted:
        decision.events.append(ev.RunnerMoved(runner.id, "drain", "it was draining"))
    by_batch: dict[int, list[int]] = {}
    for number, pos in runner.jobs:
        batch = state.batches[number]
        if (number, pos) in without or batch.states[pos] != MISSING:
            continue
        if not batch.live[pos].parts or are_all_back(state, batch.live[pos], runner.id):
            by_batch.setdefault(number, []).extend((pos, pos + 1))
    for key in runner.parts:
        live = live_part(state, key)
        if live is None or state.batches[key[0]].states[key[1]] != MISSING:
            continue
        if are_all_back(state, live, runner.id):
            by_batch.setdefault(key[0], []).extend((key[1], key[1] + 1))
    decision.events.extend(ev.Moved(number, "resume", spans) for number, spans in by_batch.items())


def _hear(state: State, decision: Decision, stimulus: Report | Touch) -> RunnerState | None:
    """Take note of a sign of life; None if the message belongs to no present session."""
    runner = state.runners.get(stimulus.runner)
    if runner is None or runner.session != stimulus.session or runner.state in ("CLOSED", "EXPIRED"):
        return None
    decision.notes.append(Heard(runner.id, stimulus.at.mono, stimulus.clock, stimulus.got))
    return runner


def back(state: State, runner_id: str, session: int) -> Decision:
    """Have a MISSING runner back that speaks in its present session; nothing for any other."""
    decision = Decision()
    runner = state.runners.get(runner_id)
    if runner is not None and runner.state == "MISSING" and runner.session == session:
        resume(state, decision, runner, set())
    return decision


def touch(state: State, stimulus: Touch) -> Decision:
    """Take a sign of life. Not an event, but the moment to repeat what the runner did not get."""
    decision = Decision()
    runner = _hear(state, decision, stimulus)
    if runner is None:
        return decision
    contact = state.soft.contacts[runner.id]
    if stimulus.used or stimulus.left:
        decision.notes.append(Told(runner.id, _usage(state, runner, contact, stimulus.used, stimulus.left)))
    if stimulus.holds or contact.confirmed or contact.strange:
        parts_told(state, decision, runner.id, runner.session, stimulus.holds)
    clock = max(contact.clock, stimulus.clock)
    unacked = {number: sent for number, sent in contact.unacked.items() if number > stimulus.got}
    over = _over(state, contact, unacked.values(), stimulus.held)
    if over:
        decision.notes.append(Forgot(runner.id, tuple(over)))
    for number, sent in unacked.items():
        if sent.at + state.settings.resend_s <= stimulus.at.mono:
            live = [job for job in sent.jobs if _is_open(state, runner.id, job)]
            decision.effects.append(Lease(runner.id, runner.session, number, clock, live, sent.slots, sent.gangs))
    decision.effects.extend(standing_orders(state, runner, without=over))
    return decision


def _usage(
    state: State, runner: RunnerState, contact: Contact, rows: Iterable[Used], left: Iterable[Left]
) -> dict[tuple[int, int], Usage]:
    """What attempts, or parts of them, have used so far on this node; an unsaid start is known from before."""
    out = {}
    for number, index, attempt, started, cpu_s, memory in rows:
        job = (number, index, attempt)
        found = find_live(state, runner.id, job) or (part_at(state, runner, job) if runner.parts else None)
        if found is not None:
            before = contact.usage.get((number, found[1]))
            if started is None and before is not None and before.attempt == attempt:
                started = before.started
            out[number, found[1]] = Usage(attempt, started, cpu_s, memory)
    for waits in left:
        found = find_live(state, runner.id, waits[:3])
        if found is not None:
            job_at = (waits.batch, found[1])
            known = out.get(job_at) or contact.usage.get(job_at)
            if known is None or known.attempt != waits.attempt:
                known = Usage(waits.attempt, None)
            out[job_at] = known._replace(left=waits)
    return out


def _over(state: State, contact: Contact, unacked: Iterable[Sent], held: list[Key]) -> dict[Key, None]:
    """Attempts that were given up, and that the runner got and does not hold any more.

    They need no order to end, and do not keep the runner from new work.
    """
    if not contact.given_up:
        return {}
    open_ = set(held)
    for sent in unacked:
        open_.update((number, state.batches[number].index(pos), attempt) for number, pos, attempt, _ in sent.jobs)
    return {job: None for job in contact.given_up if job not in open_}


def _is_open(state: State, runner_id: str, job: LeasedJob) -> bool:
    """False for a lease that was given up meanwhile: to repeat it would start a closed attempt."""
    live = state.batches[job[0]].live.get(job[1])
    return live is not None and live.runner == runner_id and live.attempt == job[2]


def standing_orders(state: State, runner: RunnerState, without: Container[Key] = ()) -> list[Order | Hold]:
    """Orders to a runner that hold until it answers them."""
    kills = [job for job in state.soft.contacts[runner.id].given_up if job not in without]
    recalls: list[tuple[int, int, int]] = []
    for number, pos in runner.jobs:
        batch = state.batches[number]
        if batch.states[pos] == KILLING or pos in batch.broken:
            kills.append((number, batch.index(pos), batch.live[pos].attempt))
        elif pos in batch.hold_wanted and (batch.hold_wanted[pos] or batch.states[pos] == STARTING):
            where = kills if batch.hold_wanted[pos] else recalls
            where.append((number, batch.index(pos), batch.live[pos].attempt))
    out: list[Order | Hold] = [
        Order(runner.id, runner.session, what, jobs) for what, jobs in (("kill", kills), ("recall", recalls)) if jobs
    ]
    if runner.parts:
        out.extend(parts_orders(state, runner))
    if runner.drain_wanted:
        out.append(Order(runner.id, runner.session, "close", []))
    return out


def report(state: State, stimulus: Report) -> Decision:
    """Take a report once, in order; a repeat is acknowledged again and changes nothing."""
    decision = Decision()
    runner = _hear(state, decision, stimulus)
    if runner is None:
        return _late_report(state, stimulus)
    if stimulus.seq <= runner.seq:
        decision.effects.append(Ack(runner.id, runner.seq))
        return decision
    if stimulus.seq != runner.seq + 1 and runner.seq >= 0:
        return decision  # the report before it is missing: the runner sends them again, in order
    started: dict[tuple[int, int], None] = {}  # a report may name an attempt twice
    usage = {}
    for number, index, attempt, wall in stimulus.started:
        found = find_live(state, runner.id, (number, index, attempt))
        if found is not None:
            batch, pos = found
            usage[number, pos] = Usage(attempt, wall)
            if batch.states[pos] == STARTING:
                started[number, pos] = None
    if started:
        decision.events.append(ev.Started(runner.id, list(started), stimulus.seq))
    if usage:
        decision.notes.append(Told(runner.id, usage))
    take_ended(state, decision, runner, stimulus.ended, stimulus.at, stimulus.seq, stimulus.host)
    _take_disclaimed(state, decision, runner, stimulus)
    if not any(getattr(event, "seq", 0) for event in decision.events):
        decision.events.append(ev.Ended(runner.id, [], seq=stimulus.seq))
    if not runner.direct and _is_stopping(stimulus):
        decision.drain(runner, "it is being stopped from outside")
    decision.effects.append(Ack(runner.id, stimulus.seq))
    return decision


def take_written(state: State, stimulus: Stimulus, runner: RunnerState, words: Written) -> Decision:
    """Take the report that a runner wrote down, as if it had sent it."""
    return report(
        state,
        Report(
            at=stimulus.at,
            by=stimulus.by,
            runner=runner.id,
            session=runner.session,
            seq=runner.seq + 1,
            got=0,
            clock=0.0,
            ended=words.ended,
            disclaimed=words.disclaimed,
            host=words.host,
        ),
    )


def _take_disclaimed(state: State, decision: Decision, runner: RunnerState, stimulus: Report) -> None:
    """Take back jobs that the runner will not start, unless the same report tells of their end."""
    if not stimulus.disclaimed:
        return
    over = {(row.batch, row.index, row.attempt) for row in stimulus.ended}
    returned = []
    for number, index, attempt, _ in stimulus.disclaimed:
        job = (number, index, attempt)
        found = find_live(state, runner.id, job)
        if found is not None and job not in over:
            over.add(job)
            returned.append((number, found[1]))
    give_back(state, decision, runner, returned, stimulus.seq, stimulus.disclaimed[0][3] if returned else "")


def _is_stopping(stimulus: Report) -> bool:
    """Whether a runner was told to stop: it gives everything back, also what it would be given now."""
    return any(row.reason == "runner-stopped" for row in stimulus.ended) or any(
        why == "runner-stopped" for *_, why in stimulus.disclaimed
    )


def _late_report(state: State, stimulus: Report) -> Decision:
    """Take a report that belongs to no present session.

    From a runner that was given up it is shown, acknowledged, and of no effect. From an old session it is ignored: it
    will be repeated in the present one.
    """
    decision = Decision()
    runner = state.runners.get(stimulus.runner)
    if runner is None or runner.state in ("CLOSED", "EXPIRED"):
        for row in stimulus.ended:
            superseded(state, decision, stimulus.runner, runner.host if runner else None, row)
        decision.effects.append(Ack(stimulus.runner, stimulus.seq))
    return decision


def unstaged(state: State, stimulus: Unstaged) -> Decision:
    """Give up attempts that certainly have not started: their runner waits for a word that nobody will say."""
    decision = Decision()
    runner = state.runners.get(stimulus.runner)
    if runner is None or runner.state in ("CLOSED", "EXPIRED"):
        return decision
    found = [find_live(state, runner.id, job) for job in stimulus.jobs]
    jobs = [(at[0].id, at[1]) for at in found if at is not None and at[0].states[at[1]] in (STARTING, MISSING, KILLING)]
    if jobs:
        decision.add(lost(state, runner.id, jobs, stimulus.why, None, reason="staging"))
        avoid_host(decision, (runner.site, runner.host), stimulus.at, stimulus.why)
    return decision


def bye(state: State, stimulus: RunnerBye) -> Decision:
    """Close a runner that leaves."""
    decision = Decision()
    runner = state.runners.get(stimulus.runner)
    if runner is None or runner.session != stimulus.session or runner.state in ("CLOSED", "EXPIRED"):
        return decision
    give_back(state, decision, runner, list(runner.jobs), 0, "the runner left without starting it")
    parts_lost(state, decision, runner, f"its runner left ({stimulus.reason})")
    decision.events.append(ev.RunnerMoved(runner.id, "close", stimulus.reason))
    return decision


def disconnected(state: State, stimulus: Disconnected) -> Decision:
    """Ask the driver about a runner whose connection is gone: that itself is evidence of nothing."""
    runner = state.runners.get(stimulus.runner)
    if runner is None or runner.session != stimulus.session:
        return Decision()
    decision = Decision(notes=[Unheard(runner.id)])
    ask_driver(state, decision, runner)
    return decision


def ask_driver(state: State, decision: Decision, runner: RunnerState) -> None:
    """Have the driver, the second witness, asked about a runner's allocation."""
    allocation = state.allocations.get(runner.allocation or "")
    if allocation is not None and allocation.state.endswith("ING"):
        decision.effects.append(Allocate("check", allocation.id, allocation.site, allocation.tag))

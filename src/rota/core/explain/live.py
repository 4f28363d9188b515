"""Jobs that runners have: STARTING, RUNNING, MISSING and KILLING, in words."""

from collections.abc import Callable

from rota.core.explain.account import Account, Blocker, Records, ago, said_words, wait_words
from rota.core.explain.line import running_before
from rota.core.explain.pending import stopped_words
from rota.core.state import BatchState, Live, RunnerState, State
from rota.core.stimuli import At
from rota.model.allocation import Allocation, Waiting
from rota.model.amounts import format_duration
from rota.model.job import format_job
from rota.model.tables import JOB_STATES, PENDING, RUNNING, STARTING

__all__ = ["cluster_words", "live", "running_since"]


def live(state: State, batch: BatchState, pos: int, at: At, records: Records) -> Account:
    """Where a live job is, and what it waits for there."""
    runner = state.runners[batch.live[pos].runner]
    account = _live(state, batch, pos, runner, at, records.down)
    then = f"; it runs again when it has finished: {batch.rerun_wanted[pos]}" if pos in batch.rerun_wanted else ""
    then += "; it is to be held" if pos in batch.hold_wanted else ""
    if runner.direct:
        then = cluster_words(state, batch, pos, records.waits, records.unanswered) + then
        said = records.waits(state.allocations[runner.allocation or ""])
        if said is not None and said.over:
            account.reason = account.reason.replace("runs on ", "was on ", 1)
    if records.down:
        then += "; no manager is up, so this is how it was when one was: it goes on without"
    account.reason += then
    account.short = account.short or account.reason
    if not account.blockers and batch.states[pos] != RUNNING:
        kind = "cluster" if runner.direct else "runner"
        account.blockers = [Blocker(kind, account.reason)]
    return account


def _live(state: State, batch: BatchState, pos: int, runner: RunnerState, at: At, down: bool) -> Account:
    now = JOB_STATES[batch.states[pos]]
    if runner.direct:
        return _direct(state, batch, pos, runner, at)
    where = f"on {', '.join(state.hosts(batch.live[pos]))} (attempt {batch.attempts[pos]}, runner {runner.id})"
    if now == "KILLING":
        return _killing(state, batch, pos, at, where)
    stopped = f"; {words}" if (words := stopped_words(state, runner.allocation)) else ""
    if pos in batch.broken:
        return Account(f"is being ended {where}: {batch.broken[pos]}{stopped}")
    if now == "MISSING":
        return _missing(state, batch, pos, at, where + stopped)
    quiet = "" if down else _quiet(state, runner, at)
    if now == "RUNNING":
        since = running_since(state, batch, pos, at)
        if since is None or down:
            return Account(f"runs {where}{quiet}{stopped}")
        then = _overdue(batch, pos, since, at) + _left(state, batch, pos, at)
        return Account(f"runs {where} since {ago(at.wall - since)}{then}{quiet}{stopped}")
    if awaited := _unconfirmed(state, batch, pos):
        count = len(batch.live[pos].parts) + 1
        words = f"has {count} nodes {where}, and starts when {awaited} confirmed that its part is held there{stopped}"
        return Account(words)
    contact = state.soft.contacts[runner.id]
    leased = contact.since.get((batch.id, pos))
    when = "" if leased is None else f" {ago(at.mono - leased)} ago"
    unsure = any((batch.id, pos) == row[:2] for sent in contact.unacked.values() for row in sent.jobs)
    then = ", which has not confirmed that yet" if unsure else ", and starts or waits its turn there"
    if not unsure and (count := running_before(state, runner, batch.id, pos)):
        jobs = "the job that runs" if count == 1 else f"one of the {count:,} jobs that run"
        then = f", and starts when {jobs} in its place there has ended"
    return Account(f"was given to a runner{when} {where}{then}{quiet}{stopped}")


def _overdue(batch: BatchState, pos: int, since: float, at: At) -> str:
    """That a job has had the time that it asked for, and is being ended for that."""
    template = batch.template(pos)
    time_s, grace = template.needs.time_s, template.grace_s
    if time_s is None or "time" not in template.enforce or at.wall - since <= time_s:
        return ""
    over = at.wall - since - time_s
    then = f"KILL follows in {wait_words(grace - over)}" if over < grace else "KILL was sent too"
    return f"; its time of {format_duration(time_s)} is over: TERM was sent {ago(over)} ago, {then}"


def _left(state: State, batch: BatchState, pos: int, at: At) -> str:
    """That the command of a job is over, and which processes that it left are waited for."""
    contact = state.soft.contacts.get(batch.live[pos].runner)
    used = None if contact is None else contact.usage.get((batch.id, pos))
    if used is None or used.left is None or used.attempt != batch.attempts[pos]:
        return ""
    left = used.left
    names = [f"{name} (pid {pid})" for pid, name in left.processes]
    names += ["…"] if left.many > len(names) else []
    many = "a process" if left.many == 1 else f"{left.many:,} processes"
    ended = f"its command ended {ago(at.wall - left.ended)} ago with exit 0"
    return f"; {ended}; waits for {many} that it left: {', '.join(names)}"


def running_since(state: State, batch: BatchState, pos: int, at: At) -> float | None:
    """Wall-clock time since when an attempt runs, as its runner told, or else when it was leased; None: not known."""
    contact = state.soft.contacts.get(batch.live[pos].runner)
    if contact is None:
        return None
    used = contact.usage.get((batch.id, pos))
    if used is not None and used.attempt == batch.attempts[pos] and used.started is not None:
        return used.started
    leased = contact.since.get((batch.id, pos))
    return None if leased is None else at.wall - (at.mono - leased)


def _quiet(state: State, runner: RunnerState, at: At) -> str:
    """That nothing has been heard of a runner for longer than usual."""
    contact = state.soft.contacts[runner.id]
    silence = at.mono - contact.heard
    if contact.connected and silence <= 2 * state.settings.touch_s:
        return ""
    left = state.settings.missing_s - silence
    what = "has not been heard of" if contact.connected else "is not connected, and has not been heard of"
    return f"; its runner {what} for {ago(silence)}: it counts as missing in {wait_words(left)}"


def _missing(state: State, batch: BatchState, pos: int, at: At, where: str) -> Account:
    of_gang, silence = _silent(state, batch.live[pos], at)
    job = format_job(batch.id, batch.index(pos))
    then = "it counts again when the runner is back, or is given up when the driver or you"
    then += f" (rota kill {job} --confirm-dead) say so"
    blocker = Blocker("runner", f"nothing heard of {of_gang} for {ago(silence)}", False, None, "rota runners")
    if batch.template(pos).rerunnable:
        left = state.settings.rerun_s - silence
        then += f"; it is rerunnable, so that it is tried again elsewhere in {wait_words(left)}"
        blocker = Blocker("runner", blocker.words, False, at.wall + max(0.0, left), "rota runners")
    words = f"is missing: nothing has been heard of {of_gang} for {ago(silence)}; it was {where}; {then}"
    return Account(words, blockers=[blocker], commands=["rota runners", f"rota kill {job} --confirm-dead"])


def _silent(state: State, live: Live, at: At) -> tuple[str, float]:
    """(which runners of a MISSING job nothing is heard of, for how long)."""
    members = [state.runners[name] for name, _ in ((live.runner, live.slot), *live.parts) if name in state.runners]
    silent = [runner for runner in members if runner.state == "MISSING"] or members[:1]
    silence = max(at.mono - state.soft.contacts[runner.id].heard for runner in silent)
    return f"its runner on {', '.join(runner.host for runner in silent)}", silence


def _killing(state: State, batch: BatchState, pos: int, at: At, where: str) -> Account:
    """Who kills it, since when, and when KILL follows TERM."""
    runner = state.runners[batch.live[pos].runner]
    asked, grace = state.soft.killing.get((batch.id, pos)), batch.template(pos).grace_s
    by = f", {batch.killed_why}" if batch.killed_why else ""
    contact = state.soft.contacts[runner.id]
    words = f"is being killed {where}{by}"
    if runner.state == "MISSING" or not contact.connected:
        silence = ago(at.mono - contact.heard)
        job = format_job(batch.id, batch.index(pos))
        words += f"; its runner has not been heard of for {silence}: it is told when it is back"
        words += f", or say that it is dead (rota kill {job} --confirm-dead)"
        return Account(words, commands=[f"rota kill {job} --confirm-dead"])
    if asked is None:
        return Account(f"{words}; TERM was sent, and KILL follows {grace} s after it")
    passed = at.mono - asked
    if passed < grace:
        words += f"; TERM was sent {ago(passed)} ago, KILL follows in {wait_words(grace - passed)}"
        return Account(words, blockers=[Blocker("grace", words, False, at.wall + grace - passed)])
    return Account(f"{words}; TERM was sent {ago(passed)} ago, and KILL {ago(passed - grace)} ago")


def _unconfirmed(state: State, batch: BatchState, pos: int) -> str:
    """Which nodes of a gang have not confirmed yet that they hold their parts."""
    live = batch.live[pos]
    if not live.parts or (batch.id, pos) in state.soft.sent:
        return ""
    job = (batch.id, batch.index(pos), live.attempt)
    left = [name for name, _ in live.parts if job not in state.soft.contacts[name].confirmed]
    names = [state.runners[name].host for name in left if name in state.runners]
    return f"{', '.join(names)} ha{'s' if len(names) == 1 else 've'}" if names else ""


def _direct(state: State, batch: BatchState, pos: int, runner: RunnerState, at: At) -> Account:
    """Where a direct job is, which is a cluster job of its own."""
    allocation = state.allocations[runner.allocation or ""]
    attempt = f"attempt {batch.attempts[pos]}, allocation {allocation.id}"
    native = f"job {allocation.native_id} of the site {allocation.site} ({attempt})"
    why = f": {allocation.reason}" if allocation.reason else ""
    now = JOB_STATES[batch.states[pos]]
    if now == "KILLING":
        asked = state.soft.killing.get((batch.id, pos))
        by = f", {batch.killed_why}" if batch.killed_why else ""
        since = "" if asked is None else f", {ago(at.mono - asked)} ago"
        return Account(f"is being killed: {native}{by}{since}; it is over when the cluster says so")
    condition = state.soft.conditions.get(allocation.id)
    if condition is not None:
        of = ", suspended" if condition.kind == "suspended" and now == "RUNNING" else ""
        where = f"is on {runner.host or 'a node not yet known'}" if of else "waits in the cluster's queue"
        return Account(f"{where} as {native}{of}; {stopped_words(state, allocation.id)}")
    since = f" since {ago(at.wall - allocation.submitted)}" if allocation.submitted is not None else ""
    if now == "RUNNING":
        return Account(f"runs on {runner.host or 'a node not yet known'} as {native}")
    if allocation.native_id is None:
        return Account(f"is being submitted to the site {allocation.site} ({attempt}){why}")
    return Account(f"waits in the cluster's queue{since} as {native}{why}")


def cluster_words(
    state: State,
    batch: BatchState,
    pos: int,
    waits: Callable[[Allocation], Waiting | None],
    trouble: Callable[[Allocation], str | None],
) -> str:
    """What a batch system says of a direct job, or of the allocations that are to serve a job; else nothing.

    Or that the batch system does not answer: then what it said before is old.
    """
    asked: list[Allocation] = []
    if batch.states[pos] in (STARTING, RUNNING):
        runner = state.runners[batch.live[pos].runner]
        asked = [state.allocations[runner.allocation or ""]] if runner.direct else []
    elif batch.states[pos] == PENDING:
        shape = batch.shapes[batch.template_of(pos)]
        live = ("SUBMITTING", "PENDING")
        asked = [a for a in state.allocations.values() if a.state in live and a.shape in (shape, None)]
    for allocation in asked:
        if words := trouble(allocation):
            return f"; {words}"
        if allocation.id not in state.soft.conditions and (said := waits(allocation)):
            return f"; {said_words(allocation, said)}"
    return ""

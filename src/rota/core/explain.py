"""Why jobs are where they are, in words."""

import math
from collections.abc import Callable

from rota.core.decide.retries import no_use
from rota.core.dependencies import element_reason, waiting_for
from rota.core.state import BatchState, RunnerState, State
from rota.core.stimuli import At
from rota.model.allocation import Allocation
from rota.model.amounts import format_duration
from rota.model.batch import Template
from rota.model.job import Result, format_job
from rota.model.limits import local_text
from rota.model.shape import Shape
from rota.model.tables import (
    COMPLETED,
    FAILED,
    HOLDING,
    JOB_STATES,
    KILLING,
    MISSING,
    PENDING,
    REMOVED,
    RUNNING,
    STARTING,
    WAITING,
)
from rota.schedule.limits import at_time, blocked
from rota.schedule.view import Limit

__all__ = [
    "cluster_words",
    "describe_end",
    "held_reason",
    "limit_now",
    "limit_reason",
    "omitted_reason",
    "pending_reason",
    "rate_wait",
    "reason",
    "waiting_reason",
    "window_wait",
]


def reason(state: State, batch: BatchState, pos: int, last: Result | None, at: At) -> str:
    """Why a job is where it is, in words; `last` is its last attempt that ended."""
    byte = batch.states[pos]
    if byte == WAITING:
        return waiting_reason(state, batch, pos, at.wall)
    if byte == PENDING:
        return pending_reason(state, batch, pos, at)
    if byte == HOLDING:
        return held_reason(batch, format_job(batch.id, batch.index(pos)))
    if byte in (STARTING, RUNNING, MISSING, KILLING):
        runner = state.runners[batch.live[pos].runner]
        if runner.direct:
            return _direct_reason(state, batch, pos, runner)
        then = f"; it runs again when it has finished: {batch.rerun_wanted[pos]}" if pos in batch.rerun_wanted else ""
        then += "; it is to be held" if pos in batch.hold_wanted else ""
        where = f"on {runner.host} (attempt {batch.attempts[pos]}, runner {runner.id})"
        silent = (
            "nothing has been heard of its runner; it counts again when the runner is back, "
            "or is given up when the driver or you (rota kill --confirm-dead) say so"
        )
        return {
            STARTING: f"was given to a runner {where}, and starts or waits its turn there{then}",
            RUNNING: f"runs {where}{then}",
            MISSING: f"is missing: it was {where}; {silent}",
            KILLING: f"is being killed {where}",
        }[byte]
    if byte == JOB_STATES.index("OMITTED"):
        return omitted_reason(state, batch, pos)
    if byte == COMPLETED:
        return f"succeeded in attempt {batch.attempts[pos]}"
    if byte == REMOVED:
        return "was removed"
    if last is None:
        return "was killed before it ran" if byte != FAILED else "failed"
    return describe_end(last) + (_no_more(batch.template(pos), last) if byte == FAILED else "")


def _no_more(template: Template, last: Result) -> str:
    """Why a job that failed, and has retries, is not tried again."""
    if not template.retries or last.reason in ("lost", "lost-too-often"):
        return ""
    why = no_use(template, last)
    return "; no retries are left" if why is None else f"; it is not tried again ({why})"


def held_reason(batch: BatchState, what: str) -> str:
    """Why a HOLDING job, or all that is HOLDING of its batch, does not go on."""
    why = f" ({batch.held_why})" if batch.held_why else ""
    return f"is held{why}: rota release {what} lets it go on"


def _direct_reason(state: State, batch: BatchState, pos: int, runner: RunnerState) -> str:
    """Of a job that is a cluster job of its own."""
    allocation = state.allocations[runner.allocation or ""]
    attempt = f"attempt {batch.attempts[pos]}, allocation {allocation.id}"
    native = f"job {allocation.native_id} of the site {allocation.site} ({attempt})"
    why = f": {allocation.reason}" if allocation.reason else ""
    if batch.states[pos] == KILLING:
        return f"is being killed: {native}"
    if batch.states[pos] == RUNNING:
        return f"runs on {runner.host or 'a node not yet known'} as {native}"
    if allocation.native_id is None:
        return f"is being submitted to the site {allocation.site} ({attempt}){why}"
    return f"waits in the cluster's queue as {native}{why}"


def cluster_words(state: State, batch: BatchState, pos: int, waits: Callable[[Allocation], str | None]) -> str:
    """What a batch system says of the job, or of those that are to serve it; nothing if it says nothing."""
    asked: list[Allocation] = []
    if batch.states[pos] in (STARTING, RUNNING):
        runner = state.runners[batch.live[pos].runner]
        asked = [state.allocations[runner.allocation or ""]] if runner.direct else []
    elif batch.states[pos] == PENDING:
        shape = batch.shapes[batch.template_of(pos)]
        asked = [a for a in state.allocations.values() if a.state == "PENDING" and a.shape in (shape, None)]
    for allocation in asked:
        if words := waits(allocation):
            return f"; the cluster says of job {allocation.native_id}: {words}"
    return ""


def waiting_reason(state: State, batch: BatchState, pos: int | None, wall: float) -> str:
    """What a WAITING job (None: the first of its batch that can go on) waits for."""
    if (why := waiting_for(state, batch, wall, pos)) is not None:
        return why
    backing_off = [until for at, until in batch.until.items() if batch.states[at] == WAITING and pos in (None, at)]
    if backing_off and min(backing_off) > wall:
        return f"failed and is tried again in {min(backing_off) - wall:.0f} s"
    return "is about to become ready"


def omitted_reason(state: State, batch: BatchState, pos: int) -> str:
    """Why a job was omitted: its own reason if it depends on another job by job, or that of the batch."""
    found = element_reason(state, batch, pos) if batch.elements else None
    return found[1] if found is not None else batch.omitted_why or "a dependency can never be met"


def pending_reason(state: State, batch: BatchState, pos: int, at: At) -> str:
    """Why a PENDING job has not started."""
    template = batch.template_of(pos)
    shape = state.shapes[batch.shapes[template]]
    if state.mode != "serving":
        how = "" if state.mode != "paused" or "user" in state.pauses else f" --as {next(iter(state.pauses), 'user')}"
        return f"the manager is {state.mode}{_pauses(state, at)}: rota resume{how} lets jobs start again"
    ahead = _ahead(state, batch, pos)
    turn = f"; {ahead:,} job{'' if ahead == 1 else 's'} of its shape ahead of it" if ahead else ""
    limit = limit_reason(state, shape.shape, at) if shape.shape.limits else None
    if limit is not None and not all(v.lasting for v in shape.verdicts):
        return f"{limit}{turn}"
    if not shape.verdicts:
        return f"waits its turn{turn}"
    lasting = [v for v in shape.verdicts if v.lasting]
    if lasting and len(lasting) == len(shape.verdicts):
        return "fits nowhere now: " + "; ".join(f"{v.location}: {v.detail}" for v in lasting[:3])
    first = next(v for v in shape.verdicts if not v.lasting)
    return f"{first.location}: {first.detail}{turn}"


def _pauses(state: State, at: At) -> str:
    """Whose pauses keep it from starting jobs."""
    if state.mode != "paused" or (list(state.pauses) == ["user"] and not state.pauses["user"][1]):
        return ""
    rows = []
    for holder, (since, why, _) in state.pauses.items():
        when = f" since {local_text(int(since) + at.utc_offset_s)[:-3]}" if since else ""
        rows.append(f"{holder}{when}{f' ({why})' if why else ''}")
    return f" by {', '.join(rows[:3])}{' and others' if len(rows) > 3 else ''}"


def _ahead(state: State, batch: BatchState, pos: int) -> int:
    """Ready jobs of the same shape that go before this one."""
    template = batch.template_of(pos)
    shape = state.shapes[batch.shapes[template]]
    own = (-batch.templates[template].priority, batch.id, template)
    ahead = 0
    for number, low, high in batch.runs(0, pos) if pos else ():
        if number == template:
            ahead += batch.states.count(PENDING, low, high)
    for head in set(shape.heads):
        if head < own:
            ahead += state.batches[head[1]].queues[head[2]].count
    return ahead


def describe_end(result: Result) -> str:
    """How an attempt ended, in words."""
    if result.state == "COMPLETED":
        return "succeeded"
    how = {
        "exit": f"ended with exit code {result.exit_code}",
        "signal": f"was ended by signal {result.signal}",
        "killed": "was killed on request",
        "time": "took longer than its time and was ended",
        "memory": "used more than its memory and was ended",
        "oom": "ran the machine out of memory and was ended by the kernel",
        "disk-full": "found no space left to write to",
        "lost": "was lost with its runner",
        "lost-too-often": "was lost with its runner too often",
    }.get(result.reason or "", f"failed ({result.reason})" if result.reason else "failed")
    return f"{how}{': ' + result.note if result.note else ''}"


# ---- limits ----------------------------------------------------------------------------------------------------------


def limit_reason(state: State, shape: Shape, at: At) -> str | None:
    """Which limit keeps a shape from starting now, and until when."""
    limits = {name: limit_now(state, name, at) for name in shape.limits if name in state.limits}
    for name in shape.limits:
        no = blocked(Shape(shape.needs, (name,)), limits)
        if no is None:
            continue
        code, words, _ = no
        wait = None
        if code == "closed":
            wait = window_wait(limits[name], at)
            more = f" (in {_duration(wait)})" if wait is not None else ": set another, or remove it (rota limit)"
            return words + more
        if code == "rate":
            wait = rate_wait(state, name, limits[name], at)
        return words if wait is None else f"{words}; next start in {_duration(wait, spaced=True)}"
    return None


def limit_now(state: State, name: str, at: At) -> Limit:
    """A limit as it stands at a moment."""
    steady = state.steady(at.wall, at.mono)
    return at_time(state.limits[name], state.starts.get(name), at.wall + at.utc_offset_s, steady)


def window_wait(limit: Limit, at: At) -> float | None:
    """Seconds until its window opens, if that is closed and ever does."""
    if limit.window is None or limit.closed is None:
        return None
    local = at.wall + at.utc_offset_s
    opens = limit.window.opens(local)
    return None if opens is None else opens - local


def rate_wait(state: State, name: str, limit: Limit, at: At) -> float | None:
    """Seconds until its rate lets the next job start, if it lets none now."""
    if limit.rate is None or name not in state.starts:
        return None
    steady = state.steady(at.wall, at.mono)
    frees = state.starts[name].frees(steady, limit.per_s, limit.rate)
    return None if frees is None else max(0.0, frees - steady)


def _duration(wait: float, spaced: bool = False) -> str:
    """Seconds below two minutes, else minutes: nobody needs the seconds of an hour."""
    seconds = math.ceil(wait)
    if seconds < 120:
        return f"{seconds} s" if spaced else f"{seconds}s"
    return format_duration(-(-seconds // 60) * 60)

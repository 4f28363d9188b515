"""Why jobs are where they are, in words: all that `rota explain` and the reasons of `rota status` say.

Worked out from the state when somebody asks. Filters bring their own words, and so does what decides: that a job is
omitted (the event keeps why), that another try is of no use. Here they are only put together.
"""

import math
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from rota.core.decide.retries import no_use
from rota.core.dependencies import element_reason, named, never, positions_of
from rota.core.plan.asked import asked_now
from rota.core.plan.policies import out_of_order
from rota.core.plan.refusals import refusals
from rota.core.state import BatchState, Live, RunnerState, ShapeState, State
from rota.core.stimuli import At
from rota.model.allocation import Allocation
from rota.model.amounts import format_duration
from rota.model.batch import Dependency, Template
from rota.model.job import Result, format_job
from rota.model.limits import local_text
from rota.model.shape import Shape
from rota.model.tables import COMPLETED, HOLDING, JOB_STATES, PENDING, REMOVED, RUNNING, SETTLED, STARTING, WAITING
from rota.model.verdict import Verdict, Wake
from rota.schedule import queues
from rota.schedule.limits import at_time, blocked
from rota.schedule.policy import DEFAULT
from rota.schedule.view import QUEUE, Limit, View, Want

__all__ = [
    "batch_reasons",
    "cluster_words",
    "limit_now",
    "limit_reason",
    "omitted_reason",
    "rate_wait",
    "reason",
    "standing",
    "verdicts",
    "waiting_for",
    "window_wait",
]

_Newest = dict[tuple[str, str, int | None], tuple[int, Allocation]]
"""The newest allocation on its way of each site and queue, for each shape (None: for any), with its rank by age."""


def reason(state: State, batch: BatchState, pos: int, last: Result | None, at: At) -> str:
    """Why a job is where it is, in words; `last` is its last attempt that ended."""
    now = JOB_STATES[batch.states[pos]]
    if now == "WAITING":
        return _closing(state, batch, pos, at) or _waiting(state, batch, pos, at.wall)
    if now == "PENDING":
        return _pending(state, batch, pos, at, _newest(state))
    if now == "HOLDING":
        return _held(batch, format_job(batch.id, batch.index(pos)))
    if pos in batch.live:
        runner = state.runners[batch.live[pos].runner]
        if runner.direct:
            return _direct(state, batch, pos, runner)
        then = f"; it runs again when it has finished: {batch.rerun_wanted[pos]}" if pos in batch.rerun_wanted else ""
        then += "; it is to be held" if pos in batch.hold_wanted else ""
        if now != "KILLING" and (stopped := _stopped(state, runner.allocation)):
            then += f"; {stopped}"
        where = f"on {', '.join(state.hosts(batch.live[pos]))} (attempt {batch.attempts[pos]}, runner {runner.id})"
        silent = (
            f"nothing has been heard of {_silent(state, batch.live[pos])}; it counts again when the runner is back, "
            "or is given up when the driver or you (rota kill --confirm-dead) say so"
        )
        if pos in batch.broken and now != "KILLING":
            return f"is being ended {where}: {batch.broken[pos]}{then}"
        if now == "STARTING" and (awaited := _unconfirmed(state, batch, pos)):
            count = len(batch.live[pos].parts) + 1
            return f"has {count} nodes {where}, and starts when {awaited} confirmed that its part is held there{then}"
        return {
            "STARTING": f"was given to a runner {where}, and starts or waits its turn there{then}",
            "RUNNING": f"runs {where}{then}",
            "MISSING": f"is missing: it was {where}; {silent}{then}",
            "KILLING": f"is being killed {where}",
        }[now]
    if now == "OMITTED":
        return omitted_reason(state, batch, pos)
    if now == "COMPLETED":
        return f"succeeded in attempt {batch.attempts[pos]}"
    if now == "REMOVED":
        return "was removed"
    if last is None:
        return "was killed before it ran" if now != "FAILED" else "failed"
    return _end(last) + (_no_more(batch.template(pos), last) if now == "FAILED" else "")


def _silent(state: State, live: Live) -> str:
    """Which runners of a MISSING job nothing is heard of."""
    if not live.parts:
        return "its runner"
    members = [state.runners[name] for name, _ in ((live.runner, live.slot), *live.parts) if name in state.runners]
    silent = [runner.host for runner in members if runner.state == "MISSING"]
    return f"its runner on {', '.join(silent)}" if silent else "its runner"


def _unconfirmed(state: State, batch: BatchState, pos: int) -> str:
    """Which nodes of a gang have not confirmed yet that they hold their parts."""
    live = batch.live[pos]
    if not live.parts or (batch.id, pos) in state.soft.sent:
        return ""
    job = (batch.id, batch.index(pos), live.attempt)
    left = [name for name, _ in live.parts if job not in state.soft.contacts[name].confirmed]
    names = [state.runners[name].host for name in left if name in state.runners]
    return f"{', '.join(names)} ha{'s' if len(names) == 1 else 've'}" if names else ""


def _closing(state: State, batch: BatchState, pos: int, at: At) -> str | None:
    """Which nodes have not yet ended what they have of the attempt before, of a job on several."""
    names = [name for name in batch.closing.get(pos, ()) if name in state.runners]
    if not names:
        return None
    key = (batch.id, pos, batch.attempts[pos])
    since = min(state.soft.contacts[name].releasing.get(key, at.mono) for name in names)
    rows = [
        state.runners[name].host + (" (silent)" if state.runners[name].state == "MISSING" else "") for name in names
    ]
    return (
        f"waits until attempt {key[2]} has ended on {', '.join(rows)} too, asked for {at.mono - since:.0f} s ago: "
        "it runs again when nothing of it is left on any node"
    )


def batch_reasons(state: State, batches: Iterable[BatchState], at: At) -> Iterator[tuple[int, str]]:
    """(batch, why its unfinished jobs do not run): of its first PENDING job, else of WAITING, else of held ones."""
    newest = _newest(state)
    conditions, runners = state.soft.conditions, state.runners.values()
    stopped = {job[0]: r.allocation for r in runners if r.allocation in conditions for job in r.jobs}
    for batch in batches:
        if batch.counts[PENDING]:
            yield batch.id, _pending(state, batch, batch.states.find(PENDING), at, newest)
        elif batch.counts[WAITING]:
            closing = next((pos for pos in batch.closing if batch.states[pos] == WAITING), None)
            words = _closing(state, batch, closing, at) if closing is not None else None
            yield batch.id, words or _waiting(state, batch, None, at.wall)
        elif batch.counts[HOLDING]:
            yield batch.id, _held(batch, str(batch.id))
        elif (name := stopped.get(batch.id)) is not None:
            yield batch.id, _stopped(state, name)


def _no_more(template: Template, last: Result) -> str:
    """Why a job that failed, and has retries, is not tried again."""
    if not template.retries or last.reason in ("lost", "lost-too-often"):
        return ""
    why = no_use(template, last)
    return "; no retries are left" if why is None else f"; it is not tried again ({why})"


def _end(result: Result) -> str:
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


def _held(batch: BatchState, what: str) -> str:
    """Why a HOLDING job, or all that is HOLDING of its batch, does not go on."""
    why = f" ({batch.held_why})" if batch.held_why else ""
    return f"is held{why}: rota release {what} lets it go on"


def _direct(state: State, batch: BatchState, pos: int, runner: RunnerState) -> str:
    """Where a direct job is, which is a cluster job of its own."""
    allocation = state.allocations[runner.allocation or ""]
    attempt = f"attempt {batch.attempts[pos]}, allocation {allocation.id}"
    native = f"job {allocation.native_id} of the site {allocation.site} ({attempt})"
    why = f": {allocation.reason}" if allocation.reason else ""
    now = JOB_STATES[batch.states[pos]]
    if now == "KILLING":
        return f"is being killed: {native}"
    condition = state.soft.conditions.get(allocation.id)
    if condition is not None:
        of = ", suspended" if condition.kind == "suspended" and now == "RUNNING" else ""
        where = f"is on {runner.host or 'a node not yet known'}" if of else "waits in the cluster's queue"
        return f"{where} as {native}{of}; {_stopped(state, allocation.id)}"
    if now == "RUNNING":
        return f"runs on {runner.host or 'a node not yet known'} as {native}"
    if allocation.native_id is None:
        return f"is being submitted to the site {allocation.site} ({attempt}){why}"
    return f"waits in the cluster's queue as {native}{why}"


def _stopped(state: State, name: str | None) -> str:
    """That the cluster holds or has suspended an allocation, in its own words; else nothing."""
    condition, allocation = state.soft.conditions.get(name or ""), state.allocations.get(name or "")
    if condition is None or allocation is None:
        return ""
    words = f" ({condition.words})" if condition.words else ""
    if condition.kind == "held":
        return f"the cluster holds job {allocation.native_id}{words}: it starts when somebody releases it there"
    return f"the cluster has suspended job {allocation.native_id}{words}: it goes on when somebody resumes it there"


def cluster_words(
    state: State,
    batch: BatchState,
    pos: int,
    waits: Callable[[Allocation], str | None],
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
        if allocation.id not in state.soft.conditions and (words := waits(allocation)):
            return f"; the cluster says of job {allocation.native_id}: {words}"
    return ""


# ---- WAITING and OMITTED: dependencies, time -------------------------------------------------------------------------


def _waiting(state: State, batch: BatchState, pos: int | None, wall: float) -> str:
    """What a WAITING job (None: the first of its batch that can go on) waits for."""
    if (why := waiting_for(state, batch, wall, pos)) is not None:
        return why
    backing_off = [until for at, until in batch.until.items() if batch.states[at] == WAITING and pos in (None, at)]
    if backing_off and min(backing_off) > wall:
        return f"failed and is tried again in {min(backing_off) - wall:.0f} s"
    return "is about to become ready"


def waiting_for(state: State, batch: BatchState, wall: float, pos: int | None = None) -> str | None:
    """Why a WAITING job (None: those of the batch) waits, or None if nothing blocks it."""
    for dependency in batch.spec.after:
        if dependency.each and pos is not None:
            continue
        kind, text = standing(state, dependency, batch)
        if kind == "open" or (kind == "never" and not dependency.each):
            return text
    if pos is not None and (found := element_reason(state, batch, pos)) is not None:
        return found
    if batch.spec.not_before is not None and batch.spec.not_before > wall:
        return f"waits for its time ({format_duration(round(batch.spec.not_before - wall))} from now)"
    return None


def standing(state: State, dependency: Dependency, batch: BatchState | None = None) -> tuple[str, str]:
    """(met, open or never; a sentence that says so) for a dependency of a batch; job by job: as far as all go."""
    what = dependency.target
    if what.startswith("@"):
        numbers = state.names.get(what[1:], [])
        start, end = 0, len(numbers)
        if batch is not None:
            _, start, end = named(state, batch, dependency)
        if start >= end:
            return "open", f"waits for something named '{what[1:]}' to be added"
        others = [state.batches[number] for number in numbers[start:end] if number in state.batches]
        found = [(other, 0, other.count) for other in others if other is not batch]
    else:
        number, low, high = positions_of(state, what)
        found = [(state.batches[number], low, high)] if number in state.batches else []
    left = good = bad = 0
    for other, low, high in found:
        counts = other.counts
        if low > 0 or high < other.count:
            counts = [other.states.count(number, low, high) for number in range(len(JOB_STATES))]
        left += sum(counts[:SETTLED])
        good += counts[COMPLETED]
        bad += sum(counts[SETTLED:REMOVED]) - counts[COMPLETED]
    if left:
        extra = f", {bad} did not succeed" if bad else ""
        each = ", each job for the one of its number" if dependency.each else ""
        live = " (and for any other that is given this name)" if dependency.live else ""
        return "open", f"waits for {what}{live}{each}: {left} of {left + good + bad} jobs not settled{extra}"
    why = never(dependency, good, bad)
    return "never" if why else "met", why


def omitted_reason(state: State, batch: BatchState, pos: int) -> str:
    """Why a job was omitted: its own reason if it depends on another job by job, or that of the batch."""
    found = element_reason(state, batch, pos) if batch.elements or batch.graph is not None else None
    return found or batch.omitted_why or "a dependency can never be met"


# ---- PENDING: what the scheduler found -------------------------------------------------------------------------------


def _pending(state: State, batch: BatchState, pos: int, at: At, newest: _Newest) -> str:
    """Why a PENDING job has not started."""
    if state.mode != "serving":
        how = "" if state.mode != "paused" or "user" in state.pauses else f" --as {next(iter(state.pauses), 'user')}"
        return f"the manager is {state.mode}{_pauses(state, at)}: rota resume{how} lets jobs start again"
    shape = state.shapes[batch.shapes[batch.template_of(pos)]]
    ahead = _ahead(state, batch, pos)
    turn = f"; {ahead:,} job{'' if ahead == 1 else 's'} of its shape ahead of it" if ahead else ""
    found = _verdicts(state, shape, at, newest)
    passing = next((verdict for verdict in found if not verdict.lasting), None)
    if passing is not None:
        return f"{limit_reason(state, shape.shape, at) or f'{passing.location}: {passing.detail}'}{turn}"
    if not found:
        return f"waits its turn{turn}"
    if found[0].filter == "policy":
        return found[0].detail
    return "fits nowhere now: " + "; ".join(f"{verdict.location}: {verdict.detail}" for verdict in found[:3])


def _pauses(state: State, at: At) -> str:
    """Whose pauses keep the manager from starting jobs."""
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


def verdicts(state: State, shape: ShapeState, at: At) -> list[Verdict]:
    """What keeps the PENDING jobs of a shape from starting: sites and queues, then nodes, as far as they say no."""
    if (no := out_of_order(state, shape.shape.policy)) is not None:
        return [no]
    limit = limit_reason(state, shape.shape, at)
    said = _queues(state, shape, at, _newest(state))
    found = [*sorted(said, key=lambda verdict: verdict.lasting), *refusals(state, shape, at)]
    return [replace(v, detail=limit) if limit is not None and v.filter == "limits" else v for v in found]


def _verdicts(state: State, shape: ShapeState, at: At, newest: _Newest) -> list[Verdict]:
    """The same in the order in which people want to know: what the nodes that there are say is more than what could be
    asked of sites, unless they never will do.
    """
    if (no := out_of_order(state, shape.shape.policy)) is not None:
        return [no]
    nodes = refusals(state, shape, at)
    hopeless = all(verdict.lasting for verdict in nodes)
    if not hopeless and not any(number == shape.id for _, number in state.soft.weather.refused):
        return nodes
    said = _queues(state, shape, at, newest)
    first = [v for v in said if v.code == "refused" or (hopeless and v.code in ("failing", "starting"))]
    return [*first, *nodes, *(verdict for verdict in said if verdict not in first)]


def _newest(state: State) -> _Newest:
    """The newest allocation of each queue and shape that is on its way, by going through all of them once."""
    return {
        (each.site, each.queue or "", each.shape): (rank, each)
        for rank, each in enumerate(state.allocations.values())
        if each.state.endswith("ING") and len(state.census.of.get(each.id, ())) < each.nodes
    }


def _queues(state: State, shape: ShapeState, at: At, newest: _Newest) -> list[Verdict]:
    """What sites and queues say of a shape now, or what is on its way there."""
    want = Want(shape.id, asked_now(state, shape).asked, 1, 0, 0)
    view = View(
        at.wall, at.mono, "serving", (), state.ledger.view, {}, facts=state.soft.facts, rooms=state.rooms(at.mono)
    )
    policy = state.settings.policies.get(shape.shape.policy, DEFAULT)
    said = {verdict.location: verdict for verdict in queues.verdicts(want, state.soft.queues, view, policy)}
    out = []
    for site, places in state.soft.queues.items():
        before = f"; before, {why}" if (why := state.soft.weather.of(site).why) else ""
        for place in queues.candidates(want.shape.needs, places):
            no = said.get(place.location.id)
            if no is not None and no.filter != "most":
                out.append(no)
                continue
            queue = queues.claim_of(want, place)[1]
            _, live = max(newest.get((site, queue, of), (-1, None)) for of in (shape.id, None))
            if live is not None:
                stopped = f"; {words}" if (words := _stopped(state, live.id)) else ""
                words = f"allocation {live.id} is {live.state}{stopped}{before}"
                no = Verdict(place.location.id, "most", "starting", words, False, (Wake.CAPACITY,), QUEUE)
            elif no is None and state.mode != "serving":
                words = f"the manager is {state.mode}"
                no = Verdict(place.location.id, "status", state.mode, words, False, (Wake.STATUS,), QUEUE)
            if no is not None:
                out.append(no)
    return out


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
            when = f" (in {_duration(wait)})" if wait is not None else ": set another, or remove it (rota limit)"
            return words + when
        if code == "rate":
            wait = rate_wait(state, name, limits[name], at)
        return words if wait is None else f"{words}; next start in {_duration(wait, spaced=True)}"
    return None


def limit_now(state: State, name: str, at: At) -> Limit:
    """A limit with what its window and its rate say at a moment."""
    steady = state.steady(at.wall, at.mono)
    return at_time(state.limits[name], state.starts.get(name), at.wall + at.utc_offset_s, steady)


def window_wait(limit: Limit, at: At) -> float | None:
    """Seconds until the window of a limit opens; None: it is open, or never opens."""
    if limit.window is None or limit.closed is None:
        return None
    local = at.wall + at.utc_offset_s
    opens = limit.window.opens(local)
    return None if opens is None else opens - local


def rate_wait(state: State, name: str, limit: Limit, at: At) -> float | None:
    """Seconds until the rate of a limit lets the next job start; None: it lets one start now."""
    if limit.rate is None or name not in state.starts:
        return None
    steady = state.steady(at.wall, at.mono)
    frees = state.starts[name].frees(steady, limit.per_s, limit.rate)
    return None if frees is None else max(0.0, frees - steady)


def _duration(wait: float, spaced: bool = False) -> str:
    """A time to wait in words: seconds below two minutes, else minutes, as nobody needs the seconds of an hour."""
    seconds = math.ceil(wait)
    if seconds < 120:
        return f"{seconds} s" if spaced else f"{seconds}s"
    return format_duration(-(-seconds // 60) * 60)

"""The checker: works out from the witness's accounts whether every promise was kept.

It shares no code with the core.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from operator import attrgetter

from rota.model import events as ev
from rota.model.batch import Dependency
from rota.model.graph import CONDITIONS, MEMBER, Graph
from rota.model.job import Result
from rota.sim.cluster import Site
from rota.sim.witness import Execution, Witness
from rota.sim.workload import Plan, Workload

__all__ = ["check_history", "check_world"]

Job = tuple[int, int]
"""(batch, index)."""
Attempt = tuple[int, int, int]
_SETTLED = ("COMPLETED", "FAILED", "ABORTED", "OMITTED", "REMOVED")
_ENDS = {"complete": "COMPLETED", "fail": "FAILED", "abort": "ABORTED", "omit": "OMITTED"}
_FINAL_CODES = (126, 127, 128)
_EVER = float("inf")


@dataclass
class _Books:
    """What the durable facts say of jobs and attempts, worked out without the core."""

    plans: Mapping[int, Plan]
    indices: dict[int, list[int]] = field(default_factory=dict)
    attempts: dict[Job, int] = field(default_factory=dict)
    leased: dict[Attempt, tuple[float, str]] = field(default_factory=dict)
    period: dict[Attempt, int] = field(default_factory=dict)
    """How often the job had been reopened when the attempt was leased."""
    closed: dict[Attempt, tuple[float, str]] = field(default_factory=dict)
    """Attempt → (time, `reported`, `driver`, or `allowed`: given up on the user's word)."""
    status: dict[Job, str] = field(default_factory=dict)
    kills: dict[Job, list[tuple[float, int, int]]] = field(default_factory=dict)
    """Job → (time, newest attempt, how often it had been reopened) of each kill."""
    reopened: dict[Job, int] = field(default_factory=dict)
    released: dict[tuple[str, int, int, int], float] = field(default_factory=dict)
    """(runner, batch, index, attempt) → when a part was given up on the user's word."""
    held: dict[Job, list[tuple[float, float]]] = field(default_factory=dict)
    stopped: set[Attempt] = field(default_factory=set)
    """Attempts that were to be stopped for a hold, or whose host was to blame: their failure does not count."""
    problems: list[str] = field(default_factory=list)
    decided: dict[tuple[int, str], int] = field(default_factory=dict)
    """(batch, what of it waits) → the newest batch when it was first known that its jobs may run, or never will."""
    links: dict[Job, list[Dependency]] = field(default_factory=dict)
    """What a job waits for of its own: 7.12, 7@name (those jobs of batch 7), %@name and %7 (outside of its batch)."""
    members: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    """(batch, name) → jobs of that batch that have this name."""
    newest: dict[str, int] = field(default_factory=dict)
    """Name → the number of the fact that made the newest batch of it."""
    leased_at: dict[Job, int] = field(default_factory=dict)
    """Job → the number of the fact of its last lease."""
    names: dict[int, str] = field(default_factory=dict)
    after: dict[int, tuple[Dependency, ...]] = field(default_factory=dict)
    at_once: dict[int, list[tuple[float, int | None]]] = field(default_factory=dict)
    """Batch → (time, how many at a time from then on)."""
    scouts: dict[int, int] = field(default_factory=dict)
    """Batch → how many of its jobs the others wait for."""
    waits_since: dict[int, int] = field(default_factory=dict)
    """Batch → the number of the fact that last changed its dependencies."""

    def waits(self, job: Job) -> list[Dependency]:
        """All that a job waits for."""
        return [*self.after[job[0]], *self.links.get(job, ())]

    def template(self, job: Job) -> int:
        """The number of a job's template."""
        return self.plans[job[0]].template_of_position[self.indices[job[0]].index(job[1])]


def check_world(
    witness: Witness, workload: Workload, sites: Mapping[str, Site], final: Mapping[Job, str], settled: bool
) -> list[str]:
    """Every promise that was broken, in words; empty if none was."""
    books = _read(witness, workload)
    problems = list(books.problems)
    if not settled:
        stuck = [f"{batch}.{index} {state}" for (batch, index), state in final.items() if state not in _SETTLED]
        problems.append(
            f"lost: {len(stuck)} jobs did not settle: {', '.join(stuck[:5])}; {workload.open_questions} unanswered"
        )
    problems.extend(_submissions(books, witness, final))
    problems.extend(_attempts(books, witness, settled))
    problems.extend(_overlaps(books, witness))
    problems.extend(_ranks(books, witness, settled))
    problems.extend(_capacity(books, witness, sites))
    problems.extend(_limits(books, witness, workload))
    problems.extend(_timed_limits(books, witness))
    problems.extend(_retries(books, witness, final, settled))
    problems.extend(_outcomes(books, witness, final, settled))
    problems.extend(_commands(books, witness, final))
    if settled:
        problems.extend(_dependents(books, final))
    return problems


def check_history(witness: Witness, results: Sequence[Result], position: Callable[[int, int], int]) -> Iterator[str]:
    """Every attempt that ran and is closed is in the history, under the runner where it ran."""
    kept = {(result.batch, result.pos, result.attempt): result for result in results}
    closed: dict[tuple[int, int], int] = {}
    for _, event in witness.facts:
        if isinstance(event, ev.Ended):
            for batch, pos, *_ in event.rows:
                closed[batch, pos] = closed.get((batch, pos), 0) + 1
    for execution in witness.executions:
        pos = position(execution.batch, execution.index)
        if execution.attempt > closed.get((execution.batch, pos), 0):
            continue
        result = kept.get((execution.batch, pos, execution.attempt))
        if result is None:
            yield f"history: attempt {(*execution.job, execution.attempt)} ran on {execution.runner} and is not there"
        elif result.runner != execution.runner:
            yield f"history: {(*execution.job, execution.attempt)} ran on {execution.runner}, not {result.runner}"


# -- reading the facts


def _read(witness: Witness, workload: Workload) -> _Books:
    books = _Books(workload.by_batch)
    for place, (time, event) in enumerate(witness.facts):
        if isinstance(event, ev.Submitted):
            books.newest[event.spec.name] = place
            books.names[event.batch], books.after[event.batch] = event.spec.name, event.spec.after
            books.at_once[event.batch] = [(time, event.spec.at_once)]
            books.scouts[event.batch] = event.spec.scouts if event.spec.scouts < event.spec.count else 0
            indices = books.indices[event.batch] = workload.by_batch[event.batch].indices()
            for index in indices:
                books.status[event.batch, index] = "live"
                books.attempts[event.batch, index] = 0
            if event.graph is not None:
                _read_graph(books, place, event.batch, event.graph)
            if event.ready:
                _decided(books, event.batch, [0, event.spec.count])
        elif isinstance(event, ev.Leased):
            for job in _jobs(books, event.batch, event.spans):
                books.problems.extend(_may_lease(books, job, time))
                books.problems.extend(_is_whole(books, job, event))
                books.leased_at[job] = place
                books.attempts[job] += 1
                attempt = (*job, books.attempts[job])
                books.leased[attempt] = (time, event.runner)
                books.period[attempt] = books.reopened.get(job, 0)
        elif isinstance(event, ev.Ended):
            _read_ended(books, time, event)
        elif isinstance(event, ev.Moved):
            if event.verb == "omit":
                books.problems.extend(_may_omit(books, event.batch, event.spans, time))
            if event.verb in ("omit", "ready"):
                _decided(books, event.batch, event.spans)
            if books.scouts[event.batch]:
                books.problems.extend(_scouted(books, event, time))
            for job in _jobs(books, event.batch, event.spans):
                _read_moved(books, time, event.verb, job)
        elif isinstance(event, ev.HoldWanted):
            attempts = {(*job, books.attempts[job]) for job in _jobs(books, event.batch, event.spans)}
            books.stopped -= attempts
            if event.stop and event.wanted:
                books.stopped |= attempts
        elif isinstance(event, ev.Released):
            if (event.reason or "").startswith(("confirmed dead", "rerunnable")):
                for number, pos, tried in event.rows:
                    books.released[event.runner, number, books.indices[number][pos], tried] = time
        elif isinstance(event, ev.Respecified):
            _respecified(books, place, time, event)
        elif isinstance(event, ev.Removed):
            for job in _jobs(books, event.batch, event.spans):
                books.status[job] = "REMOVED"
                _unhold(books, time, job)
    return books


def _read_graph(books: _Books, place: int, batch: int, graph: Graph) -> None:
    indices = books.indices[batch]
    first = len(indices) + len(graph.names)
    words = [f"{batch}.{index}" for index in indices] + [f"{batch}@{name}" for name in graph.names]
    offsets, links = graph.columns()
    books.newest.update(dict.fromkeys(graph.names, place))
    for pos, index in enumerate(indices):
        for link in links[offsets[pos] : offsets[pos + 1]]:
            node, bits = link >> 2, link & 3
            if bits == MEMBER:
                books.members.setdefault((batch, graph.names[node - len(indices)]), []).append(index)
                continue
            given = graph.after[node - first] if node >= first else None
            word = words[node] if given is None else f"%{given.target}"
            live, rerun = (False, False) if given is None else (given.live, given.rerun)
            own = books.links.setdefault((batch, index), [])
            own.append(Dependency(word, CONDITIONS[bits], live=live, rerun=rerun))


def _respecified(books: _Books, place: int, time: float, event: ev.Respecified) -> None:
    """A batch has another name, as if it had always had it, or waits for something else."""
    if event.name != books.names[event.batch]:
        books.newest[event.name] = place
    if event.after != books.after[event.batch]:
        books.decided.pop((event.batch, ""), None)
        books.waits_since[event.batch] = place
    books.names[event.batch], books.after[event.batch] = event.name, event.after
    books.at_once[event.batch].append((time, event.at_once))
    if books.scouts[event.batch] and event.scouts is not None:
        books.scouts[event.batch] = event.scouts
    for batch, what in list(books.decided):
        if not _names_mean_something(books, batch, what):
            del books.decided[batch, what]


def _names_mean_something(books: _Books, batch: int, what: str = "") -> bool:
    after = [d for d in books.after[batch] if d.target.startswith("@") and not d.live]
    after = [Dependency(what)] if what else after
    return all(_parents(books, dependency, (batch, 0)) for dependency in after)


def _jobs(books: _Books, batch: int, spans: list[int]) -> Iterator[Job]:
    indices = books.indices[batch]
    for low, high in zip(spans[::2], spans[1::2], strict=True):
        for pos in range(low, high):
            yield batch, indices[pos]


def _scouted(books: _Books, event: ev.Moved, time: float) -> Iterator[str]:
    """No job becomes ready before half of the scouts of its batch have succeeded, or all of them have settled."""
    number = books.scouts[event.batch]
    if event.verb == "hold" and "scouts" in (event.reason or ""):
        books.scouts[event.batch] = 0
    if event.verb != "ready" or event.spans[-1] <= number:
        return
    books.scouts[event.batch] = 0
    status = [books.status[job] for job in _jobs(books, event.batch, [0, number])]
    there = [state for state in status if state != "REMOVED"]
    good = there.count("COMPLETED")
    if 2 * good < len(there) and ("live" in there or good):
        yield f"the rest of batch {event.batch} was ready at {time:.3f} while its scouts were {status}"
    if there and not good and "live" not in there:
        yield f"the rest of batch {event.batch} was ready at {time:.3f} though all its scouts failed"


def _is_whole(books: _Books, job: Job, event: ev.Leased) -> Iterator[str]:
    """A gang is leased on all its nodes at a time; a direct one (TAG.ELEMENT, without a node) has them by itself."""
    nodes = books.plans[job[0]].spec.templates[books.template(job)].needs.nodes
    if len(event.parts) != nodes - 1 and event.runner.count(".") > 1:
        yield f"P6: {job} asks for {nodes} nodes and was leased on {len(event.parts) + 1}, by {event.runner}"


def _read_ended(books: _Books, time: float, event: ev.Ended) -> None:
    for batch, pos, verb, _, _ in event.rows:
        job = (batch, books.indices[batch][pos])
        attempt = (*job, books.attempts[job])
        how = "reported"
        if event.counts_as == "loss":
            rerunnable = books.plans[batch].spec.templates[books.template(job)].rerunnable
            why = event.reason or ""
            allowed = why.startswith("confirmed dead") or (rerunnable and why.startswith("rerunnable"))
            how = "allowed" if allowed else "driver"
        if attempt in books.closed:
            books.problems.append(f"attempt {attempt} was closed twice")
        books.closed[attempt] = (time, how)
        if event.counts_as == "nothing" and verb == "requeue":
            books.stopped.add(attempt)
        if verb in _ENDS:
            books.status[job] = _ENDS[verb]


def _read_moved(books: _Books, time: float, verb: str, job: Job) -> None:
    if verb in _ENDS:
        books.status[job] = _ENDS[verb]
    if verb in ("kill", "abort"):
        books.kills.setdefault(job, []).append((time, books.attempts[job], books.reopened.get(job, 0)))
    elif verb == "reopen":
        books.status[job] = "live"
        books.reopened[job] = books.reopened.get(job, 0) + 1
    elif verb == "hold":
        books.held.setdefault(job, []).append((time, _EVER))
    if verb in ("release", "abort", "omit"):
        _unhold(books, time, job)


def _unhold(books: _Books, time: float, job: Job) -> None:
    spans = books.held.get(job)
    if spans and spans[-1][1] == _EVER:
        spans[-1] = (spans[-1][0], time)


def _may_lease(books: _Books, job: Job, time: float) -> Iterator[str]:
    """A job is given out only when it has no live attempt, is not settled, and its dependencies are met."""
    newest = (*job, books.attempts[job])
    if newest[2] and newest not in books.closed:
        yield f"job {job} was leased at {time:.3f} while attempt {newest[2]} was open"
    if books.status[job] != "live":
        yield f"job {job} was leased at {time:.3f} while {books.status[job]}"
    for dependency in books.waits(job):
        stands = _stands(books, dependency, job)
        if stands != "met":
            yield f"job {job} was leased at {time:.3f} though {dependency} was {stands}"


def _may_omit(books: _Books, batch: int, spans: list[int], time: float) -> Iterator[str]:
    """A job is omitted only when one of its dependencies can never be met."""
    for job in _jobs(books, batch, spans):
        if not any(_stands(books, dependency, job) == "never" for dependency in books.waits(job)):
            yield f"job {job} was omitted at {time:.3f} though nothing forbids it"


def _decided(books: _Books, batch: int, spans: list[int]) -> None:
    """Fix what the names that a batch depends on mean, once each means some batch."""
    named = [d.target for job in _jobs(books, batch, spans) for d in books.links.get(job, ()) if not d.live]
    for what in ("", *(target for target in named if target.startswith("%@"))):
        if (batch, what) not in books.decided and _names_mean_something(books, batch, what):
            books.decided[batch, what] = max(books.indices)


def _stands(books: _Books, dependency: Dependency, job: Job) -> str:
    """Whether a dependency of a job is met, open, or never to be met."""
    parents = [books.status[parent] for parent in _parents(books, dependency, job)]
    if not parents or "live" in parents:
        return "open"
    good = all(status in ("COMPLETED", "REMOVED") for status in parents)
    wanted = {"success": good, "any": True, "failure": not good}[dependency.condition]
    return "met" if wanted else "never"


def _parents(books: _Books, dependency: Dependency, job: Job) -> list[Job]:
    """The jobs that a dependency has a job wait for."""
    target, dependent = dependency.target.removeprefix("%"), job[0]
    number, at, name = target.partition("@")
    if number and at:
        return [(int(number), index) for index in books.members[int(number), name]]
    if at:
        named = [number for number in books.indices if books.names[number] == name or (number, name) in books.members]
        has = [number for number in named if number != dependent]
        if not dependency.live:
            key = (dependent, dependency.target if dependency.target[0] == "%" else "")
            last = books.decided.get(key, max(books.indices))
            has = [n for n in has if n < dependent] or [n for n in has if n <= last]
        whole = [n for n in has if books.names[n] == name]
        out = [(number, index) for number in whole for index in books.indices[number]]
        return out + [(n, index) for n in has if n not in whole for index in books.members[n, name]]
    number, _, rest = target.partition(".")
    batch = int(number)
    if dependency.each:
        return [(batch, job[1])]
    if not rest:
        return [(batch, index) for index in books.indices[batch]]
    first, _, last_index = rest.partition("-")
    return [(batch, index) for index in books.indices[batch] if int(first) <= index <= int(last_index or first)]


# -- the promises


def _submissions(books: _Books, witness: Witness, final: Mapping[Job, str]) -> Iterator[str]:
    for key, batch in witness.acked.items():
        if batch not in books.plans or books.plans[batch].key != key:
            yield f"P1: batch {batch} was acknowledged for {key} and is not there"
        elif any((batch, index) not in final for index in books.indices[batch]):
            yield f"P2: jobs of batch {batch} are not known any more"


def _end(books: _Books, execution: Execution) -> float:
    """When an execution ends as far as the promises go: also when it is given up on the user's word."""
    end = _EVER if execution.end is None else execution.end
    closed = books.closed.get((*execution.job, execution.attempt))
    return min(end, closed[0]) if closed is not None and closed[1] == "allowed" else end


def _attempts(books: _Books, witness: Witness, settled: bool) -> Iterator[str]:
    seen: set[Attempt] = set()
    newest: dict[Job, int] = {}
    for execution in witness.executions:
        attempt = (*execution.job, execution.attempt)
        if attempt in seen:
            yield f"P3: attempt {attempt} was executed twice"
        seen.add(attempt)
        if attempt not in books.leased or books.leased[attempt][0] > execution.start:
            yield f"P3: attempt {attempt} ran without a durable lease"
        elif books.leased[attempt][1] != execution.runner:
            yield f"P3: attempt {attempt} was leased to {books.leased[attempt][1]} and ran on {execution.runner}"
        closed = books.closed.get(attempt)
        if closed is not None and closed[0] < execution.start:
            yield f"P3: attempt {attempt} started at {execution.start:.3f}, closed at {closed[0]:.3f} ({closed[1]})"
        if execution.attempt <= newest.get(execution.job, 0):
            yield f"P3: attempt {attempt} started after attempt {newest[execution.job]}"
        newest[execution.job] = execution.attempt
        if settled and execution.end is None and (closed is None or closed[1] != "allowed"):
            yield f"P3: attempt {attempt} still runs though all is settled"


def _overlaps(books: _Books, witness: Witness) -> Iterator[str]:
    by_job: dict[Job, list[Execution]] = {}
    for execution in witness.executions:
        by_job.setdefault(execution.job, []).append(execution)
    for job, executions in by_job.items():
        for one, other in pairwise(executions):
            if other.start < _end(books, one):
                yield f"P4: attempts {one.attempt} and {other.attempt} of {job} both ran at {other.start:.3f}"


def _ranks(books: _Books, witness: Witness, settled: bool) -> Iterator[str]:
    """Nothing of an older attempt of a gang is left, on any node, when a newer one starts."""
    by_job: dict[Job, list[Execution]] = {}
    for execution in witness.executions:
        by_job.setdefault(execution.job, []).append(execution)
    for rank in witness.ranks:
        attempt = (*rank.job, rank.attempt)
        end = min(_EVER if rank.end is None else rank.end, books.released.get((rank.runner, *attempt), _EVER))
        if settled and end == _EVER:
            yield f"P3: a rank of {attempt} still runs on {rank.runner} though all is settled"
        for other in by_job.get(rank.job, ()):
            if other.attempt > rank.attempt and other.start < end:
                yield f"P4: a rank of {attempt} ran on {rank.runner} when attempt {other.attempt} started"
        closed = books.closed.get(attempt)
        if closed is not None and closed[1] != "allowed" and rank.start > closed[0]:
            yield f"P3: a rank of {attempt} started on {rank.runner} after the attempt was closed"


def _most(
    books: _Books, executions: list[Execution], weigh: Callable[[Execution], int]
) -> tuple[int, float, list[Execution]]:
    """(the greatest load at a time, when it was, which executions made it)."""
    moves: list[tuple[float, int, int, Execution]] = []
    for number, execution in enumerate(executions):
        end = _end(books, execution)
        if end > execution.start:
            moves.append((execution.start, 1, number, execution))
            moves.append((end, 0, number, execution))
    moves.sort(key=lambda row: row[:3])
    running: dict[int, Execution] = {}
    load = most = 0
    worst: tuple[float, list[Execution]] = (0.0, [])
    for time, kind, number, execution in moves:
        if kind:
            running[number] = execution
            load += weigh(execution)
            if load > most:
                most, worst = load, (time, list(running.values()))
        else:
            del running[number]
            load -= weigh(execution)
    return most, worst[0], worst[1]


def _capacity(books: _Books, witness: Witness, sites: Mapping[str, Site]) -> Iterator[str]:
    places: dict[str, list[Execution]] = {}
    for rank in witness.ranks:
        places.setdefault(rank.runner, []).append(rank)
    for execution in witness.executions:
        places.setdefault(execution.runner, []).append(execution)
        if sites[execution.site].most == 1 and sites[execution.site].kind != "nodes":
            places.setdefault(f"site {execution.site}", []).append(execution)
        needs = books.plans[execution.batch].spec.templates[books.template(execution.job)].needs
        if not needs.cores <= execution.cores <= max(needs.cores, needs.cores_most):
            yield f"job {execution.job} asked for {needs.cores}-{needs.cores_most} and got {execution.cores}"
    for place, executions in places.items():
        node = sites[executions[0].site].node
        for part, has in (("cores", node.cores), ("memory", node.memory)):
            most, time, who = _most(books, executions, attrgetter(part))
            if most > has:
                jobs = [(*each.job, each.attempt) for each in who]
                yield f"P5: {place} has {has} and ran {most} at {time:.3f}: {jobs}"


def _limits(books: _Books, witness: Witness, workload: Workload) -> Iterator[str]:
    groups: dict[str, list[Execution]] = {}
    for execution in witness.executions:
        plan = books.plans[execution.batch]
        for name in plan.spec.templates[books.template(execution.job)].limits:
            groups.setdefault(name, []).append(execution)
        if any(most is not None for _, most in books.at_once[execution.batch]):
            groups.setdefault(f"#{execution.batch}", []).append(execution)
    for name, executions in groups.items():
        most, time, who = _most(books, executions, lambda _: 1)
        since = min((books.leased[(*each.job, each.attempt)][0] for each in who), default=0.0)
        own = name.startswith("#")
        history = books.at_once[executions[0].batch] if own else workload.limit_history.get(name, [])
        allowed = _allowed(history, since, time)
        if most > allowed:
            jobs = [(*each.job, each.attempt) for each in who]
            yield f"P5: limit {name} is {allowed}, {most} ran at {time:.3f}: {jobs}"


def _timed_limits(books: _Books, witness: Witness) -> Iterator[str]:
    """No start in a closed window, nor more in any period than its rate, as the manager's clocks had it."""
    rules: dict[str, ev.LimitSet] = {}
    starts: dict[str, list[tuple[float, int]]] = {}
    for (_, event), local in zip(witness.facts, witness.local, strict=True):
        if isinstance(event, ev.LimitSet):
            old = rules.get(event.name)
            rules[event.name] = event
            if old is None or old.per_s != event.per_s:  # what was started before is no longer counted
                starts[event.name] = []
        elif isinstance(event, ev.Leased):
            first = next(_jobs(books, event.batch, event.spans))
            count = sum(event.spans[1::2]) - sum(event.spans[::2])
            for name in books.plans[event.batch].spec.templates[books.template(first)].limits:
                rule = rules.get(name, ev.LimitSet(name, None, window=name if "<" in name else None))
                if rule.window is not None and not _is_open(rule.window, local):
                    yield f"P5: job {first} was leased at local time {local:.3f}, outside {name} ({rule.window})"
                if rule.rate is not None:
                    yield from _rate(rule, starts.setdefault(name, []), event.at, count, first)


def _rate(rule: ev.LimitSet, starts: list[tuple[float, int]], at: float | None, count: int, job: Job) -> Iterator[str]:
    if at is None:
        yield f"P5: the start of {job} was not counted by {rule.name}"
        return
    starts.append((at, count))
    most = sum(count for time, count in starts if time > at - rule.per_s + 1e-5)
    if most > (rule.rate or 0):
        yield f"P5: limit {rule.name} is {rule.rate} in {rule.per_s} s, {most} started up to {at:.6f}: {job}"


def _is_open(window: str, local: float) -> bool:
    """Whether a window, written as in `22:00:00<time<06:00:00`, is open."""
    now = datetime.fromtimestamp(local, UTC).isoformat(" ")
    words = ["", *window.split("<")] if window.startswith(("time", "datetime")) else [*window.split("<"), ""]
    low, kind, high = words[:3]
    now = now if kind == "datetime" else now[11:]
    if low and high and low > high:
        return now >= low or now < high
    return (not low or now >= low) and (not high or now < high)


def _allowed(history: list[tuple[float, int | None]], since: float, until: float) -> float:
    """The greatest value that the limit had in this time."""
    now: float = _EVER
    best: float = 0
    for time, count in history:
        if time > since:
            best = max(best, now)
        if time > until:
            return best
        now = _EVER if count is None else count
    return max(best, now)


def _retries(books: _Books, witness: Witness, final: Mapping[Job, str], settled: bool) -> Iterator[str]:
    failures: dict[tuple[Job, int], int] = {}
    over: set[tuple[Job, int]] = set()
    for execution in witness.executions:
        attempt = (*execution.job, execution.attempt)
        if attempt not in books.leased:
            continue
        period = (execution.job, books.period[attempt])
        if period in over:
            yield f"job {execution.job} ran again after an exit code that is final"
        if execution.end is None or execution.exit_code == 0 or execution.stopped or attempt in books.stopped:
            continue
        if books.closed.get(attempt, (0.0, ""))[1] != "reported":
            continue
        failures[period] = failures.get(period, 0) + 1
        if execution.exit_code in _FINAL_CODES:
            over.add(period)
    for (job, number), count in failures.items():
        allowed = books.plans[job[0]].spec.templates[books.template(job)].retries + 1
        if count > allowed:
            yield f"job {job} failed {count} times in period {number}, {allowed} attempts are allowed"
    if not settled:
        return
    for job, state in final.items():
        period = (job, books.reopened.get(job, 0))
        how = books.closed.get((*job, books.attempts[job]), (0.0, ""))[1]
        if state == "FAILED" and how == "reported" and period not in over:
            allowed = books.plans[job[0]].spec.templates[books.template(job)].retries + 1
            if failures.get(period, 0) < allowed:
                yield f"job {job} is FAILED after {failures.get(period, 0)} failures, {allowed} attempts are allowed"


def _outcomes(books: _Books, witness: Witness, final: Mapping[Job, str], settled: bool) -> Iterator[str]:
    last = {execution.job: execution for execution in witness.executions}
    for job, state in final.items():
        if state != books.status[job] and (state in _SETTLED or books.status[job] != "live"):
            yield f"job {job} is {state}, the facts say {books.status[job]}"
        execution = last.get(job)
        ended_well = execution is not None and execution.exit_code == 0 and execution.attempt == books.attempts[job]
        if state == "COMPLETED" and not ended_well:
            yield f"job {job} is COMPLETED, but its last attempt {books.attempts[job]} did not exit with 0: {execution}"
        if settled and ended_well and state not in ("COMPLETED", "REMOVED"):
            closed = books.closed.get((*job, books.attempts[job]))
            again = books.reopened.get(job, 0) > books.period.get((*job, books.attempts[job]), 0)
            if closed is None or (closed[1] == "reported" and not again):
                yield f"job {job} is {state}, but its last attempt exited with 0: {execution}"


def _dependents(books: _Books, final: Mapping[Job, str]) -> Iterator[str]:
    """In the end omitted jobs still could not run, and jobs that run again for a new batch of a name have done so."""
    for job, state in final.items():
        after = books.waits(job)
        if state == "OMITTED" and not any(
            _stands(books, dependency, job) == "never"
            or any(final[parent] == "REMOVED" for parent in _parents(books, dependency, job))
            for dependency in after
        ):
            yield f"job {job} is OMITTED though its dependencies are met"
        if state == "COMPLETED" and job not in books.kills:
            since = max(books.leased_at[job], books.waits_since.get(job[0], 0))
            for dependency in after:
                if dependency.rerun and books.newest.get(dependency.target.lstrip("%@"), -1) > since:
                    yield f"job {job} did not run again after the newest batch of {dependency.target}"


def _commands(books: _Books, witness: Witness, final: Mapping[Job, str]) -> Iterator[str]:
    for execution in witness.executions:
        period = books.period.get((*execution.job, execution.attempt), 0)
        for time, attempt, then in books.kills.get(execution.job, ()):
            if execution.attempt > attempt and period == then:
                yield (
                    f"job {execution.job} was killed at {time:.3f} "
                    f"and attempt {execution.attempt} started at {execution.start:.3f}"
                )
        for low, high in books.held.get(execution.job, ()):
            if execution.start < high and _end(books, execution) > low:
                yield f"job {execution.job} was HOLDING from {low:.3f} to {high:.3f} and ran from {execution.start:.3f}"
    for job, kills in books.kills.items():
        time, _, period = kills[-1]
        if period == books.reopened.get(job, 0) and final[job] not in ("ABORTED", "COMPLETED", "REMOVED", "KILLING"):
            yield f"job {job} was killed at {time:.3f} and is {final[job]}"

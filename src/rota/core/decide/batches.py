"""What clients change about whole batches: names, dependencies, when they begin, bounds, and what runs at the end.

A batch that is renamed counts as if it had had its new name from the beginning. What waits, is ready or was omitted is
looked at again, of these batches and of those that wait for one of the names; what is leased goes on.
"""

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import UNSET

from rota.core.decide.dependency_checks import SHOWN, check_circle, plain_dependencies
from rota.core.decide.reopening import Again
from rota.core.dependencies.meaning import dependents, waits_of
from rota.core.graph import Gate
from rota.core.graph import spans as spans_at
from rota.core.selection import select, states_pattern
from rota.core.spans import spans_of
from rota.core.state import BatchState, State
from rota.core.stimuli import ChangeJobs
from rota.model import events as ev
from rota.model.batch import MAX_NAME, BatchSpec, Dependency, Template
from rota.model.errors import RefusedError, UsageError
from rota.model.needs import Needs
from rota.model.patch import BatchPatch, respecified
from rota.model.tables import ABORTED, ACTIVE, COMPLETED, FAILED, OMITTED, PENDING, QUEUED, REMOVED, STARTING, WAITING

__all__ = ["check_reopened", "respecify"]


class _Plan:
    """What a change of whole batches would do."""

    def __init__(self, batches: list[BatchState]) -> None:
        self.batches = batches
        self.events: list[ev.Event] = []
        self.reconsider: set[int] = set()
        self.warnings: list[str] = []
        self.concerns: re.Pattern[bytes] = states_pattern(range(REMOVED))
        """Matches the states of jobs to which the change makes a difference."""
        self.left_alone: list[tuple[str, tuple[int, ...]]] = []
        """(reason, states) of jobs to which it makes none."""


def respecify(state: State, stimulus: ChangeJobs, patch: BatchPatch) -> _Plan:
    """Decide what a modify of whole batches does, or refuse it."""
    plan = _Plan(_whole(state, stimulus))
    by = f"changed by {stimulus.by}"
    specs = {batch.id: _changed(state, batch, patch, plan.warnings) for batch in plan.batches}
    specs = {number: spec for number, spec in specs.items() if spec != state.batches[number].spec}
    for batch in plan.batches if patch.scouts is not UNSET else ():
        if specs.get(batch.id, batch.spec).scouts and not batch.scouting:
            raise UsageError(f"--scouts: the jobs of batch {batch.id} wait for none any more: add it anew, or give off")
    for number, spec in specs.items():
        what = (spec.name, spec.after, spec.not_before, spec.at_once, spec.max_failures)
        plan.events.append(ev.Respecified(number, *what, by, spec.scouts))
    again = Again(state, rerun=any(spec.name != state.batches[number].spec.name for number, spec in specs.items()))
    _look_again(state, plan, again, specs, by, stimulus.at.wall)
    if patch.on_batch_end is not UNSET:
        for batch in plan.batches:
            _end(state, stimulus, batch, specs.get(batch.id, batch.spec), patch.on_batch_end, plan, again)
    again.spread()
    plan.events.extend(again.events)
    plan.reconsider |= again.reconsider
    if patch.not_before is not UNSET and (patch.not_before is None or patch.not_before <= stimulus.at.wall):
        for batch in plan.batches:
            if soon := spans_at(sorted(pos for pos in batch.until if batch.states[pos] == WAITING)):
                plan.events.append(ev.Hastened(batch.id, soon, by))
    if patch.max_failures is not UNSET:
        for batch in plan.batches:
            _brake(batch, specs.get(batch.id, batch.spec), plan)
    if len(plan.warnings) > SHOWN:
        plan.warnings[SHOWN:] = [f"and {len(plan.warnings) - SHOWN:,} more warnings"]
    if patch.after or patch.after_drop or patch.after_none or patch.not_before is not UNSET:
        plan.concerns = states_pattern((*QUEUED, OMITTED))
        plan.left_alone = [
            ("runs already, or was given to a runner: it goes on as it is", ACTIVE),
            ("is settled: it waits for nothing", (COMPLETED, FAILED, ABORTED)),
        ]
    return plan


def check_reopened(state: State, events: Iterable[ev.Event]) -> None:
    """Refuse to reopen batches that would then wait for each other: they could be added while one was settled."""
    reopened = frozenset(event.batch for event in events if isinstance(event, ev.Moved) and event.verb == "reopen")
    _Then(state, {}, reopened).check_circles(reopened)


def _whole(state: State, stimulus: ChangeJobs) -> list[BatchState]:
    """The selected batches; refuses a selector that means only a part of one."""
    selector, batches = stimulus.selector, set[int]()
    for batch, low, high in select(state, selector):
        if selector.states or low > 0 or high < batch.count:
            raise UsageError(
                f"only a part of batch {batch.id} is selected, but its name, what it waits for, when it begins, its "
                f"bounds and what runs at its end belong to all of it: give {batch.id}, and change these by themselves"
            )
        batches.add(batch.id)
    return [state.batches[number] for number in sorted(batches)]


def _changed(state: State, batch: BatchState, patch: BatchPatch, warnings: list[str]) -> BatchSpec:
    """The specification of a batch with the changes; refuses those that come too late."""
    waits = patch.after or patch.after_drop or patch.after_none
    if waits and not batch.unsettled and not batch.counts[OMITTED]:
        raise RefusedError(
            f"batch {batch.id} is settled: it can be renamed, but what it waits for cannot be changed any more"
        )
    if patch.after:
        name = batch.spec.name if patch.name is UNSET else patch.name
        asked = msgspec.structs.replace(batch.spec, name=name, after=patch.after, require_known=patch.require_known)
        asked.check()
        own = (name, *(batch.graph.groups if batch.graph is not None else ()))
        after, new_warnings = plain_dependencies(state, asked, own)
        patch = msgspec.structs.replace(patch, after=after)
        warnings.extend(warning for warning in new_warnings if warning not in warnings)
    return respecified(batch.id, batch.spec, patch)


# ---- which batches are concerned -------------------------------------------------------------------------------------


def _look_again(state: State, plan: _Plan, again: Again, specs: dict[int, BatchSpec], by: str, wall: float) -> None:
    """Have every batch looked at again whose dependencies mean something else after the change; refuse circles."""
    then = _Then(state, specs)
    renames = {number: spec for number, spec in specs.items() if spec.name != state.batches[number].spec.name}
    concerned = {number for number, spec in specs.items() if spec.after != state.batches[number].spec.after}
    for number in sorted(concerned):
        again.look_again(state.batches[number], by)
    unknown: dict[int, str] = {}
    for number, spec in renames.items():
        for name, is_new in ((state.batches[number].spec.name, False), (spec.name, True)):
            for waiter in then.waiters(number, name):
                concerned.add(waiter.id)
                again.look_again(waiter, f"batch {number} was renamed", name=name if is_new else None)
                if not is_new and waiter.unsettled and then.means_nothing(waiter, name):
                    unknown[waiter.id] = name
    plan.warnings.extend(
        f"nothing is named '{name}' any more: batch {number} waits until something is"
        for number, name in sorted(unknown.items())
    )
    then.check_circles({*concerned, *renames})
    for number, spec in specs.items():
        batch = state.batches[number]
        if spec.not_before != batch.spec.not_before and spec.not_before is not None and spec.not_before > wall:
            again.look_again(batch, by, omitted=False)


class _Then:
    """Names and dependencies of all batches as they will be after the change, and so who will wait for whom."""

    def __init__(self, state: State, specs: dict[int, BatchSpec], reopened: frozenset[int] | None = None) -> None:
        self._state = state
        self._specs = specs
        self._reopened = reopened
        """Batches that are reopened: every other settled batch waits for nothing. None: settled batches wait too."""
        self._names: dict[str, list[int]] = {}
        self._done: dict[str, int] = {}
        """Name → how many of its batches, from the first, are known to lead to no circle."""
        for number, spec in specs.items():
            old = state.batches[number].spec.name
            for name in {old, spec.name} - {""} if old != spec.name else ():
                numbers = self._names.setdefault(name, list(state.names.get(name, ())))
                graph = state.batches[number].graph
                if graph is not None and name in graph.groups:
                    continue  # jobs of it have the name, whatever the batch is called
                numbers.remove(number) if name == old else insort(numbers, number)

    def _spec(self, batch: BatchState) -> BatchSpec:
        return self._specs.get(batch.id, batch.spec)

    def _numbers(self, name: str) -> list[int]:
        return self._names[name] if name in self._names else self._state.names.get(name, [])

    def waiters(self, number: int, name: str) -> list[BatchState]:
        """Batches to which a name means something else when this batch gets or loses it."""
        out = []
        for waiter in (self._state.batches.get(n) for n in sorted(self._state.waiters.get(f"@{name}", ()))):
            if waiter is not None:
                live = any(d.live and d.target[1:] == name for d in waiter.needed)
                both = (self._state.names.get(name, ()), self._numbers(name))
                if live or number < waiter.id or not all(bisect_left(numbers, waiter.id) for numbers in both):
                    out.append(waiter)
        return out

    def means_nothing(self, batch: BatchState, name: str) -> bool:
        """Whether a batch will wait for something of this name to be added."""
        return any(d.target == f"@{name}" and not self._end(batch, d) for d in self._after(batch))

    def _after(self, waits: BatchState | Gate) -> tuple[Dependency, ...]:
        return self._spec(waits).after if isinstance(waits, BatchState) else waits.after

    def _end(self, waits: BatchState | Gate, dependency: Dependency) -> int:
        """How many batches of a name, from the first, a dependency of a batch or gate on it will mean."""
        numbers = self._numbers(dependency.target[1:])
        if dependency.live:
            return len(numbers)
        earlier = bisect_left(numbers, waits.id)
        return earlier or bisect_right(numbers, self._known_until(waits) or self._state.next_batch)

    def _known_until(self, waits: BatchState | Gate) -> int:
        """`known_until` after the change: 0 if its dependencies change, or a name that they mean is lost."""
        known, after = waits.known_until, self._after(waits)
        if known and after == waits.after:
            names = [self._numbers(d.target[1:]) for d in after if d.target.startswith("@") and not d.live]
            if all(bisect_left(numbers, waits.id) or bisect_right(numbers, known) for numbers in names):
                return known
        return 0

    def _waits_for(self, batch: BatchState) -> Iterator[int]:
        if self._reopened is not None and batch.id not in self._reopened and not batch.unsettled:
            return
        for waits in waits_of(batch):
            for dependency in self._after(waits):
                if dependency.target.startswith("@"):
                    name, end = dependency.target[1:], self._end(waits, dependency)
                    for at in range(self._done.get(name, 0), end):
                        yield self._numbers(name)[at]
                        if at == self._done.get(name, 0):
                            self._done[name] = at + 1
                else:
                    yield int(dependency.target.partition(".")[0])
        for number, _ in batch.graph.given.jobs if batch.graph is not None else ():
            yield number

    def check_circles(self, sources: Iterable[int]) -> None:
        """Refuse if one of these batches would wait for itself, however many are between."""
        state, done, wanted = self._state, set[int](), set(sources)
        for source in sorted(wanted):
            if source in done:
                continue
            ways = {source: self._waits_for(state.batches[source])}
            while ways:
                number = next(reversed(ways))
                further = next(ways[number], None)
                if further is None:
                    del ways[number]
                    done.add(number)
                elif further in ways:
                    path = list(ways)
                    path = path[path.index(further) :]
                    if not wanted.isdisjoint(path):
                        raise UsageError(f"{self._circle(path)}: nothing was changed")
                elif further not in done and further in state.batches:
                    ways[further] = self._waits_for(state.batches[further])

    def _circle(self, path: list[int]) -> str:
        words = []
        for number in (*path, path[0]):
            name = self._spec(self._state.batches[number]).name
            words.append(f"batch {number} ({name})" if name else f"batch {number}")
        if len(path) == 1:
            return f"{words[0]} would wait for itself"
        if len(words) > SHOWN:
            words[SHOWN // 2 : -SHOWN // 2] = ["…"]
        return f"this would wait for itself and never run: {' → '.join(words)}"


# ---- failures, and the end ------------------------------------------------------------------------------------------


def _brake(batch: BatchState, spec: BatchSpec, plan: _Plan) -> None:
    """Hold the rest of a batch at once if more jobs have failed already than the new bound allows."""
    failed, most = batch.counts[FAILED], spec.max_failures
    if most is None or not 0 < most <= failed:
        return
    why = f"{failed} of its jobs failed"
    queued = spans_of(batch, states_pattern((WAITING, PENDING)))
    leased = spans_of(batch, states_pattern((STARTING,)))
    if queued:
        plan.events.append(ev.Moved(batch.id, "hold", queued, why))
    if leased:
        plan.events.append(ev.HoldWanted(batch.id, leased, reason=why))
    if queued or leased:
        plan.warnings.append(f"{failed} jobs of batch {batch.id} have failed already: what did not start is held")


def _end(
    state: State, stimulus: ChangeJobs, batch: BatchState, spec: BatchSpec, command: str, plan: _Plan, again: Again
) -> None:
    """Give a batch another command at its end, a first one, or none."""
    if not batch.unsettled:
        raise RefusedError(f"batch {batch.id} is settled: its end is past (rota add --after-any {batch.id} runs more)")
    by = f"changed by {stimulus.by}"
    old = [end for end in dependents(state, batch, by_name=False) if end.spec.ends == batch.id]
    old = [end for end in old if any(end.counts[number] for number in QUEUED)]
    if not command:
        for end in old:
            waiting = [waiter.id for waiter in dependents(state, end) if waiter.unsettled]
            if waiting:
                raise RefusedError(
                    f"batch {waiting[0]} waits for batch {end.id}, which runs at the end of batch {batch.id}: "
                    f"let it wait for something else first (rota modify {waiting[0]} --drop-after …)"
                )
            plan.events.append(ev.Removed(end.id, [0, end.count]))
    elif old:
        for end in old:
            template = msgspec.structs.replace(end.template(0), argv=None, shell=command)
            template.check()
            plan.events.append(ev.Retemplated(end.id, [0, end.count], template, by))
    else:
        plan.events.append(end_batch := _new_end(state, stimulus, batch, spec, command, plan))
        plan.reconsider.add(end_batch.batch)
        again.new_batch(end_batch.spec.name)


def _new_end(
    state: State, stimulus: ChangeJobs, batch: BatchState, spec: BatchSpec, command: str, plan: _Plan
) -> ev.Submitted:
    """A batch that runs when all of this one is settled."""
    if state.mode == "draining":
        raise RefusedError("the manager is draining and takes no new work: wait until it is down, then change it again")
    number = state.next_batch + sum(isinstance(event, ev.Submitted) for event in plan.events)
    first = batch.templates[0]
    template = Template(
        shell=command,
        needs=Needs(site=first.needs.site),
        cwd=first.cwd.partition("{")[0].rpartition("/")[0] or "/" if "{" in first.cwd else first.cwd,
        set=first.set,
        env_from=first.env_from,
        modules=first.modules,
        setup=first.setup,
        umask=first.umask,
    )
    name = f"{(spec.name or str(batch.id))[: MAX_NAME - 4]}-end"
    end = BatchSpec(1, (template,), name=name, after=(Dependency(str(batch.id), "any"),), ends=batch.id)
    end.check()
    check_circle(state, name, end.after)
    key = f"{batch.key}-end-{number}"
    return ev.Submitted(number, end, key, stimulus.at.wall, None, batch.env, None, stimulus.by)

"""A client adds a batch: whether it can ever run, and the limits and the batch at its end that come with it."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from rota.core.decide.decision import Decision
from rota.core.decide.dependency_checks import check_circle, check_dependencies
from rota.core.decide.limits import check_window, is_changed, limit_set, no_rule
from rota.core.decide.reopening import Again
from rota.core.graph import spans as spans_at
from rota.core.plan.asked import unoffered, what_was_learned
from rota.core.plan.policies import no_policy
from rota.core.shares import as_policy_sees
from rota.core.state import State
from rota.core.stimuli import Cover, Submit
from rota.model import events as ev
from rota.model.batch import MAX_NAME, BatchSpec, Dependency
from rota.model.errors import DeniedError, RefusedError, UsageError
from rota.model.graph import Graph
from rota.model.shape import Shape
from rota.schedule.queues import impossible

__all__ = ["cover", "submit"]

LEARNED = 5
"""Templates of a new batch of which the answer says what was learned."""


def submit(state: State, stimulus: Submit) -> Decision:
    """Add a batch, once for its key; refuse what could never run."""
    known = state.batches.peek(state.keys.get(stimulus.key, 0))
    if known is not None:
        reply = {"batch": known.id, "jobs": known.count, "duplicates": 0, "warnings": []}
        if end_key(stimulus.key) in state.keys:
            reply["end"] = state.keys[end_key(stimulus.key)]
        return Decision(reply=reply)
    if _was_accepted(state, stimulus):
        return _accepted(state, stimulus)
    spec = stimulus.spec
    spec.check()
    if state.mode == "draining":
        raise RefusedError("the manager is draining and takes no new work: wait until it is down, then add again")
    for template in (*spec.templates, *(stimulus.then.templates if stimulus.then is not None else ())):
        if (why := no_policy(state, template.policy)) is not None:
            raise UsageError(why)
        if template.needs in state.soft.possible:
            continue
        why = impossible(template.needs, state.soft.queues)
        if why is not None:
            raise UsageError(unoffered(state, template.needs) or f"this can never run: {why}")
    spec = _as_we_see_it(state, spec, stimulus.by)
    spec, graph, warnings = check_dependencies(state, spec, stimulus.graph)
    spec = msgspec.structs.replace(spec, ends=None) if spec.ends is not None else spec
    if stimulus.then is not None and end_key(stimulus.key) in state.keys:
        raise UsageError(f"the key {end_key(stimulus.key)} is another batch's: choose another")
    decision = Decision()
    for name, setting in (stimulus.limits or {}).items():
        event = limit_set(name, setting, stimulus.at)
        if not stimulus.may_limit and is_changed(state, event):
            raise DeniedError(f"there is a limit '{name}', and to change it needs more than the scope of this token")
        decision.events.append(event)
    used = {name for template in spec.templates for name in template.limits}
    for name in used:
        check_window(name, stimulus.at)
    warnings = [*warnings, *no_rule(state, used.difference(stimulus.limits or ()))]
    number = state.next_batch
    if graph is not None and spec.scouts:
        raise UsageError(
            "--scouts: the jobs of this batch wait for each other, so that none of them can wait for scouts"
        )
    scouting = 0 < spec.scouts < spec.count
    ready = graph is None and not spec.after and spec.not_before is None and stimulus.then is None and not scouting
    decision.events.append(_submitted(number, spec, stimulus, graph, ready))
    if scouting:
        decision.events.extend(_scouts(number, spec, stimulus.runs))
    if not ready:
        decision.reconsider.add(number)
    names = [spec.name, *(graph.names if graph is not None else ())]
    decision.reply = {"batch": number, "jobs": spec.count, "duplicates": 0, "warnings": warnings}
    if state.groups and (learned := _learned(state, spec)):
        decision.reply["learned"] = learned
    if stimulus.then is not None:
        end = _at_end(state, stimulus, spec, number)
        decision.events.append(end)
        decision.reconsider.add(end.batch)
        decision.reply["end"] = end.batch
        names.append(end.spec.name)
    _new_at(state, names, decision)
    return decision


def _was_accepted(state: State, stimulus: Submit) -> bool:
    """Whether the very same was accepted before, and nothing has changed since that it depends on."""
    known = state.soft.accepted.get(id(stimulus.spec))
    return (
        known is not None
        and known[0] is stimulus.spec
        and known[1] is state.settings
        and state.mode != "draining"
        and not (state.open_names or stimulus.limits or stimulus.graph is not None or stimulus.then is not None)
    )


def _accepted(state: State, stimulus: Submit) -> Decision:
    """The decision on what was accepted before."""
    spec, number = stimulus.spec, state.next_batch
    event = _submitted(number, spec, stimulus, None, True)
    return Decision([event], reply={"batch": number, "jobs": spec.count, "duplicates": 0, "warnings": []})


def _submitted(number: int, spec: BatchSpec, stimulus: Submit, graph: Graph | None, ready: bool) -> ev.Submitted:
    wall, stage, env, runs = stimulus.at.wall, stimulus.stage, stimulus.env, stimulus.runs
    return ev.Submitted(number, spec, stimulus.key, wall, stage, env, runs, stimulus.by, graph, ready)


def _new_at(state: State, names: list[str], decision: Decision) -> None:
    """Have jobs wait, or run again, that depend live on names which something new has."""
    if not state.open_names.keys().isdisjoint(names):
        again = Again(state, rerun=True)
        for name in names:
            again.new_batch(name)
        again.spread()
        decision.events.extend(again.events)
        decision.reconsider |= again.reconsider


def cover(state: State, stimulus: Cover) -> Decision:
    """Give jobs that are there already a name too, so that whoever waits for it waits for them."""
    decision = Decision()
    for number, positions in sorted(stimulus.jobs.items()):
        batch = state.batches.get(number)
        if batch is None or batch.spec.name == stimulus.name:
            continue
        known = batch.graph.members(stimulus.name) if batch.graph and stimulus.name in batch.graph.groups else []
        new = sorted(set(positions).difference(known))
        if new and new[-1] < batch.count:
            check_circle(state, stimulus.name, batch.needed)
            decision.events.append(ev.Named(number, stimulus.name, spans_at(new)))
            decision.reconsider.add(number)
    if decision.events:
        _new_at(state, [stimulus.name], decision)
    return decision


def _learned(state: State, spec: BatchSpec) -> list[str]:
    """What was learned beside what the user said of memory, time or disk."""
    out: dict[str, None] = {}
    for template in spec.templates[:LEARNED]:
        needs = template.needs
        if template.group in state.groups and (needs.memory, needs.time_s, needs.disk) != (None, None, None):
            group, override, ends = template.group, template.override, template.time_ends
            shape = Shape(needs, (), template.policy, group, override, template.level, ends=ends)
            lines = what_was_learned(state, shape)
            out |= dict.fromkeys(f"{template.group}: {line}" for line in lines if "asked nothing" not in line)
    return list(out)


def _as_we_see_it(state: State, spec: BatchSpec, by: str) -> BatchSpec:
    """The batch with what is the manager's to set, whatever a client said: whose use its jobs are counted as, which
    files tell them apart, and whether their time ends them."""
    policies = state.settings.policies
    scout: Literal["", "rest"] = "rest" if 0 < spec.scouts < spec.count else ""
    given = [
        template if template.scout == scout else msgspec.structs.replace(template, scout=scout)
        for template in spec.templates
    ]
    if scout:  # those of one submission are alike, whatever program runs them
        own = f"scouts of {state.next_batch}"
        given = [each if each.group else msgspec.structs.replace(each, group=own) for each in given]
    templates = tuple(
        [
            as_policy_sees(policies[template.policy], template.with_time_ends(), by, spec.name, state.settings.shares)
            for template in given
        ]
    )
    if all(new is old for new, old in zip(templates, spec.templates, strict=True)):
        return spec
    return msgspec.structs.replace(spec, templates=templates)


def _scouts(number: int, spec: BatchSpec, runs: list[int] | None) -> Iterator[ev.Retemplated]:
    """The scouts of a batch come before others of its priority."""
    low = 0
    for at, count in zip(runs[::2], runs[1::2], strict=True) if runs else [(0, spec.count)]:
        high = min(low + count, spec.scouts)
        if low < high:
            template = spec.templates[at]
            first = msgspec.structs.replace(template, scout="scout", priority=min(255, template.priority + 1))
            yield ev.Retemplated(number, [low, high], first, "a scout")
        low += count


def end_key(key: str) -> str:
    """The key of the batch that runs at the end of one with this key."""
    return f"{key}-end"


def _at_end(state: State, stimulus: Submit, first: BatchSpec, number: int) -> ev.Submitted:
    """The event for the batch that runs when all of `first` is settled: an ordinary batch that depends on it."""
    assert stimulus.then is not None
    after = (Dependency(str(number), "any"),)
    name = f"{(first.name or str(number))[: MAX_NAME - 4]}-end"
    spec = msgspec.structs.replace(stimulus.then, name=name, after=after, ends=number)
    spec = _as_we_see_it(state, spec, stimulus.by)
    spec.check()
    if spec.count != 1 or spec.columns or spec.ranges is not None:
        raise UsageError("what runs at the end of a batch is one job, without values")
    check_circle(state, name, first.after)
    return ev.Submitted(
        number + 1, spec, end_key(stimulus.key), stimulus.at.wall, None, stimulus.env, None, stimulus.by
    )

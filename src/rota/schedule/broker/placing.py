"""Flows as policies: what the brokerage says of a shape at a queue, as a filter and a scorer of the one loop.

A task is a learning group: what the configuration says of it (the fact `tasks`, by group), and what its jobs ask for.
Its queues are the queues of all sites (the fact `queues`, by location), as drivers know them, or as a file describes
them (the fact `broker`, under `world`). Running and waiting allocations (the fact `stats`) count as jobs.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from rota.model.shape import Shape
from rota.model.verdict import Wake
from rota.schedule import filters, scorers
from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.decision import Candidate, Decision, Skip
from rota.schedule.broker.flows import FLOWS
from rota.schedule.broker.memo import Broker
from rota.schedule.broker.queue import Queue
from rota.schedule.broker.task import Task
from rota.schedule.broker.world import Jobs, World
from rota.schedule.facts import Facts, Stats, Watched
from rota.schedule.filters import Answer, Filter, No
from rota.schedule.scorers import Scorer
from rota.schedule.view import QUEUE, Place, View

__all__ = [
    "BROKERED", "READS", "chosen_words", "decision_for", "decision_words", "enter_flow", "fates", "flow_in", "queue_of",
    "task_of", "weight_words",
]  # fmt: skip

READS = ("broker", "tasks", "queues", "stats")
MIB = 1 << 20
FIRST = 1e6
"""The score of an idle queue, which gets jobs first."""
BROKERED: list[str] = []
"""The flows that policies can name, as a filter and as a scorer."""
_UNKNOWN = Skip(None, "it is brokered queue by queue")


def task_of(shape: Shape, known: Mapping[str, Task], flow: str) -> Task:
    """The task of a shape: what is said of its group, with what its jobs ask for."""
    needs, said = shape.needs, known.get(shape.group)
    task = said if said is not None else Task(prod_source_label="user" if flow == "analysis" else "managed")
    asked: dict[str, Any] = {}
    if task.core_count is None:
        asked["core_count"] = max(1, -(-needs.cores // 1000)) * max(1, needs.nodes)
    if task.ram_count is None and needs.memory is not None:
        asked.update(ram_count=needs.memory // MIB, ram_unit="MB")
    if task.walltime is None and needs.time_s is not None:
        asked["walltime"] = float(needs.time_s)
    if task.work_disk_count is None and needs.disk is not None:
        asked.update(work_disk_count=needs.disk / MIB, work_disk_unit="MB")
    if shape.scout == "scout" and task.chunk.scouting is not True:
        asked["chunk"] = replace(task.chunk, scouting=True)
    return replace(task, **asked) if asked else task


def queue_of(place: Place, described: Mapping[str, Queue]) -> Queue:
    """A place as a queue of the brokerage: as it is described, or as its driver knows it."""
    name, facts, queue = place.location.id, place.site, place.queue
    up = place.status == "UP"
    said = described.get(name) or (described.get(queue.name) if queue is not None else None)
    if said is not None:
        return replace(said, name=name, parent=None, status=said.status if up else "offline")
    node = queue.node if queue is not None else facts.node if facts is not None else None
    longest = queue.time_most_s if queue is not None else facts.time_most_s if facts is not None else None
    cores = 0 if node is None else node.cores // 1000
    return Queue(
        name=name,
        type="unified",
        status="online" if up else "offline",
        site=place.location.site,
        capability="ucore",
        core_count=cores if 0 < cores < 1_000_000 else 64,
        maxrss=node.memory // MIB if node is not None and node.memory < 1 << 50 else 0,
        maxtime=longest or 0,
        releases=("ANY",),
        wnconnectivity="full",
    )


def _jobs(place: Place, stats: Mapping[Any, Any]) -> Jobs:
    """Allocations at a queue, as jobs."""
    own = place.queue is None or place.queue.default
    found = stats.get((place.location.site, "" if own else place.location.queue))
    return Jobs(running=found.running, activated=found.waiting) if isinstance(found, Stats) else Jobs()


def _world(view: View, share: str) -> World:
    base: World | None = view.facts["broker"].get("world")
    described: Mapping[str, Queue] = {} if base is None else base.queues
    stats = view.facts["stats"]
    queues: dict[str, Queue] = {}
    jobs: dict[str, Mapping[str, Jobs]] = {}
    for name, place in view.facts["queues"].items():
        queues[name] = queue_of(place, described)
        told = None if base is None else base.jobs.get(name) or base.jobs.get(place.location.queue or "")
        jobs[name] = told or {share: _jobs(place, stats)}
    changes: dict[str, Any] = {"queues": queues, "jobs": jobs, "known": {}}
    return World(**changes) if base is None else replace(base, **changes)


_last: dict[str, tuple[Facts, tuple[int, ...], Broker]] = {}
"""Share → the broker of the facts that it was last asked about."""


def _broker(view: View, share: str) -> Broker:
    """Who decides now; the same as before while no fact has changed."""
    facts = view.facts
    source: Facts | None = None
    versions: tuple[int, ...] = ()
    if isinstance(facts, Facts | Watched):
        source, versions = facts.source, tuple([facts.version(name) for name in READS])
        known = _last.get(share)
        if known is not None and known[0] is source and known[1] == versions:
            return known[2]
    made = Broker(_world(view, share), view.facts["broker"].get("thresholds") or Thresholds())
    if source is not None:
        if len(_last) > 100:
            _last.clear()
        _last[share] = (source, versions, made)
    return made


def decision_for(flow: str, shape: Shape, view: View) -> Decision:
    """What the brokerage says of a shape now."""
    task = task_of(shape, view.facts["tasks"], flow)
    return _broker(view, task.gshare or "Undefined").decide(task, flow)


def fates(decision: Decision, name: str) -> Candidate | Skip:
    """What became of a queue: of its parts, if it is unified, what became of the best."""
    return _fate(decision, name)[1]


def _fate(decision: Decision, name: str) -> tuple[str, Candidate | Skip]:
    """(the queue, or the part of it that came furthest; what became of that)."""
    used = [one for one in decision.candidates if one.queue.partition("/")[0] == name]
    if used:
        return used[0].queue, used[0]
    skips = [row for row in decision.skipped.items() if row[0].partition("/")[0] == name]
    # that of another resource type says the least
    skips.sort(key=lambda row: (row[1].weight is None, row[1].tag in ("-cpucore", "-highmemory")))
    return skips[0] if skips else (name, _UNKNOWN)


def chosen_words(flow: str, shape: Shape, name: str, view: View) -> str:
    """Why a queue was chosen, with its weight and what that is made of.

    Of several that are asked for at once the first may have filled it: then it has its weight, and that it is full.
    """
    decision = decision_for(flow, shape, view)
    fate = fates(decision, name)
    if not isinstance(fate, Candidate):
        weight = "" if fate.weight is None else f"weight {fate.weight:.6g}, "
        return f"{flow} ({decision.profile}): {weight}and with this full ({fate.words})"
    place = 1 + [one.queue for one in decision.candidates].index(fate.queue)
    of = f"{place}. of {len(decision.candidates)} left of {decision.initial} queues"
    return f"{flow} ({decision.profile}): {of}, {weight_words(fate)}"


def weight_words(one: Candidate) -> str:
    """The weight of a candidate, and its factors."""
    if one.bootstrap:
        return "idle: it gets jobs first"
    return f"weight {one.weight:.6g} = " + " × ".join(f"{name} {value:.6g}" for name, value in one.factors)


def decision_words(decision: Decision) -> list[str]:
    """A decision as lines for people: the funnel, then the queues that are left with their weights."""
    lines = [f"flow {decision.flow}, profile {decision.profile}: {decision.initial} candidates"]
    if decision.locality is False:
        lines[0] += ", input need not be there"
    lines += [f"{step.before} → {step.after} candidates, {step.cut} % cut: {step.name}" for step in decision.steps]
    if decision.reason:
        lines.append(f"{decision.status}: {decision.reason}")
    lines += [f"{one.queue}: {weight_words(one)}" for one in decision.candidates]
    return lines


def _check(flow: str, shape: Shape, place: Place, view: View) -> Answer:
    decision = decision_for(flow, shape, view)
    again = view.wall + decision.pending_minutes * 60 if decision.pending_minutes else float("inf")
    if decision.throttled:
        return No("throttled", decision.reason, False, (Wake.TIME,), again)
    queue, fate = _fate(decision, place.location.id)
    if isinstance(fate, Candidate):
        return None
    code = (fate.tag or "-brokerage").removeprefix("-")
    wake = (Wake.STATUS,) if fate.lasting else (Wake.CAPACITY,)
    return No(code, fate.words, fate.lasting, wake, again, decision.by.get(queue, ""))


def _score(flow: str, shape: Shape, place: Place, view: View) -> float:
    fate = fates(decision_for(flow, shape, view), place.location.id)
    if not isinstance(fate, Candidate):
        return 1e-9
    return FIRST if fate.bootstrap else fate.weight


def flow_in(names: Sequence[str]) -> str | None:
    """The flow among the filters of a policy; None: there is none."""
    return next((name for name in names if name in BROKERED), None)


def enter_flow(name: str) -> None:
    """Let policies name a flow, as a filter and as a scorer."""
    assert name in FLOWS
    BROKERED.append(name)
    filters.BUILT_IN[name] = Filter(name, partial(_check, name), (QUEUE,), READS)
    scorers.BUILT_IN[name] = Scorer(partial(_score, name), (QUEUE,), READS)


for _name in ("production", "analysis"):
    enter_flow(_name)

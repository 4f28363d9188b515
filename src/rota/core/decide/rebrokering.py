"""Rebrokering: what waits at a site for too long is called back, and brokered again; that site is remembered.

Only what has not started, and what no user bound to the site. It is called back as any allocation is ended: nothing
is asked for elsewhere in its place before the site has said that it is over (a direct job), or the runner that it
would have started can find no job any more. So nothing runs twice, and a site that does not answer keeps its jobs.
"""

from collections.abc import Iterator

from rota.core.shares import UNCOUNTED
from rota.core.state import State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.allocation import Allocation
from rota.model.amounts import format_duration
from rota.model.needs import Needs
from rota.schedule.broker.sites import BROKERED_AGAIN, Move, moves, size_of, span_of
from rota.schedule.broker.timeouts import JobClock, QueueClock, due, fast_rebrokerage, rules_of
from rota.schedule.facts import Stats
from rota.schedule.policy import DEFAULT
from rota.schedule.queues import Sites, verdicts
from rota.schedule.view import View, Want

__all__ = ["called_back", "is_time", "rebroker"]

PERIOD_S = 10.0
MOST = 50
"""So many are called back at one time, at the most."""
_WAITING = [rule for rule in rules_of("doc") if rule.action == "reassign"]
"""The rules for what waits at a site."""
SCALE = 4
"""Priorities go to 255 here, and to a thousand in the rules."""
FIRST_S = min(rule.limit_s for rule in _WAITING)
FAST = "FAST_REBRO_THRESHOLD_"


def is_time(at: At, last: At | None) -> bool:
    """Whether it is time to look again; `last` is the moment of the tick before."""
    return last is not None and at.mono // PERIOD_S != last.mono // PERIOD_S


def called_back(reason: str | None) -> bool:
    """Whether an allocation is ended for this reason because its job is brokered again."""
    return reason is not None and reason.startswith(BROKERED_AGAIN)


def rebroker(state: State, at: At) -> Iterator[ev.Event]:
    """Call back what has waited for too long, where another site would take it."""
    soft, least_s = state.soft, state.settings.rebroker_s
    if least_s is None or len(soft.sites) < 2 or state.mode != "serving":
        return
    rooms, left = state.rooms(at.mono), MOST
    crowded = dict(_crowded(state))
    for (site, queue), waits in soft.waits.items():
        facts = soft.sites.get(site)
        if facts is None or facts.paused or not facts.reassign or not waits.since or left <= 0:
            continue
        many = dict(crowded.get((site, queue), {}))
        if at.wall - next(iter(waits.since.values())) < min(least_s, FIRST_S) and not many:
            continue
        for name in list(reversed(waits.since))[: 10 * MOST]:  # the last in line move first
            allocation = state.allocations.get(name)
            if allocation is None or allocation.state != "PENDING" or left <= 0:
                continue
            why = _why(state, allocation, at, least_s, rooms, many)
            if why is not None:
                left -= 1
                yield ev.AllocationMoved(name, "kill", None, f"{BROKERED_AGAIN}: {why}")


def _why(
    state: State,
    allocation: Allocation,
    at: At,
    least_s: float,
    rooms: dict[str, int],
    many: dict[str, tuple[int, str]],
) -> str | None:
    """Why an allocation should not wait any longer; None: it should."""
    bound = _bound(state, allocation)
    if bound is None:
        return None
    needs, want, priority = bound
    others = _others(state, at, allocation, want, rooms)
    if not others:
        return None
    waited = at.wall - (allocation.submitted or at.wall)
    learned = state.waited.get((allocation.site, allocation.queue or ""))
    last_start = None if learned is None else learned.last_start
    place = f"{allocation.site}:{allocation.queue}" if allocation.queue else allocation.site
    job = JobClock("activated", allocation.submitted or at.wall, priority=SCALE * priority)
    timeout = due(job, QueueClock(place, last_start=last_start), at.wall, state.settings.thresholds, "doc", _WAITING)
    why = None if timeout is None else timeout.why
    share = _share(state, allocation)
    if why is None and share in many and many[share][0] > 0:
        many[share] = (many[share][0] - 1, many[share][1])
        why = many[share][1]
    if why is None:
        move = Move(waited, size_of(needs.cores, needs.nodes), span_of(needs.time_s))
        found = moves(move, others, at.wall, least_s)
        if found is None:
            return None
        rooms[found[0]] -= 1
        why = (
            f"waited {format_duration(int(waited))} at {place}; {found[0]} has room, and lets one wait for "
            f"{format_duration(int(found[1]))}"
        )
    return why


def _bound(state: State, allocation: Allocation) -> tuple[Needs, Want | None, int] | None:
    """(needs, the shape if it is for one, priority) of what an allocation is for; None: it must stay where it is."""
    if allocation.shape is None:
        return Needs(cores=allocation.capacity.cores, nodes=allocation.nodes, time_s=allocation.time_s), None, 0
    shape = state.shapes[allocation.shape].shape
    if shape.needs.site is not None or shape.needs.queue is not None or allocation.options:
        return None
    first, by, priority = -1, "", 0
    for runner in state.direct_runners(allocation):
        for number, pos in runner.jobs:
            batch = state.batches[number]
            if pos in batch.hold_wanted:
                return None
            first, by, priority = number, batch.by, batch.template(pos).priority
    return shape.needs, Want(allocation.shape, shape, 1, priority, first, by=by), priority


def _others(
    state: State, at: At, allocation: Allocation, want: Want | None, rooms: dict[str, int]
) -> dict[str, tuple[Stats | None, int]]:
    """Other site → how its best queue fares, and its room, of those that would take it now."""
    out: dict[str, tuple[Stats | None, int]] = {}
    facts, left = state.soft.facts, state.budgets()
    view = View(at.wall, at.mono, state.mode, (), state.ledger.view, {}, facts=facts, rooms=rooms, budgets=left)
    stats = state.soft.facts["stats"]
    for site, places in state.soft.queues.items():
        if site == allocation.site or rooms.get(site, 0) <= 0 or state.soft.sites[site].paused:
            continue
        here: Sites = {site: places}
        if want is not None:
            policy = state.settings.policies.get(want.shape.policy, DEFAULT)
            refused = {verdict.location for verdict in verdicts(want, here, view, policy)}
            places = tuple([place for place in places if place.location.id not in refused])
        if places:
            out[site] = (stats.get((site, "")), rooms[site])
    return out


def _share(state: State, allocation: Allocation) -> str:
    share = "" if allocation.shape is None else state.shapes[allocation.shape].shape.share
    return "" if share.startswith(UNCOUNTED) else share


def _crowded(state: State) -> Iterator[tuple[tuple[str, str], dict[str, tuple[int, str]]]]:
    """(site, queue) → share → how many too many of it wait there, and why, by the thresholds that are set."""
    thresholds = state.settings.thresholds
    if not any(key.startswith(f"{FAST}NQUEUE_") and key != f"{FAST}NQUEUE_FRAC" for key in thresholds):
        return
    counts: dict[tuple[str, str], dict[str, list[int]]] = {}
    total: dict[str, int] = {}
    for allocation in state.allocations.values():
        at = {"PENDING": 0, "RUNNING": 1}.get(allocation.state)
        if at is not None:
            share = _share(state, allocation)
            row = counts.setdefault((allocation.site, allocation.queue or ""), {}).setdefault(share, [0, 0])
            row[at] += 1
            total[share] = total.get(share, 0) + (at == 0)
    for key, shares in counts.items():
        found = {}
        for share, (queued, running) in shares.items():
            excess = fast_rebrokerage(
                queued,
                running,
                total[share],
                limit=thresholds.get(f"{FAST}NQUEUE_{share}"),
                ratio=thresholds.get(f"{FAST}NQNR_RATIO", 3.0),
                frac=thresholds.get(f"{FAST}NQUEUE_FRAC", 0.3),
            )
            if excess.trigger:
                found[share] = (excess.closes, excess.why)
        if found:
            yield key, found

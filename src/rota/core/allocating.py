"""What drivers say of allocations and sites, and what follows for the runners in them."""

from rota.core.decision import Decision
from rota.core.effects import Allocate
from rota.core.losses import lost
from rota.core.state import SiteState, State
from rota.core.stimuli import AllocationSeen, SiteSeen
from rota.core.tables import ALLOCATION, move
from rota.model import events as ev
from rota.model.allocation import Allocation

__all__ = ["allocation_seen", "site_seen"]

UNSURE_MOST = 100
"""Observations in a row that tell nothing, after which an allocation is killed."""


def site_seen(state: State, stimulus: SiteSeen) -> Decision:
    """A site is there. Not an event: it is told anew at every start."""
    old = state.sites.get(stimulus.site)
    site = SiteState(stimulus.site, stimulus.node, stimulus.tags, stimulus.most, stimulus.linger_s)
    if old is not None:
        site.closed_until, site.failures, site.why = old.closed_until, old.failures, old.why
    state.sites[stimulus.site] = site
    state.ensure_site_location(stimulus.site)
    state.memo.clear()
    state.replan = True
    return Decision()


def allocation_seen(state: State, stimulus: AllocationSeen) -> Decision:
    """An observation: a move, a repeat (no-op), or a contradiction (recorded, and ended)."""
    decision = Decision()
    allocation = state.allocations.get(stimulus.id)
    if allocation is None:
        decision.events.append(
            ev.Noted(
                stimulus.id, "unknown allocation", f"a driver reports {stimulus.verb}: {stimulus.reason or 'no reason'}"
            )
        )
        return decision
    if stimulus.verb == "unsure":
        return _unsure(decision, allocation.id, allocation.unsure + 1, allocation.state, stimulus.reason)
    new = move(ALLOCATION, allocation.state, stimulus.verb)
    if new is None and allocation.state.endswith("ING") and (allocation.unsure or _is_news(allocation, stimulus)):
        decision.events.append(ev.AllocationMoved(allocation.id, "unsure", stimulus.native_id, None, 0))
        return decision
    if new is None:
        if allocation.state.endswith("ED") and stimulus.verb in ("run", "pend"):
            decision.events.append(
                ev.Noted(
                    allocation.id,
                    "contradiction",
                    f"is {allocation.state}, and its driver says {stimulus.verb} "
                    f"({stimulus.reason or ''}): it is ended again",
                )
            )
            decision.effects.append(Allocate("terminate", allocation.id, allocation.site, allocation.tag))
        return decision
    if new == allocation.state and stimulus.verb != "retry":
        return decision
    native = stimulus.native_id
    if new.endswith("ED"):
        _close_runners(state, decision, stimulus)
        _judge_site(state, stimulus, allocation.site)
    elif stimulus.verb == "run":
        site = state.sites.get(allocation.site)
        if site is not None:
            site.why = None
    decision.events.append(ev.AllocationMoved(allocation.id, stimulus.verb, native, stimulus.reason))
    return decision


def _is_news(allocation: Allocation, stimulus: AllocationSeen) -> bool:
    """Its runner may have greeted before the answer to the submission came: that answer still has the native id."""
    return stimulus.native_id is not None and allocation.native_id is None


def _unsure(decision: Decision, allocation_id: str, count: int, state: str, reason: str | None) -> Decision:
    if not state.endswith("ING"):
        return decision
    if count >= UNSURE_MOST and move(ALLOCATION, state, "kill"):
        decision.events.append(
            ev.AllocationMoved(
                allocation_id, "kill", None, f"nothing certain was heard of it {count} times: {reason or ''}"
            )
        )
    else:
        decision.events.append(ev.AllocationMoved(allocation_id, "unsure", None, reason, count))
    return decision


def _close_runners(state: State, decision: Decision, stimulus: AllocationSeen) -> None:
    """The driver is the second witness: with the allocation, its runners and what they ran are gone."""
    for runner in state.runners.values():
        if runner.allocation != stimulus.id or runner.state in ("CLOSED", "EXPIRED"):
            continue
        why = stimulus.reason or f"its allocation {stimulus.id} is over"
        had_jobs = bool(runner.jobs)
        events, results = lost(state, runner.id, list(runner.jobs), why, stimulus.at)
        decision.events.extend(events)
        decision.results.extend(results)
        decision.events.append(ev.RunnerMoved(runner.id, "lose" if had_jobs else "close", why))


def _judge_site(state: State, stimulus: AllocationSeen, site_name: str) -> None:
    """A site whose allocations end without ever having served is left alone for a while, longer each time."""
    site = state.sites.get(site_name)
    if site is None:
        return
    if any(runner.allocation == stimulus.id for runner in state.runners.values()):
        site.failures = 0
        return
    site.failures += 1
    settings = state.settings
    wait = min(settings.site_retry_most_s, settings.site_retry_s * 2.0 ** (site.failures - 1))
    site.closed_until = stimulus.at.mono + wait
    site.why = f"allocation {stimulus.id} gave no runner: {stimulus.reason or 'no reason known'}"

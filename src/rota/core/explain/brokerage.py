"""What the brokerage says of a job's shape now, and what it said of the queues that it chose."""

from typing import Any

from rota.core.plan.asked import asked_now
from rota.core.state import ShapeState, State
from rota.core.stimuli import At
from rota.schedule.broker.placing import decision_for, decision_words, flow_in
from rota.schedule.policy import DEFAULT
from rota.schedule.view import View

__all__ = ["brokerage"]

CHOSEN = 20
"""Choices that are shown, the newest of them."""


def brokerage(state: State, shape: ShapeState, at: At, waits: bool) -> dict[str, Any]:
    """{"brokerage": …} of a job whose policy is a flow, else nothing; `waits`: whether it is to be decided now."""
    flow = flow_in(state.settings.policies.get(shape.shape.policy, DEFAULT).filters)
    if flow is None:
        return {}
    now: list[str] = []
    if waits:
        view = View(at.wall, at.mono, "serving", (), state.ledger.view, {}, facts=state.soft.facts)
        now = decision_words(decision_for(flow, asked_now(state, shape).asked, view))
    chosen = [
        {"allocation": row.id, "queue": row.queue or row.site, "state": row.state, "why": row.why}
        for row in state.allocations.values()
        if row.shape == shape.id and row.why
    ]
    return {"brokerage": {"now": now, "chosen": chosen[-CHOSEN:]}}

"""Pause, resume, drain. Pauses are held by name, so that a tool that resumes does not end a person's pause."""

from typing import Any

from rota.core.decide.decision import Decision
from rota.core.state import State
from rota.core.stimuli import SetMode
from rota.model import events as ev
from rota.model.errors import UsageError

__all__ = ["pause_rows", "set_mode"]

MOST = 1_000
"""How many can hold a pause at a time."""


def set_mode(state: State, stimulus: SetMode) -> Decision:
    """Pause, resume or drain the manager. It is paused while anybody's pause remains."""
    pauses = dict(state.pauses)
    mode = state.mode
    if stimulus.mode == "paused":
        if stimulus.holder not in pauses and len(pauses) >= MOST:
            raise UsageError(f"{MOST} pauses are held already: resume some (rota resume --all)")
        since = pauses.get(stimulus.holder, (stimulus.at.wall,))[0]
        pauses[stimulus.holder] = (since, stimulus.reason, stimulus.by)
        mode = mode if mode == "draining" else "paused"
    elif stimulus.mode == "serving":
        if stimulus.everyone:
            pauses.clear()
        else:
            pauses.pop(stimulus.holder, None)
        mode = "paused" if pauses else "serving"
    elif stimulus.mode == "draining":
        mode = "draining"
    else:
        raise UsageError(f"no such mode: {stimulus.mode}")
    decision = Decision(reply={"state": mode, "pauses": pause_rows(pauses)})
    if mode != state.mode or pauses != state.pauses:
        rows = [(holder, *row) for holder, row in pauses.items()]
        decision.events.append(ev.ManagerMoved(mode, stimulus.by, rows))
    return decision


def pause_rows(pauses: dict[str, tuple[float, str, str]]) -> list[dict[str, Any]]:
    """Pauses as clients see them."""
    return [{"as": holder, "since": since, "reason": why, "by": by} for holder, (since, why, by) in pauses.items()]

"""Giving an attempt up: two witnesses have said that it is over, or the user accepted the risk.

A lost attempt is not a failure of the job: it counts against its own limit. Giving up closes the attempt, so that a
late success of it is shown and changes nothing.
"""

from collections.abc import Iterable

from rota.core.decide.removals import removals
from rota.core.state import State
from rota.core.stimuli import At
from rota.model import events as ev
from rota.model.job import Result
from rota.model.tables import KILLING

__all__ = ["lost"]


def lost(
    state: State, runner_id: str, jobs: Iterable[tuple[int, int]], why: str, at: At, reason: str = "lost"
) -> tuple[list[ev.Event], list[Result]]:
    """Events and results for attempts on one runner that will never be heard of again.

    `reason` is what the provider says became of the node, if it says; a job may forbid to be started again after that.
    """
    rows: list[tuple[int, int, str, float | None, int]] = []
    holds: list[tuple[int, int]] = []
    results = []
    runner = state.runners[runner_id]
    for number, pos in jobs:
        batch = state.batches[number]
        attempt = batch.live[pos].attempt
        if batch.states[pos] == KILLING:
            verb, outcome = "abort", "ABORTED"
        elif pos in batch.hold_wanted or (
            batch.losses.get(pos, 0) < state.settings.losses and reason not in batch.template(pos).never_retry_on
        ):
            verb, outcome = "requeue", "LOST"
            if pos in batch.hold_wanted:
                holds.append((number, pos))
        else:
            verb, outcome = "fail", "FAILED"
        rows.append((number, pos, verb, None, 0))
        told = "lost-too-often" if verb == "fail" and reason == "lost" else reason
        results.append(
            Result(number, pos, attempt, outcome, None, None, told, runner_id, runner.host, None, at.wall, note=why)
        )
    if not rows:
        return [], []
    events: list[ev.Event] = [ev.Ended(runner_id, rows, "loss", why)]
    events.extend(ev.Moved(number, "hold", [pos, pos + 1]) for number, pos in holds)
    events.extend(removals(state, rows))
    return events, results

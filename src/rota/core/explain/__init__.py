"""Why jobs are where they are, in words: all that `rota explain` and the reasons of `rota status` say.

Worked out from the state when somebody asks. Filters bring their own words, and so does what decides: that a job is
omitted (the event keeps why), that another try is of no use. Here they are only put together: `waiting`, `chain`
(dependencies, to the root), `pending` with `limits` and `line` (who is ahead, who has what is short), `live`, `ended`.
"""

from collections.abc import Iterable, Iterator

from rota.core.explain.account import Account, Ahead, Blocker, Holder, Link, Records
from rota.core.explain.chain import Asked, held_words, omitted, waiting
from rota.core.explain.ended import ended, never_ran, was_raised
from rota.core.explain.limits import limit_now, rate_wait, window_wait
from rota.core.explain.line import Line
from rota.core.explain.live import cluster_words, live
from rota.core.explain.pending import newest_of, pending, stopped_words, verdicts
from rota.core.explain.waiting import omitted_reason, standing, waiting_for
from rota.core.state import BatchState, State
from rota.core.stimuli import At
from rota.model.job import Result, format_job
from rota.model.tables import (
    ABORTED,
    FAILED,
    HOLDING,
    KILLING,
    MISSING,
    OMITTED,
    PENDING,
    SETTLED,
    STARTING,
    WAITING,
)

__all__ = [
    "Account", "Ahead", "Blocker", "Holder", "Link", "Records", "account", "accounts", "batch_reasons",
    "cluster_words", "limit_now", "never_ran", "omitted_reason", "rate_wait", "reason", "standing", "verdicts",
    "waiting_for", "was_raised", "window_wait",
]  # fmt: skip

_WORTH_A_WORD = (MISSING, PENDING, WAITING, HOLDING, KILLING, STARTING, FAILED, OMITTED, ABORTED)
"""The states of which a batch's row says why, the most telling first."""
_OF_ITSELF = ("dependency", "time", "back-off")
"""Kinds of blockers whose words begin with what the job does."""
LOOKED_UP = 50
"""Settled batches, the newest, of which a list says how their jobs ended: that is read from disk."""


def account(state: State, batch: BatchState, pos: int, at: At, records: Records | None = None) -> Account:
    """All that is said of one job."""
    return next(accounts(state, [(batch, pos)], at, records))


def accounts(
    state: State, jobs: Iterable[tuple[BatchState, int]], at: At, records: Records | None = None
) -> Iterator[Account]:
    """All that is said of each of these jobs."""
    asked = Asked(state, at, Line(state, at), newest_of(state), records or Records())
    for batch, pos in jobs:
        found = _account(asked, batch, pos)
        found.short = found.short or found.reason
        yield found


def reason(state: State, batch: BatchState, pos: int, last: Result | None, at: At) -> str:
    """Why a job is where it is, in words; `last` is its last attempt that ended."""
    return account(state, batch, pos, at, Records(last=lambda number, there: last)).reason


def _account(asked: Asked, batch: BatchState, pos: int) -> Account:
    state, at, records = asked.state, asked.at, asked.records
    byte = batch.states[pos]
    if byte == PENDING:
        found = pending(state, batch, pos, at, asked.line, asked.newest, records)
        if not records.down and any(blocker.kind == "room" for blocker in found.blockers):  # more may be on their way
            found.reason += cluster_words(state, batch, pos, records.waits, records.unanswered)
        return found
    if byte == WAITING:
        closing = _closing(state, batch, pos, at)
        return Account(closing) if closing is not None else waiting(asked, batch, pos)
    if byte == HOLDING:
        return _held(asked, batch, pos)
    if pos in batch.live:
        return live(state, batch, pos, at, records)
    return omitted(asked, batch, pos) if byte == OMITTED else ended(state, batch, pos, records)


def _held(asked: Asked, batch: BatchState, pos: int) -> Account:
    """Who holds a job, and what it waits for besides."""
    job = format_job(batch.id, batch.index(pos))
    words = held_words(batch, job)
    found = [Blocker("held", words, True, None, f"rota release {job}")]
    rest = waiting(asked, batch, pos)
    further = [blocker for blocker in rest.blockers if blocker.kind != "turn"]
    then = ""
    for number, blocker in enumerate(further):
        verb = "it " if blocker.kind in _OF_ITSELF else ""
        then += f"; {'also' if number else 'and then'}{':' if number or not verb else ''} {verb}{blocker.words}"
    commands = [f"rota release {job}", *(blocker.command for blocker in further if blocker.command is not None)]
    return Account(words + then, words, [*found, *further], rest.chain, commands=commands)


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


def batch_reasons(
    state: State, batches: Iterable[BatchState], at: At, records: Records | None = None
) -> Iterator[tuple[int, str]]:
    """(batch, why its jobs are where they are): of the first job in the state that tells most."""
    asked = Asked(state, at, Line(state, at), newest_of(state), records or Records())
    conditions, runners = state.soft.conditions, state.runners.values()
    stopped = {
        job[0]: runner.allocation for runner in runners if runner.allocation in conditions for job in runner.jobs
    }
    shown = list(batches)
    looked_up = {batch.id for batch in [each for each in shown if not each.unsettled][-LOOKED_UP:]}
    for batch in shown:
        byte = next((byte for byte in _WORTH_A_WORD if batch.counts[byte]), None)
        if batch.id in stopped and byte not in (MISSING, PENDING, WAITING, HOLDING):
            yield batch.id, stopped_words(state, stopped[batch.id])
        elif byte is not None and (byte < SETTLED or batch.unsettled or batch.id in looked_up):
            yield batch.id, _of_batch(asked, batch, byte)


def _short(found: Account) -> str:
    return found.short or found.reason


def _of_batch(asked: Asked, batch: BatchState, byte: int) -> str:
    """Why the jobs of a batch that are in one state are so, by the first of them."""
    state, at = asked.state, asked.at
    pos = batch.states.find(byte)
    if byte == PENDING:
        return _short(pending(state, batch, pos, at, asked.line, asked.newest, asked.records, brief=True))
    if byte == WAITING:
        closing = next((of for of in batch.closing if batch.states[of] == WAITING), None)
        words = _closing(state, batch, closing, at) if closing is not None else None
        return words or _short(waiting(asked, batch, None if batch.count > 1 else pos))
    if byte == HOLDING:
        return held_words(batch, str(batch.id))
    words = _short(_account(asked, batch, pos))
    if byte < SETTLED or batch.count == 1:
        return words
    count = batch.counts[byte]
    return f"{words} ({format_job(batch.id, batch.index(pos))}{f', the first of {count:,}' if count > 1 else ''})"

"""Whether a failed attempt is tried again, and when a batch that keeps failing is stopped."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rota.core.decide.decision import Decision
from rota.core.selection import states_pattern
from rota.core.spans import spans_of, without
from rota.core.state import BatchState, State
from rota.core.stimuli import At, Ended
from rota.model import events as ev
from rota.model.amounts import format_duration
from rota.model.batch import Template
from rota.model.job import Result
from rota.model.tables import COMPLETED, FAILED, KILLING, PENDING, STARTING, WAITING

__all__ = [
    "after_failure", "backoff", "brakes", "is_forbidden", "no_use", "stopped_by_a_full_disk", "until_brake",
]  # fmt: skip

FINAL_CODES = (126, 127, 128)
FINAL_REASONS = frozenset(
    ("not-found", "not-executable", "cwd", "output", "cancelled", "no-report", "refused", "input")
)
"""Trying again cannot help with these, unless somebody says so (`--retry-on`)."""
FIRST = 50
"""After so many failures, and no success, a batch is held, unless it has `max_failures` of its own."""
_QUEUED = states_pattern((WAITING, PENDING))
_LEASED = states_pattern((STARTING,))


def after_failure(
    state: State, decision: Decision, batch: BatchState, pos: int, row: Ended, at: At
) -> tuple[str, str, float | None, bool]:
    """(verb, state of the attempt, not before, whether it counts as a failure) for an attempt that did not succeed."""
    if batch.states[pos] == KILLING:
        return ("complete", "COMPLETED", None, True) if row.exit_code == 0 else ("abort", "ABORTED", None, True)
    if batch.hold_wanted.get(pos) or row.reason in ("runner-stopped", "killed"):
        return "requeue", "RETRIED", None, False
    template = batch.template(pos)
    failures = batch.failures.get(pos, 0)
    if failures < template.retries and no_use(template, row) is None:
        return "requeue", "RETRIED", at.wall + backoff(state, failures, decision.chance(state)), True
    return "fail", "FAILED", None, True


def no_use(template: Template, row: Ended | Result) -> str | None:
    """Why the user's rules, or else good sense, do not let this failure be tried again; None: they do."""
    reason = row.reason or ("signal" if row.signal is not None else "exit")
    words = {reason, str(row.exit_code)} if row.exit_code is not None else {reason}
    if is_forbidden(template, row):
        return f"--never-retry-on {','.join(template.never_retry_on)}"
    if template.no_retry_after_s is not None and (row.ended or 0) - (row.started or 0) > template.no_retry_after_s:
        return f"--no-retry-after {format_duration(template.no_retry_after_s)}"
    if template.retry_on:
        return f"--retry-on {','.join(template.retry_on)}" if words.isdisjoint(template.retry_on) else None
    final = row.exit_code in FINAL_CODES or row.reason in FINAL_REASONS
    return "that could not help; --retry-on says otherwise" if final else None


def is_forbidden(template: Template, row: Ended | Result) -> bool:
    """Whether the user has said that this failure is never to be tried again."""
    reason = row.reason or ("signal" if row.signal is not None else "exit")
    return not {reason, str(row.exit_code)}.isdisjoint(template.never_retry_on)


def backoff(state: State, failures: int, chance: float) -> float:
    """Seconds to wait before the next try: doubling, bounded, with chance so that failures do not march in step."""
    settings = state.settings
    delay = min(settings.backoff_most_s, settings.backoff_first_s * 2.0 ** min(max(failures, 0), 60))
    return delay + chance * settings.backoff_jitter_s


def until_brake(batch: BatchState) -> int | None:
    """How many more jobs of a batch may fail before the rest is held; None: failures do not, or no longer, hold it."""
    limit = batch.spec.max_failures
    if limit is None:
        limit = 0 if batch.counts[COMPLETED] else FIRST
    return limit - batch.counts[FAILED] if limit > batch.counts[FAILED] else None


def brakes(state: State, rows: Sequence[tuple[int, int, str, float | None, int]]) -> Iterator[ev.Event]:
    """Hold the rest of a batch whose failures have just become too many, with leased jobs that have not started.

    Jobs that are released afterwards are not held again.
    """
    failed = [row[0] for row in rows if row[2] == "fail"]
    for number, failures in Counter(failed).items() if failed else ():
        batch = state.batches[number]
        before = batch.counts[FAILED]
        good = batch.counts[COMPLETED] + sum(row[0] == number and row[2] == "complete" for row in rows)
        limit = batch.spec.max_failures
        if limit is None:
            limit = FIRST if good == 0 else 0
        if not 0 < limit <= before + failures or before >= limit:
            continue
        why = f"{before + failures} of its jobs failed" + ("" if good else " and none succeeded")
        yield from _held(batch, why, {row[1] for row in rows if row[0] == number})


def stopped_by_a_full_disk(
    state: State, full: Mapping[int, str], rows: Sequence[tuple[int, int, str, float | None, int]]
) -> Iterator[ev.Event]:
    """Hold what is left of batches that write to a full disk: all of it would fail in the same way.

    Who has made room releases it.
    """
    for number, why in full.items():
        yield from _held(state.batches[number], why, {row[1] for row in rows if row[0] == number})


def _held(batch: BatchState, why: str, ended: set[int]) -> Iterator[ev.Event]:
    """Hold the jobs of a batch that are queued, and those leased that have not started nor `ended` just now."""
    queued = spans_of(batch, _QUEUED)
    if queued:
        yield ev.Moved(batch.id, "hold", queued, why)
    leased = without(spans_of(batch, _LEASED), ended)
    if leased:
        yield ev.HoldWanted(batch.id, leased, reason=why)

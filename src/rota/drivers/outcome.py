"""How an allocation stands, decided from two witnesses: its provider, and what the job itself left behind."""

from typing import Literal, NamedTuple

from msgspec.structs import replace

from rota.drivers.api import Outcome
from rota.drivers.dialect import Seen

__all__ = ["Evidence", "Verdict", "judge"]

Verb = Literal["pend", "held", "run", "suspended", "complete", "fail", "abort", "unsure"]
VERBS: dict[str, Verb] = {"pending": "pend", "held": "held", "running": "run", "suspended": "suspended"}
"""Kind of what lives → its verb."""

NOT_ITS_FAULT = frozenset({"node-fail"})
"""Reasons of a provider that do not contradict a job which says that it had finished well before."""
OVER = frozenset({"exited", "completed", "failed", "aborted"})


class Evidence(NamedTuple):
    """All that is known of one allocation at one moment. A poll that failed makes no evidence."""

    seen: Seen | None
    """What the listing or else the history says; None: a good listing and the history know nothing of it."""
    own: Outcome | None = None
    """What the job itself wrote when it ended."""
    writes: bool = False
    """Whether such jobs write last words at all."""
    waited: bool = True
    """Long enough, since the provider said that it ended, for last words to be visible."""
    lingers: bool = False
    """It wrote its last words long ago."""
    gone: bool = False
    """Absent in so many good polls and for so long that it counts as vanished."""


class Verdict(NamedTuple):
    """What follows from the evidence; no verb: nothing yet, look again."""

    verb: Verb | None
    reason: str | None = None
    outcome: Outcome | None = None


WAIT = Verdict(None)


def judge(evidence: Evidence, trust_scheduler: bool = False) -> Verdict:
    """Decide by the matrix of provider × last words. Nothing is a success that one of the two did not see succeed."""
    seen, own = evidence.seen, evidence.own
    if seen is None:
        return _unlisted(evidence)
    if seen.kind == "unsure":
        return Verdict("unsure", _words(seen, "tells nothing"))
    if seen.kind in VERBS:
        if seen.kind == "running" and own is not None and evidence.lingers:
            return _by_own(own, f"it ended, and its provider still calls it {seen.native_state}")
        return Verdict(VERBS[seen.kind], seen.reason)
    if evidence.writes and own is None and not evidence.waited:
        return WAIT
    if not _has_status(own):
        own = None
    if succeeded(seen):
        return _provider_succeeds(seen, own)
    if seen.kind == "exited" and not _has_status(seen.outcome):
        return _no_status(seen, own, trust_scheduler)
    return _provider_fails(seen, own)


def succeeded(seen: Seen) -> bool:
    """Whether the provider itself saw the allocation end well."""
    if seen.kind == "completed":
        return seen.outcome is None or not _is_bad(seen.outcome)
    if seen.kind == "exited":
        return seen.outcome is not None and seen.outcome.exit_code == 0 and not _is_bad(seen.outcome)
    return False


def _is_bad(outcome: Outcome) -> bool:
    return bool(outcome.exit_code or outcome.signal or outcome.why)


def _has_status(outcome: Outcome | None) -> bool:
    return outcome is not None and (outcome.exit_code is not None or _is_bad(outcome))


def _unlisted(evidence: Evidence) -> Verdict:
    if evidence.own is not None:
        return _by_own(evidence.own, "its provider knows nothing of it any more")
    if evidence.gone:
        return Verdict(
            "abort",
            "vanished: its provider knows nothing of it any more, and it left no words of how it ended",
            Outcome(why="vanished"),
        )
    return WAIT


def _provider_succeeds(seen: Seen, own: Outcome | None) -> Verdict:
    outcome = _merge(seen.outcome, own)
    if own is not None and _is_bad(own) and seen.requeued:  # what ended well is the second start, which runs nothing
        words = f"the cluster put it back into its queue and started it again; {_told(own)}"
        return Verdict("abort", words, replace(outcome, why="requeue"))
    if own is not None and _is_bad(own):
        return Verdict("fail", f"{_told(own)}, though its provider says {seen.native_state}", outcome)
    return Verdict("complete", seen.reason, outcome if outcome.exit_code is not None else _with_code(outcome, 0))


def _provider_fails(seen: Seen, own: Outcome | None) -> Verdict:
    """The provider chooses between fail and abort; a status that the job wrote is stronger than the provider's."""
    verb: Verb = "abort" if seen.kind == "aborted" else "fail"
    why = seen.outcome.why if seen.outcome is not None else None
    if own is None:
        return Verdict(verb, _words(seen, None), seen.outcome or Outcome())
    if not _is_bad(own):
        if why in NOT_ITS_FAULT:
            return Verdict("complete", f"it had ended well; {_words(seen, None)}", own)
        merged = _merge(own, seen.outcome)
        return Verdict(verb, f"{_words(seen, None)}, though it says itself that it ended well", merged)
    return Verdict(verb, f"{_words(seen, None)}; {_told(own)}", _merge(seen.outcome, own))


def _no_status(seen: Seen, own: Outcome | None, trust_scheduler: bool) -> Verdict:
    if own is not None:
        return _by_own(own, None, seen.outcome)
    if trust_scheduler:
        return Verdict("complete", f"{_words(seen, None)}: no exit status is known", _with_code(seen.outcome, 0))
    return Verdict("fail", f"{_words(seen, None)}: it ended, and no exit status is known", seen.outcome or Outcome())


def _by_own(own: Outcome, remark: str | None, seen: Outcome | None = None) -> Verdict:
    reason = "; ".join(part for part in (_told(own) if _is_bad(own) else None, remark) if part)
    if own.exit_code is None and not _is_bad(own):
        return Verdict("fail", f"its last words have no exit status; {remark or ''}".rstrip("; "), _merge(seen, own))
    return Verdict("fail" if _is_bad(own) else "complete", reason or None, _merge(seen, own))


def _merge(first: Outcome | None, second: Outcome | None) -> Outcome:
    """The second outcome, completed by the first; but why it ended is said by the first, if it says so."""
    if first is None or second is None:
        return first or second or Outcome()
    status = second if second.exit_code is not None or second.signal is not None else first
    return Outcome(
        status.exit_code,
        status.signal,
        first.why or second.why,
        second.host or first.host,
        second.started if second.started is not None else first.started,
        second.ended if second.ended is not None else first.ended,
        second.cpu_s if second.cpu_s is not None else first.cpu_s,
        second.peak_memory if second.peak_memory is not None else first.peak_memory,
    )


def _with_code(outcome: Outcome | None, code: int) -> Outcome:
    return _merge(outcome, Outcome(exit_code=code))


def _words(seen: Seen, remark: str | None) -> str:
    return ": ".join(part for part in (f"native state {seen.native_state}", seen.reason, remark) if part)


def _told(own: Outcome) -> str:
    if own.signal:
        return f"by its own words it was killed by signal {own.signal}"
    if own.why:
        return f"by its own words it ended because of {own.why}"
    return f"by its own words it ended with exit code {own.exit_code}"

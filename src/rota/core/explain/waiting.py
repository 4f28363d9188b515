"""Dependencies in words: how each stands, and why a job was omitted."""

from collections.abc import Callable

from rota.core.awaited import targets
from rota.core.dependencies.following import element_reason
from rota.core.dependencies.looking import never
from rota.core.explain.account import Blocker, wait_words
from rota.core.scouting import judged
from rota.core.state import BatchState, State
from rota.core.stimuli import At
from rota.model.batch import Dependency
from rota.model.job import format_job
from rota.model.limits import local_text
from rota.model.tables import COMPLETED, JOB_STATES, REMOVED, SETTLED, WAITING

__all__ = ["omitted_reason", "standing", "time_blockers", "waiting_for"]


def waiting_for(state: State, batch: BatchState, wall: float, pos: int | None = None) -> str | None:
    """Why a WAITING job (None: those of the batch) waits, or None if nothing blocks it."""
    for dependency in batch.spec.after:
        if dependency.each and pos is not None:
            continue
        kind, text = standing(state, dependency, batch)
        if kind == "open" or (kind == "never" and not dependency.each):
            return text
    if pos is not None and (found := element_reason(state, batch, pos)) is not None:
        return found
    if batch.spec.not_before is not None and batch.spec.not_before > wall:
        return time_words(batch.spec.not_before, At(wall, 0.0))
    return None


def time_words(then: float, at: At) -> str:
    """That it waits for its time, in words."""
    return f"waits for its time ({wait_words(then - at.wall)} from now)"


def time_blockers(batch: BatchState, pos: int | None, at: At, how: Callable[[int], str]) -> list[Blocker]:
    """The times that a WAITING job (None: the first of its batch that can go on) waits for; `how` it failed before."""
    found = []
    if batch.scouting and (pos is None or pos >= batch.spec.scouts):
        words = f"waits for the scouts of its batch ({judged(batch).why}): what they use decides what it asks for"
        found.append(Blocker("scouts", words, False, None, f"rota modify {batch.id} --scouts off"))
    if batch.spec.not_before is not None and batch.spec.not_before > at.wall:
        then = batch.spec.not_before
        clock = local_text(int(then) + at.utc_offset_s)[:-3]
        words = f"waits for its time, {clock} ({wait_words(then - at.wall)} from now)"
        found.append(Blocker("time", words, False, then, f"rota modify {batch.id} --not-before now"))
    backing_off = [until for of, until in batch.until.items() if batch.states[of] == WAITING and pos in (None, of)]
    if backing_off and min(backing_off) > at.wall:
        then = min(backing_off)
        if pos is None:
            pos = next(of for of, until in batch.until.items() if batch.states[of] == WAITING and until == then)
        tries = f"try {batch.failures.get(pos, 0)} of {batch.template(pos).retries + 1}"
        why, job = how(pos), format_job(batch.id, batch.index(pos))
        words = f"failed ({tries}{f': {why}' if why else ''}) and is tried again in {wait_words(then - at.wall)}"
        found.append(Blocker("back-off", words, False, then, f"rota retry {job}"))
    return found


def standing(state: State, dependency: Dependency, batch: BatchState | None = None) -> tuple[str, str]:
    """(met, open or never; a sentence that says so) for a dependency of a batch; job by job: as far as all go."""
    what = dependency.target
    found = targets(state, dependency, batch)
    if found is None:
        return "open", f"waits for something named '{what[1:]}' to be added"
    left = good = bad = 0
    for other, low, high in found:
        counts = other.counts
        if low > 0 or high < other.count:
            counts = [other.states.count(number, low, high) for number in range(len(JOB_STATES))]
        left += sum(counts[:SETTLED])
        good += counts[COMPLETED]
        bad += sum(counts[SETTLED:REMOVED]) - counts[COMPLETED]
    if left:
        extra = f", {bad} did not succeed" if bad else ""
        each = ", each job for the one of its number" if dependency.each else ""
        live = " (and for any other that is given this name)" if dependency.live else ""
        return "open", f"waits for {what}{live}{each}: {left} of {left + good + bad} jobs not settled{extra}"
    why = never(dependency, good, bad)
    return "never" if why else "met", why


def omitted_reason(state: State, batch: BatchState, pos: int) -> str:
    """Why a job was omitted: its own reason if it depends on another job by job, or that of the batch."""
    found = element_reason(state, batch, pos) if batch.elements or batch.graph is not None else None
    return found or batch.omitted_why or "a dependency can never be met"

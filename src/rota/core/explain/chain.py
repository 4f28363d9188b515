"""Chains: from a job that waits, or was omitted, to the job at the root of it."""

from rota.core.awaited import Span, culprit, open_dependencies
from rota.core.explain.account import Account, Blocker, Link, Records, ago
from rota.core.explain.ended import how_it_ended, new_line
from rota.core.explain.line import Line
from rota.core.explain.live import running_since
from rota.core.explain.pending import Newest, pending, when_ready
from rota.core.explain.waiting import omitted_reason, time_blockers
from rota.core.state import BatchState, State
from rota.core.stimuli import At
from rota.model.batch import Dependency
from rota.model.job import format_job
from rota.model.tables import (
    HOLDING,
    JOB_STATES,
    KILLING,
    MISSING,
    OMITTED,
    PENDING,
    REMOVED,
    RUNNING,
    SETTLED,
    STARTING,
    UNSUCCESSFUL,
    WAITING,
)

__all__ = ["held_words", "omitted", "waiting"]

LONG = 50
"""Steps of a chain that are followed."""
SHOWN = 8
"""Steps of a chain that a sentence names."""
_FURTHEST = (HOLDING, MISSING, WAITING, PENDING, KILLING, STARTING, RUNNING)
"""States of jobs that are waited for: that which tells most of why they are not settled first."""


class Asked:
    """What a question about many jobs makes once."""

    def __init__(self, state: State, at: At, line: Line, newest: Newest, records: Records) -> None:
        self.state = state
        self.at = at
        self.line = line
        self.newest = newest
        self.records = records


def waiting(asked: Asked, batch: BatchState, pos: int | None) -> Account:
    """What a WAITING or HOLDING job (None: the first of its batch that can go on) waits for, to the root."""
    state, at = asked.state, asked.at
    blockers: list[Blocker] = []
    chain: list[Link] = []
    for dependency, spans in open_dependencies(state, batch, pos):
        if spans is None:
            name = dependency.target[1:]
            drop = f"rota modify {batch.id} --drop-after {dependency.target}"
            words = f"waits for something named '{name}' to be added"
            blockers.append(Blocker("dependency", words, False, None, drop))
            continue
        links, root = _follow(asked, dependency, spans, batch)
        blockers.append(Blocker("dependency", _words(dependency, spans, links, root, pos is None)))
        chain = chain or [*links[:-1], Link(links[-1].what, links[-1].state, root)]
    blockers += time_blockers(batch, pos, at, lambda of: _failure(asked, batch, of))
    if not blockers:
        blockers.append(Blocker("turn", "is about to become ready"))
    first = pos if pos is not None else max(0, batch.states.find(WAITING))
    told = " ".join(blocker.words for blocker in blockers)
    blockers += [each for each in when_ready(state, batch, first, at, asked.records) if each.words not in told]
    words = "; also: ".join(blocker.words for blocker in blockers)
    times = [blocker.until for blocker in blockers]
    start = max(times) if None not in times else None  # type: ignore[type-var]
    telling = next((blocker for blocker in blockers if blocker.lasting), blockers[0])
    short = telling.words + (f" (and {len(blockers) - 1} more)" if len(blockers) > 1 else "")
    commands = [blocker.command for blocker in blockers if blocker.command is not None]
    return Account(words, short, blockers, chain, start=start, commands=commands)


def _furthest(spans: list[Span]) -> tuple[BatchState, int] | None:
    """Of the jobs that are waited for, the one that is furthest from being settled."""
    for byte in _FURTHEST:
        for batch, low, high in spans:
            if not isinstance(batch, BatchState):
                continue  # it was put away, since it is settled
            if low == 0 and high == batch.count and not batch.counts[byte]:
                continue
            pos = batch.states.find(byte, low, high)
            if pos >= 0:
                return batch, pos
    return None


def _follow(asked: Asked, dependency: Dependency, spans: list[Span], batch: BatchState) -> tuple[list[Link], str]:
    """(the steps from a dependency to its root, what the root does, in words)."""
    state, seen = asked.state, {(batch.id, -1)}
    links: list[Link] = []
    while True:
        found = _furthest(spans)
        if found is None:
            return [*links, Link(dependency.target, "settled")], "is about to be looked at"
        other, pos = found
        byte = other.states[pos]
        what = _name(other, pos, spans)
        if byte != WAITING or len(links) >= LONG or (other.id, pos) in seen:
            links.append(Link(what, JOB_STATES[byte]))
            return links, _root(asked, other, pos)
        seen.add((other.id, pos))
        links.append(Link(what, "WAITING"))
        further = list(open_dependencies(state, other, pos))
        if not further or further[0][1] is None:
            return links, _root(asked, other, pos, further)
        dependency, spans = further[0][0], further[0][1]


def _name(batch: BatchState, pos: int, spans: list[Span]) -> str:
    """A job by its id, or a batch of one job by its number."""
    return str(batch.id) if batch.count == 1 else format_job(batch.id, batch.index(pos))


def _root(
    asked: Asked, batch: BatchState, pos: int, further: list[tuple[Dependency, list[Span] | None]] | None = None
) -> str:
    """What the job at the root of a chain does, so that it is not settled."""
    state, at, now = asked.state, asked.at, JOB_STATES[batch.states[pos]]
    if now == "WAITING":
        if further:
            return f"waits for something named '{further[0][0].target[1:]}' to be added"
        found = time_blockers(batch, pos, at, lambda of: _failure(asked, batch, of))
        return found[0].words if found else "is about to become ready"
    if now == "PENDING":
        account = pending(state, batch, pos, at, asked.line, asked.newest, asked.records, brief=True)
        return f"is PENDING: {account.short}"
    if now == "HOLDING":
        return held_words(batch, format_job(batch.id, batch.index(pos)))
    hosts = ", ".join(state.hosts(batch.live[pos])) if pos in batch.live else ""
    where = f" on {hosts}" if hosts else ""
    if now == "RUNNING":
        since = running_since(state, batch, pos, at)
        return f"RUNS{'' if since is None else f' since {ago(at.wall - since)}'}{where}"
    if now == "MISSING":
        contact = state.soft.contacts.get(batch.live[pos].runner)
        quiet = "" if contact is None else f": its runner has been silent for {ago(at.mono - contact.heard)}"
        return f"is MISSING{where}{quiet}"
    return f"is {now}{where}"


def _words(dependency: Dependency, spans: list[Span], links: list[Link], root: str, whole: bool) -> str:
    """`waits for 7 → 6 → 3.4, which RUNS since 12m on n3`; `whole`: said of all jobs of a batch."""
    what, path = dependency.target, [link.what for link in links]
    left = sum(other.states.count(byte, low, high) for other, low, high in spans for byte in range(SETTLED))
    total = sum(high - low - other.states.count(REMOVED, low, high) for other, low, high in spans)
    rest = ""
    if dependency.each:
        what = path[0] if not whole else f"{what}, each job for the one of its number"
    if total > 1 or what.startswith("@"):
        bad = sum(sum(other.states.count(byte, low, high) for byte in UNSUCCESSFUL) for other, low, high in spans)
        extra = f", {bad} did not succeed" if bad else ""
        extra += ", and any other that is given this name counts" if dependency.live else ""
        rest = f" ({left:,} of {total:,} jobs not settled{extra})"
    condition = {"failure": " to fail", "any": " to end"}.get(dependency.condition, "")
    steps = path if path[0] != what else path[1:]
    if len(steps) > SHOWN:
        steps = [*steps[: SHOWN - 2], "…", *steps[-2:]]
    arrows = "".join(f" → {step}" for step in steps)
    return f"waits for {what}{condition}{rest}{arrows}, which {root}"


def held_words(batch: BatchState, what: str) -> str:
    """Why a HOLDING job, or all that is HOLDING of its batch, does not go on."""
    why = f" ({batch.held_why})" if batch.held_why else ""
    return f"is held{why}: rota release {what} lets it go on"


# ---- OMITTED ---------------------------------------------------------------------------------------------------------


def omitted(asked: Asked, batch: BatchState, pos: int) -> Account:
    """Why a job was omitted, to the job that failed."""
    state, seen = asked.state, {(batch.id, pos)}
    links: list[Link] = []
    own, why = omitted_reason(state, batch, pos), ""
    here: tuple[BatchState, int] = (batch, pos)
    while len(links) < LONG:
        found = culprit(state, *here)
        if found is None or (found[0].id, found[1]) in seen:
            break
        seen.add((found[0].id, found[1]))
        here = found
        byte = here[0].states[here[1]]
        links.append(Link(format_job(here[0].id, here[0].index(here[1])), JOB_STATES[byte]))
        if byte != OMITTED:
            why = _failure(asked, *here)
            break
    if not links:
        return Account(own, own, commands=[f"rota retry {format_job(batch.id, batch.index(pos))}"])
    root = links[-1]
    path = " → ".join(link.what for link in links[:SHOWN])
    verb = {"FAILED": "failed", "ABORTED": "was aborted", "COMPLETED": "succeeded"}.get(root.state, f"is {root.state}")
    words = f"omitted because {path} {verb}{f': {why}' if why else ''}"
    if root.state not in ("FAILED", "ABORTED"):
        words = own
    links[-1] = Link(root.what, root.state, why)
    number = root.what.partition(".")[0]
    first = next((each.target for each in batch.spec.after if each.condition != "any"), None)
    account = Account(f"{words} ({own})" if words != own else own, words, [], links)
    account.commands = [f"rota retry {number} :unsuccessful"] if root.state != "COMPLETED" else []
    account.commands += [] if first is None else [f"rota modify {batch.id} --drop-after {first}"]
    return account


def _failure(asked: Asked, batch: BatchState, pos: int) -> str:
    """How a job that others depend on ended: `exit 3, disk quota exceeded`."""
    last = asked.records.last(batch.id, pos)
    if last is None:
        return batch.killed_why or ""
    line = new_line(last, asked.records.line(batch, pos))
    if last.reason in (None, "exit") and last.exit_code is not None:
        how = f"exit {last.exit_code}"
    elif last.reason == "killed":
        how = batch.killed_why or "killed"
    else:
        how = how_it_ended(last, batch.template(pos))
    return f"{how}, {line}" if line else how

"""Greetings: which processes an allocation can have, who replaces whom, and what a session begins with."""

from collections.abc import Iterator

from msgspec.structs import replace

from rota.core.decide.decision import Decision
from rota.core.decide.ends import find_live, give_back, lost
from rota.core.decide.gangs import parts_lost, parts_told, roots_told
from rota.core.decide.runners import resume, take_written
from rota.core.effects import Order
from rota.core.notes import Greeted
from rota.core.state import RunnerState, State
from rota.core.stimuli import Greet
from rota.model import events as ev
from rota.model.allocation import Allocation
from rota.model.needs import Amounts
from rota.model.site import SiteFacts

__all__ = ["greet", "replaced", "replaced_runners", "rivals", "stranger"]

PROCESSES_MOST = 1000
"""The most processes that one node of an allocation may have had, one after the other."""
_OVER = ("CLOSED", "EXPIRED")


# ---- who may come ---------------------------------------------------------------------------------------------------


def stranger(state: State, name: str | None, runner: str, replaces: str | None = None) -> str | None:
    """Why an allocation can have no such runner; None: it can.

    Its runners are TAG.ELEMENT.NODE.NONCE, one for each node at a time; those of older releases have no node and nonce.
    The only node is 0; of several each is called as its host is, and there are no more of them than it has nodes.
    """
    if name is None:
        return None
    allocation = state.allocations.get(name)
    if allocation is None:  # it is told to end, with all that it runs
        return None
    node = _node(allocation, runner)
    own, _, word = node.rpartition(".")
    most = max(allocation.nodes, int(dict(allocation.options).get("nodes", 1)))
    known = {node, *(_node(allocation, other.id) for other in state.runners_of(name))}
    fits = own == f"{allocation.tag}.{allocation.element}" and (word == "0" if most == 1 else bool(word))
    if allocation.direct or not fits or len(known) > most or runner.endswith("."):
        return f"allocation {name} has no runner {runner}"
    if replaces is not None and not f"{_node(allocation, replaces)}.".startswith(f"{own}."):
        return f"{runner} cannot replace {replaces}, which is not of allocation {name}"
    before = sum(_node(allocation, other.id) == node for other in state.runners_of(name))
    if before > PROCESSES_MOST and runner not in state.runners:
        return f"{node} has had {before} runners: no more"
    return None


def _node(allocation: Allocation, runner: str) -> str:
    """The name of the node of a runner: its id without the nonce of its process."""
    own = f"{allocation.tag}.{allocation.element}"
    return f"{own}.0" if runner in (allocation.tag, own) else runner.rpartition(".")[0]


def rivals(state: State, stimulus: Greet) -> list[RunnerState]:
    """The runners that are in the books for the node of the one that greets, under other names."""
    allocation = state.allocations.get(stimulus.allocation or "")
    if allocation is None:
        return []
    node = _node(allocation, stimulus.runner)
    return [
        runner
        for runner in state.runners_of(allocation.id)
        if runner.state not in _OVER and runner.id != stimulus.runner and _node(allocation, runner.id) == node
    ]


# ---- who replaces whom ----------------------------------------------------------------------------------------------


def replaced_runners(state: State, stimulus: Greet) -> list[RunnerState]:
    """The runners that one which greets replaces: those of its node, if it is certain that it came after them.

    It did if it was challenged after the last of their greetings was accepted (a late greeting of a dead process must
    not replace the living). One that may live is told to end, and its word awaited, unless its supervisor has seen the
    end of it (`replaces`), with that of all before it on this node.
    """
    own = state.runners.get(stimulus.runner)
    if own is not None and (own.state in _OVER or stimulus.replaces is None):
        return []  # it was replaced itself, or is back
    others, named = rivals(state, stimulus), stimulus.replaces
    if named is None:
        waits = any(_may_be_newer(state, stimulus, rival) or _may_live(state, rival) for rival in others)
        return [] if waits else others
    vouched = state.runners.get(named)
    if vouched is not None and vouched.state not in _OVER and vouched not in others and vouched is not own:
        others += [vouched] if vouched.allocation == stimulus.allocation else []
    return [
        rival
        for rival in others
        if rival.id == named
        or not (_may_be_newer(state, stimulus, rival) or (rival.host != stimulus.host and _may_live(state, rival)))
    ]


def _may_be_newer(state: State, stimulus: Greet, rival: RunnerState) -> bool:
    challenged = stimulus.at.mono if stimulus.challenged is None else stimulus.challenged
    greeted = state.soft.contacts[rival.id].greeted
    return greeted > 0 and greeted >= challenged


def _may_live(state: State, rival: RunnerState) -> bool:
    return state.soft.contacts[rival.id].connected and rival.state != "MISSING"


def replaced(state: State, stimulus: Greet) -> Iterator[Decision]:
    """Give up the runners that one which greets replaces, all in the commit that lets it in.

    What they could not send comes first. One that never greeted is entered too, so that it is turned away if it does
    yet.
    """
    allocation, name = state.allocations.get(stimulus.allocation or ""), stimulus.replaces
    if _turned_away(state, stimulus) is not None:
        return
    if name is not None and name not in state.runners:
        site = allocation.site if allocation is not None else "local"
        greeted = ev.RunnerGreeted(name, stimulus.allocation, 0, 0, stimulus.host, 0, Amounts(), site=site)
        yield Decision([greeted, ev.RunnerMoved(name, "lose", f"{stimulus.runner} replaced it")])
    for old in replaced_runners(state, stimulus):
        for words in stimulus.written:
            if words.runner == old.id:
                yield take_written(state, stimulus, old, words)
        yield _give_up(state, stimulus, old)


def _give_up(state: State, stimulus: Greet, old: RunnerState) -> Decision:
    """Give up one runner that is replaced. If nobody saw its end, that what it ran may still run is written down."""
    sure = stimulus.replaces is not None or old.host == stimulus.host
    how = "died, and" if sure else "was started again elsewhere:"
    why = f"its runner on {old.host} {how} {stimulus.runner} replaced it"
    running = bool(old.jobs or old.parts)
    decision = lost(state, old.id, list(old.jobs), why, stimulus.at)
    parts_lost(state, decision, old, why)
    decision.events.append(ev.RunnerMoved(old.id, "lose", why))
    if running and not sure:
        said = f"nobody saw the end of what {old.id} ran on {old.host} when {stimulus.runner} came on {stimulus.host}"
        decision.events.append(ev.Noted(stimulus.allocation or "", "possible overlap", said))
    return decision


# ---- the greeting itself --------------------------------------------------------------------------------------------


def _turned_away(state: State, stimulus: Greet) -> str | None:
    """Why a runner is to end; None: it may come."""
    runner = state.runners.get(stimulus.runner)
    if runner is not None:
        if runner.direct or runner.allocation != stimulus.allocation:
            return f"the runner {stimulus.runner} is of another allocation"
        if runner.state in _OVER:
            return "this runner was given up"
        if (runner.host, runner.output) != (stimulus.host, stimulus.output):
            return f"the runner {stimulus.runner} is on {runner.host}, with its output in {runner.output}"
    allocation = state.allocations.get(stimulus.allocation or "")
    if stimulus.allocation is not None and (allocation is None or allocation.state.endswith("ED")):
        return f"allocation {stimulus.allocation} is over or unknown"
    return None


def greet(state: State, stimulus: Greet) -> Decision:
    """Open a session for a runner.

    Leased jobs that it does not hold never reached it and go back; jobs that it should not hold it is told to end.
    """
    decision = Decision()
    runner = state.runners.get(stimulus.runner)
    why = _turned_away(state, stimulus)
    if why is not None:
        decision.effects.append(Order(stimulus.runner, 0, "expired", [], why))
        return decision
    if runner is not None and stimulus.connect <= runner.connect:
        if stimulus.connect == runner.connect:
            decision.notes.append(Greeted(runner.id, stimulus.clock))
        return decision  # an old greeting that comes late
    if runner is None and (others := rivals(state, stimulus)):
        _wait_for(state, decision, stimulus, others)
        return decision
    allocation = state.allocations.get(stimulus.allocation or "")
    session = 1 if runner is None else runner.session + 1
    decision.events.append(_greeted(state, stimulus, allocation, session))
    if allocation is not None and allocation.state in ("SUBMITTING", "PENDING"):
        decision.events.append(ev.AllocationMoved(allocation.id, "run", at=stimulus.at.wall))
    if allocation is not None and runner is None and allocation.state == "KILLING":
        decision.events.append(ev.RunnerMoved(stimulus.runner, "drain", allocation.reason))
    decision.notes.append(Greeted(stimulus.runner, stimulus.clock))
    if runner is not None:
        _compare(state, decision, runner, stimulus)
    strangers = [job for job in stimulus.held if find_live(state, stimulus.runner, job) is None]
    if strangers:
        decision.effects.append(Order(stimulus.runner, session, "kill", strangers, "not this runner's any more"))
    if stimulus.holds:
        parts_told(state, decision, stimulus.runner, session, stimulus.holds)
    return decision


def _wait_for(state: State, decision: Decision, stimulus: Greet, others: list[RunnerState]) -> None:
    """Let a runner greet again: it may be older than another of its node, or that one may live and is to end first."""
    for rival in others:
        if not _may_be_newer(state, stimulus, rival) and _may_live(state, rival):
            why = f"its provider has started {stimulus.runner} in its place"
            decision.drain(rival, why)
            decision.effects.append(Order(rival.id, rival.session, "expired", [], why))
    names = ", ".join(rival.id for rival in others)
    decision.effects.append(Order(stimulus.runner, 0, "again", [], f"greet again: {names} is not known to be over"))


def _compare(state: State, decision: Decision, runner: RunnerState, stimulus: Greet) -> None:
    """Take back what a runner that is back should hold and does not."""
    held = set(stimulus.held)
    stay = roots_told(state, decision, runner, held)
    missing = [
        job
        for job in runner.jobs
        if job not in stay
        and (job[0], state.batches[job[0]].index(job[1]), state.batches[job[0]].live[job[1]].attempt) not in held
    ]
    give_back(state, decision, runner, missing, 0, "its lease never reached the runner")
    if runner.state == "MISSING":
        resume(state, decision, runner, set(missing))


# ---- what it brings -------------------------------------------------------------------------------------------------


def _greeted(state: State, stimulus: Greet, allocation: Allocation | None, session: int) -> ev.RunnerGreeted:
    """The event of a greeting, with no more than the allocation was granted."""
    site = allocation.site if allocation is not None else "local"
    facts, until, tags = state.soft.sites.get(site), stimulus.until, stimulus.tags
    capacity = stimulus.capacity
    if allocation is not None:
        capacity = _granted(capacity, allocation, facts)
        if allocation.time_s is not None:
            latest = stimulus.at.wall + allocation.time_s
            until = latest if until is None else min(until, latest)
        if facts is not None:
            offered = {*facts.tags, *(tag for queue in facts.queues for tag in queue.tags)}
            tags = tuple(tag for tag in tags if tag in offered)
    return ev.RunnerGreeted(
        stimulus.runner,
        stimulus.allocation,
        stimulus.connect,
        session,
        stimulus.host,
        stimulus.pid,
        _with_resources(capacity, facts, allocation),
        tags,
        until,
        stimulus.output,
        site,
        gangs=stimulus.gangs,
    )


def _granted(capacity: Amounts, allocation: Allocation, facts: SiteFacts | None) -> Amounts:
    """What a runner offers, as far as its allocation was granted it: what was asked for, or a whole node."""
    nodes = [] if facts is None else [facts.node, *(queue.node for queue in facts.queues)]
    whole = facts is None or facts.whole

    def most(name: str) -> int:
        told: int = getattr(capacity, name)
        asked: int = getattr(allocation.capacity, name)
        largest = max((getattr(node, name) for node in nodes), default=0)
        if whole or (not asked and name == "memory"):  # nobody was asked for less than there is
            unknown = not asked and not largest and (name != "gpus" or not nodes)  # a node without GPUs has none
            return told if unknown else min(told, max(asked, largest))
        return min(told, asked)

    return replace(capacity, cores=most("cores"), memory=most("memory"), disk=most("disk"), gpus=most("gpus"))


def _with_resources(capacity: Amounts, facts: SiteFacts | None, allocation: Allocation | None) -> Amounts:
    """What a node has, with the named resources that nobody but us counts.

    A whole node has those of the site's nodes, a part of one what its allocation was asked for.
    """
    if facts is None or capacity.named:
        return capacity
    named = facts.node.named if facts.whole or allocation is None else allocation.capacity.named
    if not named:
        return capacity
    shared = dict(facts.shared)
    return replace(capacity, named=tuple(pair for pair in named if pair[0] not in shared))

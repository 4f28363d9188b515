"""Which settled batches may be forgotten.

A batch stays while a job of it is not settled, while a batch that stays depends on it by its number, and while it is
the last of its name that a batch that stays depends on: so a retry finds what it depends on.
"""

from rota.core.decide.decision import Decision
from rota.core.selection import select, states_pattern, wanted_states
from rota.core.settled import Settled, whole
from rota.core.state import BatchState, State
from rota.core.stimuli import Prune
from rota.model import events as ev
from rota.model.errors import UsageError
from rota.model.selector import parse_selector
from rota.model.tables import REMOVED

__all__ = ["prune"]

AT_ONCE = 1_000
"""How many batches one event takes. `more` in the answer tells the client to ask again."""


def prune(state: State, stimulus: Prune) -> Decision:
    """Forget the settled batches that are selected, as far as they may be."""
    selector = stimulus.selector
    if any(first is not None for _, first, _ in selector.spans):
        raise UsageError("prune forgets whole batches: give 7 or @name, not single jobs (rota remove takes these)")
    left: dict[str, int] = {}
    chosen: set[int] = set()
    unwanted = states_pattern(set(range(REMOVED)) - wanted_states(selector)) if selector.states else None
    last = stimulus.at.wall - stimulus.older_than_s
    for batch in {batch.id: batch for batch, _, _ in select(state, selector)}.values():
        if batch.unsettled:
            _count(left, "is not settled")
        elif isinstance(batch, BatchState) and batch.closing:
            _count(left, "has ended on some of its nodes only")
        elif unwanted is not None and unwanted.search(batch.states):
            _count(left, "has jobs in other states")
        elif stimulus.older_than_s and (batch.submitted > last or batch.id in stimulus.young):
            _count(left, "is too young")
        else:
            chosen.add(batch.id)
    busy = _in_flight(state) & chosen
    chosen -= busy
    _count(left, "was leased a moment ago", len(busy))
    if stimulus.keep:
        newest = set(sorted(chosen)[-stimulus.keep :])
        chosen -= newest
        _count(left, "is among the newest that are to be kept", len(newest))
    _count(left, "is needed by a batch that depends on it and stays", _keep_needed(state, chosen))
    numbers = sorted(chosen)
    taken = numbers if stimulus.dry_run else numbers[:AT_ONCE]
    batches = [batch for batch in map(state.batches.peek, taken) if batch is not None]
    decision = Decision(
        reply={
            "batches": len(taken),
            "jobs": sum(batch.count - batch.counts[REMOVED] for batch in batches),
            "sample": [str(number) for number in numbers[: state.settings.sample]],
            "skipped": [{"reason": reason, "batches": count} for reason, count in left.items()],
            "more": len(numbers) > len(taken),
        }
    )
    if taken and not stimulus.dry_run:
        decision.events.append(ev.Pruned(taken, stimulus.at.wall))
    return decision


def _count(left: dict[str, int], reason: str, count: int = 1) -> None:
    if count:
        left[reason] = left.get(reason, 0) + count


def _in_flight(state: State) -> set[int]:
    """Batches that messages to runners may still have to name."""
    contacts = state.soft.contacts.values()
    leased = {job[0] for contact in contacts for sent in contact.unacked.values() for job in sent.jobs}
    return leased | {job[0] for contact in contacts for job in contact.given_up}


def _keep_needed(state: State, chosen: set[int]) -> int:
    """Take out of `chosen` the batches that those which stay depend on; returns how many."""
    before = len(chosen)
    staying = [(number, True) for number in state.batches if number not in chosen]
    while staying:
        number, of_itself = staying.pop()
        kept = state.batches.peek(number)
        if kept is None or (isinstance(kept, Settled) and not kept.edges):
            continue
        batch = whole(kept)
        for dependency in batch.needed:
            selector = parse_selector([dependency.target])
            needed = {target for target, _, _ in selector.spans} & chosen
            chosen -= needed
            staying.extend((target, True) for target in needed)
            for name in selector.names if of_itself else ():
                needed = _needed_by_name(state, batch, name, chosen)
                chosen -= needed
                staying.extend((target, False) for target in needed)
    return before - len(chosen)


def _needed_by_name(state: State, batch: BatchState, name: str, chosen: set[int]) -> set[int]:
    """The chosen batches of a name that a batch needs: all it depends on while it is not settled, then the newest.

    A batch that stays only for that needs none in turn, or a chain of one name would stay for ever.
    """
    named = [number for number in state.names.get(name, ()) if number != batch.id]
    earlier = [number for number in named if number < batch.id] or named
    if batch.unsettled:
        return chosen.intersection(earlier)
    return {earlier[-1]} if earlier and chosen.issuperset(earlier) else set()

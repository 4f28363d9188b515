"""Gangs: jobs that run on several nodes at once. What their parts say, what becomes of a gang that loses one.

The attempt, its members and all charges are one event. Then the parts are asked to hold, and once all have confirmed
the root is sent its lease. Ends go the other way: the root first; on its word, or a witness's, the parts are released.
"""

from collections.abc import Collection, Iterable, Iterator

from rota.core.decide.decision import Decision
from rota.core.decide.ends import find_job, give_back
from rota.core.effects import Hold, Lease, Order
from rota.core.notes import Heard, PartsTold, RootTold
from rota.core.soft import Key, LeasedJob, Member
from rota.core.state import BatchState, Live, RunnerState, State
from rota.core.stimuli import Held, HoldRow, Released
from rota.model import events as ev
from rota.model.tables import KILLING, MISSING, RUNNING, STARTING

__all__ = [
    "are_all_back", "held", "part_at", "parts_lost", "parts_orders", "parts_told", "released", "root_leases",
    "roots_told", "settle_unsent",
]  # fmt: skip

_UNSTARTED = "nothing of it had been started"


# ---- what runners say of their parts --------------------------------------------------------------------------------


def held(state: State, stimulus: Held) -> Decision:
    """Take note of the parts that a runner holds, and have it release those that it should not."""
    decision = Decision()
    runner = state.runners.get(stimulus.runner)
    if runner is None or runner.session != stimulus.session or runner.state in ("CLOSED", "EXPIRED"):
        return decision
    decision.notes.append(Heard(runner.id, stimulus.at.mono, 0.0, 0))
    parts_told(state, decision, runner.id, runner.session, stimulus.holds)
    return decision


def parts_told(state: State, decision: Decision, runner_id: str, session: int, holds: Iterable[HoldRow]) -> None:
    """Take note of all parts that a runner holds now."""
    told = {(number, index, attempt): address for number, index, attempt, address in holds}
    runner = state.runners.get(runner_id)
    strange = frozenset(job for job in told if part_at(state, runner, job) is None)
    decision.notes.append(PartsTold(runner_id, told, strange))
    if strange:
        why = "not this runner's any more"
        decision.effects.append(Order(runner_id, session, "release", sorted(strange), why))


def part_at(state: State, runner: RunnerState | None, job: Key) -> tuple[BatchState, int] | None:
    """(batch, position) of a part that this runner should hold, or has yet to release; else None."""
    found = find_job(state, job[0], job[1])
    if runner is None or found is None or (job[0], found[1], job[2]) not in runner.parts:
        return None
    return found


def released(state: State, stimulus: Released) -> Decision:
    """Give back the parts of which a runner says that nothing is left. One that it never held breaks its gang."""
    decision = Decision()
    runner = state.runners.get(stimulus.runner)
    if runner is None or runner.session != stimulus.session or runner.state in ("CLOSED", "EXPIRED"):
        return decision
    decision.notes.append(Heard(runner.id, stimulus.at.mono, 0.0, 0))
    rows: dict[tuple[int, int, int], None] = {}
    for job in stimulus.jobs:
        found = part_at(state, runner, job)
        if found is not None:
            rows[job[0], found[1], job[2]] = None
    if rows:
        decision.events.append(ev.Released(runner.id, list(rows)))
        _break(state, decision, rows, f"{runner.host} gave up its part")
    return decision


def roots_told(state: State, decision: Decision, runner: RunnerState, lists: Collection[Key]) -> set[tuple[int, int]]:
    """Roots of gangs whose leases a runner that greets does not list because they were not sent: these stay.

    After a restart only what it lists tells which were.
    """
    soft, stay = state.soft, set()
    for job in runner.jobs if state.parts or soft.sent or soft.unsent else ():
        batch, live = state.batches[job[0]], state.batches[job[0]].live[job[1]]
        if not live.parts:
            continue
        listed = (batch.id, batch.index(job[1]), live.attempt) in lists
        if not listed and job not in soft.sent:
            stay.add(job)
        if job not in soft.sent and job not in soft.unsent:
            decision.notes.append(RootTold(job, listed))
    return stay


def are_all_back(state: State, live: Live, back: str) -> bool:
    """Whether every member of an attempt is heard of, now that this runner is back."""
    names = (live.runner, *(name for name, _ in live.parts))
    return all(name == back or name not in state.runners or state.runners[name].state != "MISSING" for name in names)


def live_part(state: State, key: tuple[int, int, int]) -> Live | None:
    """The live attempt that a part belongs to; None: it is over, and the part is to be released."""
    live = state.batches[key[0]].live.get(key[1])
    return live if live is not None and live.attempt == key[2] else None


# ---- a lost part ----------------------------------------------------------------------------------------------------


def parts_lost(
    state: State,
    decision: Decision,
    runner: RunnerState,
    why: str,
    keys: Iterable[tuple[int, int, int]] | None = None,
    gone: Collection[str] = (),
) -> None:
    """Give back parts (None: all) of a runner on a witness's word; the gangs that live are broken.

    `gone` are runners that are lost with it: a gang whose root is among them is lost anyway, once.
    """
    rows = list(runner.parts if keys is None else keys)
    if rows:
        decision.events.append(ev.Released(runner.id, rows, why))
        alive = [key for key in rows if (live := live_part(state, key)) is not None and live.runner not in gone]
        _break(state, decision, alive, f"it lost its part on {runner.host}: {why}")


def _break(state: State, decision: Decision, keys: Iterable[tuple[int, int, int]], why: str) -> None:
    """Break the gangs of these parts that live, unless the decision has broken or ended them already."""
    known = {(event.batch, event.pos) for event in decision.events if isinstance(event, ev.GangBroken)}
    known |= {row[:2] for event in decision.events if isinstance(event, ev.Ended) for row in event.rows}
    for key in keys:
        if live_part(state, key) is not None and key[:2] not in known and key[1] not in state.batches[key[0]].broken:
            decision.events.append(ev.GangBroken(key[0], key[1], why))


# ---- what is to be said ---------------------------------------------------------------------------------------------


def parts_orders(state: State, runner: RunnerState) -> Iterator[Hold | Order]:
    """What stands for the parts of a runner: to hold those that it has not confirmed, to release those that are over.

    Both are repeated until they are answered.
    """
    confirmed = state.soft.contacts[runner.id].confirmed
    holds: list[LeasedJob] = []
    over: list[Key] = []
    for key, slot in runner.parts.items():
        job = (key[0], state.batches[key[0]].index(key[1]), key[2])
        if live_part(state, key) is None:
            over.append(job)
        elif job not in confirmed:
            holds.append((*key, slot))
    if holds:
        yield Hold(runner.id, runner.session, holds)
    if over:
        yield Order(runner.id, runner.session, "release", over)


def settle_unsent(state: State) -> Decision:
    """Settle gangs that are to end, or have a silent member, and whose root was never sent its lease.

    Nobody started anything, and nobody can: only the root is told of the others. So a silent part need not be awaited.
    """
    decision = Decision()
    for number, pos in state.soft.unsent:
        batch = state.batches[number]
        if batch.states[pos] in (KILLING, MISSING) or pos in batch.hold_wanted or pos in batch.broken:
            live = batch.live[pos]
            why = "a node of it fell silent before it was started" if batch.states[pos] == MISSING else _UNSTARTED
            give_back(state, decision, state.runners[live.runner], [(number, pos)], 0, why)
            key = (number, pos, live.attempt)
            for name, _ in live.parts:
                if (
                    name in state.runners
                    and state.runners[name].state == "MISSING"
                    and key in state.runners[name].parts
                ):
                    decision.events.append(ev.Released(name, [key], _UNSTARTED))
    return decision


def root_leases(state: State) -> list[Lease]:
    """Leases for roots all of whose parts have confirmed."""
    leases: dict[str, Lease] = {}
    for number, pos in state.soft.unsent:
        batch = state.batches[number]
        live = batch.live[pos]
        members = _members(state, batch, pos, live) if batch.states[pos] in (STARTING, RUNNING) else None
        if members is None:
            continue
        runner, contact = state.runners[live.runner], state.soft.contacts[live.runner]
        lease = leases.get(runner.id)
        if lease is None:
            lease = Lease(runner.id, runner.session, contact.lease_n + 1, contact.clock, [], {}, {})
            leases[runner.id] = lease
        lease.jobs.append((number, pos, live.attempt, live.slot))
        lease.slots[live.slot] = runner.slots[live.slot]
        lease.gangs[number, pos] = members
    return list(leases.values())


def _members(state: State, batch: BatchState, pos: int, live: Live) -> tuple[Member, ...] | None:
    """The nodes of a gang, root first; None: not all of them are there and have confirmed."""
    job = (batch.id, batch.index(pos), live.attempt)
    out = []
    for name, slot in ((live.runner, live.slot), *live.parts):
        runner, contact = state.runners[name], state.soft.contacts[name]
        is_root = name == live.runner
        if not contact.connected or runner.state == "MISSING" or not (is_root or job in contact.confirmed):
            return None
        out.append(Member(name, runner.host, contact.confirmed.get(job, ""), slot))
    return tuple(out)

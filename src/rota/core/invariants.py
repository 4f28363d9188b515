"""Invariants: what must hold after every step. On in tests and the simulator, sampled in production."""

from collections.abc import Iterator

from rota.core.census import Census
from rota.core.dependencies.following import consequences
from rota.core.dependencies.meaning import tally, told_of, waits_of
from rota.core.evolve.jobs import uncounted
from rota.core.graph import CLASSES, CODES, OPEN
from rota.core.state import BatchState, State
from rota.model.graph import MEMBER
from rota.model.needs import Amounts, Needs
from rota.model.slot import Slot
from rota.model.tables import ACTIVE, HOLDING, JOB_STATES, PENDING, SETTLED, WAITING

__all__ = ["check"]


def check(state: State) -> None:
    """Raise AssertionError naming the first invariant that does not hold."""
    for problem in problems(state):
        raise AssertionError(problem)


def problems(state: State) -> Iterator[str]:
    """Every breach, in words."""
    ready: dict[int, int] = {}
    for batch in state.batches.values():
        yield from _batch(state, batch)
        for template, queue in enumerate(batch.queues):
            ready[batch.shapes[template]] = ready.get(batch.shapes[template], 0) + queue.count
    for shape in state.shapes:
        if shape.ready != ready.get(shape.id, 0):
            yield f"shape {shape.id}: {shape.ready} ready, its batches say {ready.get(shape.id, 0)}"
    if state.ready != sum(ready.values()):
        yield f"{state.ready} jobs are ready, the batches say {sum(ready.values())}"
    yield from _runners(state)
    yield from _census(state)
    yield from _ledger(state)


def _batch(state: State, batch: BatchState) -> Iterator[str]:
    counts = [batch.states.count(number) for number in range(len(JOB_STATES))]
    if counts != batch.counts:
        yield f"batch {batch.id}: counts {batch.counts} are not {counts}"
    states = batch.states
    # As many jobs are active as have a live attempt, and all of the latter are: so both are the same jobs.
    lives = sum(counts[number] for number in ACTIVE)
    if lives != len(batch.live) or any(states[pos] not in ACTIVE for pos in batch.live):
        for pos, byte in enumerate(states):
            if (byte in ACTIVE) != (pos in batch.live):
                article = "a" if pos in batch.live else "no"
                yield f"job {batch.id}.{batch.index(pos)}: {JOB_STATES[byte]} and {article} live attempt"
    pending = [0] * len(batch.queues)
    if len(pending) == 1:
        pending[0] = counts[PENDING]
    elif counts[PENDING]:
        for pos, byte in enumerate(states):
            if byte == PENDING:
                pending[batch.template_of(pos)] += 1
    if pending != [queue.count for queue in batch.queues]:
        yield f"batch {batch.id}: queues count {[queue.count for queue in batch.queues]}, {pending} are PENDING"
    yield from _dependencies(state, batch)
    for pos, live in batch.live.items():
        runner = state.runners.get(live.runner)
        if runner is None or (batch.id, pos) not in runner.jobs:
            yield f"job {batch.id}.{batch.index(pos)}: its runner {live.runner} does not hold it"
        if live.attempt != batch.attempts[pos]:
            newest = batch.attempts[pos]
            yield f"job {batch.id}.{batch.index(pos)}: attempt {live.attempt} lives, {newest} is the newest"
    yield from _gangs(state, batch)


def _node_counts(needs: Needs) -> tuple[int, int]:
    """(least, most) nodes that a job with these needs is on."""
    return (1, needs.cores_most or needs.cores) if needs.span else (needs.nodes, max(needs.nodes, needs.nodes_most))


def _gangs(state: State, batch: BatchState) -> Iterator[str]:
    """A live gang is whole, or is known to be broken; one that is over is not ready while anyone holds a part."""
    for pos, live in batch.live.items():
        key, job = (batch.id, pos, live.attempt), f"job {batch.id}.{batch.index(pos)}"
        counts = [_node_counts(needs) for needs in state.shapes[live.slot.shape].shape.needs.alternatives()]
        has = len(live.parts) + 1
        if not any(least <= has <= most for least, most in counts) and not state.runners[live.runner].direct:
            yield f"{job}: attempt {live.attempt} was leased on {has} nodes of {counts}"
        lacks = [name for name, _ in live.parts if name not in state.runners or key not in state.runners[name].parts]
        if lacks and pos not in batch.broken:
            yield f"{job}: no part of attempt {live.attempt} is reserved on {lacks}, and it is not broken"
        for name, slot in live.parts:
            if name not in lacks and state.runners[name].parts[key] != slot:
                yield f"{job}: its part on {name} is not the one that was leased"
    for pos, names in batch.closing.items():
        job, key = f"job {batch.id}.{batch.index(pos)}", (batch.id, pos, batch.attempts[pos])
        if pos in batch.live or batch.states[pos] == PENDING:
            yield f"{job}: {JOB_STATES[batch.states[pos]]} while {names} hold parts of an attempt that is over"
        if not names or any(name not in state.runners or key not in state.runners[name].parts for name in names):
            yield f"{job}: not all of {names} hold a part of attempt {key[2]}"
    if not batch.broken.keys() <= batch.live.keys():
        yield f"batch {batch.id}: {batch.broken} are broken and not all live"


def _dependencies(state: State, batch: BatchState) -> Iterator[str]:
    """A batch that waits will be told when to look again, and none of its jobs is overdue."""
    for waits in waits_of(batch):
        if isinstance(waits.waits, str):
            if waits.token not in state.unnamed.get(waits.waits, ()) or state.names.get(waits.waits):
                yield f"batch {batch.id} waits for something named {waits.waits} and will not be told"
        elif waits.waits is not None:
            number, what = waits.waits
            other = state.batches[number]
            if isinstance(what, str):
                open_ = tally(other, what)[0]
            else:
                open_ = other.unsettled if what < 0 else other.states[what] < SETTLED
            if waits.token not in told_of(other, what) or not open_ or not other.followed:
                yield f"batch {batch.id} waits for {waits.waits} and will not be told"
    yield from _graph(batch)
    # A job that waits for its next try is looked at when that is due: nobody has to tell its batch before.
    waiting = batch.counts[WAITING] + batch.counts[HOLDING] - len(batch.until)
    if (batch.edges or batch.graph is not None) and batch.spec.not_before is None and waiting > 0:
        waited = batch.waits
        overdue = list(consequences(state, batch, 0, batch.count, float("-inf")))
        one_by_one = batch.elements or batch.graph is not None  # then it is told of each job that is settled
        if batch.waits != waited and not one_by_one:
            yield f"batch {batch.id} waits for {batch.waits} and would not have been told"
        for event in overdue:
            for low, high in zip(event.spans[::2], event.spans[1::2], strict=True):
                late = [pos for pos in range(low, high) if event.verb == "omit" or pos not in batch.until]
                if late:
                    yield f"batch {batch.id}: {event.verb} is overdue at {late}"


def _graph(batch: BatchState) -> Iterator[str]:
    """What a graph has counted is what the states of its jobs say."""
    graph = batch.graph
    if graph is None:
        return
    classes = batch.states.translate(CLASSES)
    if classes != graph.classes[: batch.count]:
        late = [pos for pos in range(batch.count) if classes[pos] != graph.classes[pos]]
        yield f"batch {batch.id}: its graph does not know of {late}"
    left, never = [0] * batch.count, [0] * batch.count
    ends = [0] * len(graph.ends)
    for pos in range(batch.count):
        for link in graph.parents(pos):
            if link & 3 == MEMBER:
                ends[(link >> 2) - batch.count] += classes[pos] == OPEN
            else:
                code = CODES[link & 3][graph.classes[link >> 2]]
                left[pos] += code == 1
                never[pos] += code == 2
    if left != list(graph.left) or never != list(graph.never) or ends != list(graph.ends):
        yield f"batch {batch.id}: its graph counts {graph.left}, {graph.never}, {graph.ends}: {left}, {never}, {ends}"


def _runners(state: State) -> Iterator[str]:
    for runner in state.runners.values():
        held: dict[Slot, int] = {}
        for number, pos in runner.jobs:
            live = state.batches[number].live.get(pos)
            if live is None or live.runner != runner.id:
                yield f"runner {runner.id} holds job at {number}/{pos}, which is not its"
                continue
            held[live.slot] = held.get(live.slot, 0) + 1
        if held != runner.held:
            yield f"runner {runner.id}: holds {held}, books say {runner.held}"
        for slot, count in runner.slots.items():
            if not 0 < count <= held.get(slot, 0):
                yield f"runner {runner.id}: {count} slots of {slot} for {held.get(slot, 0)} leases"
        if runner.state in ("CLOSED", "EXPIRED") and (runner.jobs or runner.parts):
            yield f"runner {runner.id} is {runner.state} and holds jobs"
        for number, pos, attempt in runner.parts:
            batch = state.batches.get(number)
            live = batch.live.get(pos) if batch is not None else None
            members = [name for name, _ in live.parts] if live is not None and live.attempt == attempt else ()
            if runner.id not in (members or (batch.closing.get(pos, ()) if batch is not None else ())):
                yield f"runner {runner.id} holds a part of {number}/{pos} attempt {attempt}, which is not known"
    if state.parts != sum(len(runner.parts) for runner in state.runners.values()):
        yield f"{state.parts} parts are said to be reserved"


def _census(state: State) -> Iterator[str]:
    """Runners and allocations are counted as they are."""
    kept, census = state.census, Census()
    for runner in state.runners.values():
        census.runner(runner.id, "", runner.state)
        if runner.allocation is not None:
            census.of.setdefault(runner.allocation, {})[runner.id] = None
    for allocation in state.allocations.values():
        census.count(allocation, 1)
    for name in Census.__slots__:
        if name == "changed":
            continue
        have, found = getattr(kept, name), getattr(census, name)
        if name in ("live", "coming", "in_queue"):  # a site with none may be left in the books
            have = {site: count for site, count in have.items() if count}
        if have != found:
            yield f"census: {name} are {have} in the books, {found} in fact"


def _ledger(state: State) -> Iterator[str]:
    used: dict[str, Amounts] = {}
    limits: dict[str, int] = {}
    held: dict[int, int] = {}
    for runner in state.runners.values():
        for slot, count in runner.slots.items():
            held[slot.shape] = held.get(slot.shape, 0) + count
            shape = state.shapes[slot.shape].shape
            for location in state.ledger.path(runner.location):
                used[location.id] = used.get(location.id, Amounts()).plus(slot.amounts, count)
            for name in shape.limits:
                limits[name] = limits.get(name, 0) + count
        for slot in runner.parts.values():
            for location in state.ledger.path(runner.location):
                used[location.id] = used.get(location.id, Amounts()).plus(slot.amounts)
    for batch in state.batches.values():
        if batch.loose:
            limits[f"#{batch.id}"] = limits.get(f"#{batch.id}", 0) + batch.loose
        if batch.loose != (uncounted(state, batch) if batch.spec.at_once is not None else 0):
            yield f"batch {batch.id}: {batch.loose} live jobs are said not to count against its own limit"
    for shape_state in state.shapes:
        if shape_state.slots != held.get(shape_state.id, 0):
            slots = held.get(shape_state.id, 0)
            yield f"shape {shape_state.id}: {shape_state.slots} slots in the books, {slots} on runners"
    for location_id, amount in state.ledger.used.items():
        if amount != used.get(location_id, Amounts()):
            yield f"{location_id}: {amount} in the ledger, {used.get(location_id)} in slots"
    yield from _gpus(state)
    for name, limit in state.limits.items():
        if limit.used != limits.get(name, 0):
            yield f"limit {name}: {limit.used} in the books, {limits.get(name, 0)} in slots"


def _gpus(state: State) -> Iterator[str]:
    """Of each gpu as much is in use as the slots that name it have."""
    used: dict[tuple[str, int], int] = {}
    for runner in state.runners.values():
        for slot, count in [*runner.slots.items(), *((slot, 1) for slot in runner.parts.values())]:
            for number in slot.gpus:
                key = runner.location, number
                used[key] = used.get(key, 0) + count * (slot.amounts.gpu_share or 1000)
    for node, shares in state.ledger.gpus.items():
        for number, share in enumerate(shares):
            if share != used.get((node, number), 0):
                yield f"{node}: {share}/1000 of gpu {number} in the ledger, {used.get((node, number), 0)} in slots"

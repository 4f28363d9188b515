"""Which jobs run again because jobs that they depend on do, or because a name that they wait for has a new batch."""

import itertools
from collections import deque
from collections.abc import Iterable

from rota.core.dependencies.meaning import dependents, open_to, touched
from rota.core.graph import GraphState
from rota.core.graph import spans as spans_at
from rota.core.selection import states_pattern
from rota.core.state import BatchState, State
from rota.model import events as ev
from rota.model.graph import MEMBER
from rota.model.tables import COMPLETED, HOLDING, KILLABLE, OMITTED, PENDING, REMOVED, WAITING

__all__ = ["Again"]


class Again:
    """Works out which jobs run again, from batch to batch; `events` are what is to happen. Nothing is changed here."""

    def __init__(self, state: State, rerun: bool = False) -> None:
        self.events: list[ev.Event] = []
        self.reconsider: set[int] = set()
        """Batches that wait anew for something, though none of their jobs moves."""
        self._state = state
        self._rerun = rerun
        """Whether COMPLETED jobs whose dependency says `rerun` run again too."""
        self._after: dict[int, bytearray] = {}
        """Batch → the states of its jobs as they will be."""
        self._done: set[int] = set()
        """Batches that need no second look."""
        self._names: dict[str, int] = {}
        """Name → the first of its batches whose dependents were seen; with it, those of all later ones were."""
        self._queue: deque[tuple[BatchState, list[int]]] = deque()

    def runs_again(self, batch: BatchState, spans: list[int]) -> None:
        """Take it that these settled jobs are reopened (the caller makes that event)."""
        self._mark(batch, spans, WAITING)
        self._queue.append((batch, spans))

    def removed(self, batch: BatchState, spans: list[int]) -> None:
        """Take it that these jobs are removed (the caller makes that event): what was omitted for them may go on."""
        self._mark(batch, spans, REMOVED)
        self._queue.append((batch, spans))

    def new_batch(self, name: str) -> None:
        """Take it that a batch of this name is added: jobs that depend on the name live wait, or wait again."""
        why = f"@{name} has a new batch"
        for waiter in open_to(self._state, name):
            self._new_at_gates(waiter, name, why)
            lives = [d for d in waiter.spec.after if d.live and d.target[1:] == name]
            if lives:
                failure = any(dependency.condition == "failure" for dependency in lives)
                rerun = any(dependency.rerun for dependency in lives)
                self._disturb(waiter, [0, waiter.count], failure, rerun, why, why)
                if failure:  # else what is omitted of it may run again yet, with something else that it waits for
                    self._done.add(waiter.id)

    def _new_at_gates(self, waiter: BatchState, name: str, why: str) -> None:
        """Have those jobs of a batch wait, or wait again, that depend on a name live."""
        graph = waiter.graph
        for gate in graph.gates if graph is not None else ():
            dependency = gate.after[0]
            if graph is not None and dependency.live and dependency.target[1:] == name:
                self._disturb(waiter, spans_at(sorted({*graph.waiting(gate.node)})), True, dependency.rerun, why, why)

    def look_again(self, batch: BatchState, why: str, omitted: bool = True, name: str | None = None) -> None:
        """Have a batch looked at whose dependencies mean something else; `name`: one of them has another batch."""
        rerun = name is not None and any(d.rerun and d.target[1:] == name for d in batch.spec.after)
        self._disturb(batch, [0, batch.count], omitted, rerun, why, why)
        self.reconsider.add(batch.id)
        if omitted:
            self._done.add(batch.id)

    def spread(self) -> None:
        """Go on to the batches that depend on what runs again, and to those that depend on these, and so on."""
        while self._queue:
            batch, spans = self._queue.popleft()
            if batch.graph is not None:
                spans = self._within(batch, batch.graph, spans)
            seen = self._names.get(batch.spec.name, batch.id + 1)
            if batch.id < seen:
                self._names[batch.spec.name] = batch.id
            for waiter in dependents(self._state, batch, by_name=batch.id < seen or batch.graph is not None):
                if waiter.id not in self._done and waiter.id != batch.id:
                    self._pass_on(batch, spans, waiter)

    def _within(self, batch: BatchState, graph: GraphState, spans: list[int]) -> list[int]:
        """Go on to the jobs of the same batch that wait for these; these and those that run again with them."""
        states = self._after.get(batch.id, batch.states)
        again = [pos for low, high in zip(spans[::2], spans[1::2], strict=True) for pos in range(low, high)]
        opened: set[int] = set()
        blocked: set[int] = set()
        seen = set(again)
        todo = list(again)
        while todo:
            pos = todo.pop()
            names = (link >> 2 for link in graph.parents(pos) if link & 3 == MEMBER)
            for child in itertools.chain(graph.waiting(pos), *(graph.waiting(node) for node in names)):
                if child in seen:
                    continue
                if states[child] == OMITTED:
                    opened.add(child)
                    seen.add(child)
                    todo.append(child)
                elif states[child] == PENDING:
                    blocked.add(child)
                elif states[child] == HOLDING:
                    self.reconsider.add(batch.id)
        why = f"batch {batch.id} runs again"
        for verb, found in (("reopen", opened), ("block", blocked)):
            if found:
                flat = spans_at(sorted(found))
                self.events.append(ev.Moved(batch.id, verb, flat, why))
                self._mark(batch, flat, WAITING)
        return spans_at(sorted(seen)) if opened else spans

    def _pass_on(self, batch: BatchState, spans: list[int], waiter: BatchState) -> None:
        why = f"batch {batch.id} runs again"
        for dependency, mine in touched(self._state, waiter, batch, spans):
            rerun = self._rerun and dependency.rerun
            self._disturb(waiter, mine, True, rerun, why if rerun else f"retried with {batch.id}", why)
            if not dependency.each and (rerun or not self._rerun):
                self._done.add(waiter.id)
                return

    def _disturb(self, batch: BatchState, within: list[int], omitted: bool, rerun: bool, why: str, block: str) -> None:
        """Reopen what was omitted (and, with `rerun`, what has COMPLETED), block what is PENDING."""
        if batch.counts[HOLDING]:
            self.reconsider.add(batch.id)
        again = ((OMITTED,) if omitted else ()) + ((COMPLETED,) if rerun else ())
        opened = self._spans(batch, again, within) if again else []
        running = self._spans(batch, KILLABLE, within) if rerun else []
        ready = self._spans(batch, (PENDING,), within)
        if opened:
            self.events.append(ev.Moved(batch.id, "reopen", opened, why))
            self.runs_again(batch, opened)
        if running:
            self.events.append(ev.RerunWanted(batch.id, running, why))
            self._queue.append((batch, running))
        if ready:
            self.events.append(ev.Moved(batch.id, "block", ready, block))
            self._mark(batch, ready, WAITING)

    def _spans(self, batch: BatchState, wanted: Iterable[int], within: list[int]) -> list[int]:
        out: list[int] = []
        pattern, states = states_pattern(wanted), self._after.get(batch.id, batch.states)
        for low, high in zip(within[::2], within[1::2], strict=True):
            for match in pattern.finditer(states, low, high):
                out += match.span()
        return out

    def _mark(self, batch: BatchState, spans: list[int], byte: int) -> None:
        states = self._after.get(batch.id)
        if states is None:
            states = self._after[batch.id] = bytearray(batch.states)
        for low, high in zip(spans[::2], spans[1::2], strict=True):
            states[low:high] = bytes((byte,)) * (high - low)

"""Clients that wait for jobs: `wait` and `follow`.

Looked at after each commit; large selections not more often than is worth it. Who follows and does not read is told
more once what was sent has left: until then it costs nothing but a byte per job.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from msgspec import Raw

from rota.core.selection import states_pattern, wanted_states
from rota.core.settled import AnyBatch
from rota.core.spans import spans_of
from rota.core.state import BatchState, State
from rota.manager.answers.jobs import Jobs, selected
from rota.model.errors import BusyError, RotaError
from rota.model.events import Ended, Entry, Leased, Moved, Pruned, Removed, Started, Submitted
from rota.model.selector import parse_selector
from rota.model.tables import HOLDING, JOB_STATES, REMOVED, SETTLED
from rota.wire.messages import encode
from rota.wire.peer import Peer

__all__ = ["Watchers"]

LARGE = 20_000
PAUSE_S = 0.1
NOTE = 500
"""Jobs in one note, at most."""
SPAN = 300
"""Bytes that a span of jobs costs, about."""
MOST = 256 << 20
"""Bytes that all who wait may cost."""
ROWS_S, ROWS_SIZE = 0.5, 1 << 20
"""Rows of jobs that have ended are kept so long for others who follow these; bytes of rows in one note, about."""
_SETTLED = states_pattern(range(SETTLED, REMOVED))


class _Watch:
    """One client that waits, and for which jobs."""

    def __init__(self, peer: Peer, ask_id: int, held: bool, spans: list[tuple[int, int, int]], follow: bool) -> None:
        self.peer = peer
        self.ask_id = ask_id
        self.held = held
        """Whether jobs that are held need not be waited for."""
        self.spans = spans
        """(batch, low, high)."""
        self.batches = {span[0] for span in spans}
        self.size = sum(high - low for _, low, high in spans)
        self.follow = follow
        self.told: dict[int, list[tuple[int, int, bytearray]]] = {}
        """Batch → (low, high, which of these jobs the client was told of)."""
        for number, low, high in spans if follow else ():
            self.told.setdefault(number, []).append((low, high, bytearray(high - low)))
        self.moved = OrderedDict.fromkeys(self.told)
        """Batches that may have jobs which the client was not told of."""
        self.timer: asyncio.TimerHandle | None = None
        self.cost = 0
        """Bytes, about."""
        self.due = False
        """Whether it is looked at later: when a while is over, or when the client has read what it was told."""
        self.open = list(spans)
        """Spans that were not settled when last looked at; the last of them is looked at first."""


class Watchers:
    """All clients that wait."""

    def __init__(self, jobs: Jobs, state: Callable[[], State]) -> None:
        self._jobs = jobs
        self._state = state
        self._watches: dict[tuple[int, int], _Watch] = {}
        self._rows: dict[tuple[int, int, int, int], bytes] = {}
        """Batch, position, attempt and state of jobs that ended lately → their rows: made once for all who follow."""
        self._rows_until = 0.0

    def add(self, peer: Peer, ask_id: int, words: list[str], follow: bool, held: bool, timeout_s: float | None) -> None:
        """Take in a client that waits."""
        state = self._state()
        allowed = wanted_states(parse_selector(words))
        spans = []
        for batch, low, high in selected(state, words):
            if len(allowed) == REMOVED:
                spans.append((batch.id, low, high))
            else:
                runs = spans_of(batch, states_pattern(allowed), low, high)
                spans.extend((batch.id, start, end) for start, end in zip(runs[::2], runs[1::2], strict=True))
        cost = SPAN * len(spans) + (sum(high - low for _, low, high in spans) if follow else 0)
        if cost + sum(watch.cost for watch in self._watches.values()) > MOST:
            raise BusyError("more is waited for already than the manager can remember: name fewer jobs, or ask later")
        watch = _Watch(peer, ask_id, held, spans, follow)
        watch.cost = cost
        self._watches[id(peer), ask_id] = watch
        if self._look(watch):
            return
        if timeout_s is not None:
            watch.timer = asyncio.get_running_loop().call_later(timeout_s, self._time_is_up, watch)

    def committed(self, entries: list[Entry]) -> None:
        """Look again for every client that waits for jobs of which these entries tell."""
        if not self._watches:
            return
        batches = _moved(entries)
        for watch in list(self._watches.values()):
            if watch.follow:
                watch.moved.update(dict.fromkeys(batches & watch.batches))
            if watch.due or watch.batches.isdisjoint(batches):
                continue
            if watch.size > LARGE:
                watch.due = True
                asyncio.get_running_loop().call_later(PAUSE_S, self._look, watch)
            else:
                self._look(watch)

    def gone(self, peer: Peer) -> None:
        """Forget a client that has left."""
        for key in [key for key in self._watches if key[0] == id(peer)]:
            self._drop(self._watches[key])

    def _look(self, watch: _Watch) -> bool:
        """Tell a client what is new; True if it waits no more."""
        watch.due = False
        if (id(watch.peer), watch.ask_id) not in self._watches:
            return True
        state = self._state()
        try:
            if not self._tell(state, watch):
                return False
        except RotaError as error:
            self._drop(watch)
            watch.peer.refuse(watch.ask_id, error)
            return True
        if self._waits(state, watch):
            return False
        watch.spans = [span for span in watch.spans if span[0] in state.batches]  # what was pruned was settled
        watch.open = [span for span in watch.spans if _unsettled(state.batches.peek(span[0]), *span[1:], watch.held)]
        if watch.open:
            return False
        self._drop(watch)
        counts = self._counts(state, watch)
        answer = {"counts": counts} if watch.follow else {"settled": True, "counts": counts}
        watch.peer.answer(watch.ask_id, answer, flushed=True)
        watch.peer.flush()
        return True

    def _waits(self, state: State, watch: _Watch) -> bool:
        """Whether something is not settled that was not; a look costs no more than what was settled since the last."""
        while watch.open:
            number, low, high = watch.open[-1]
            if _unsettled(state.batches.peek(number), low, high, watch.held):
                return True
            watch.open.pop()
        return False

    def _tell(self, state: State, watch: _Watch) -> bool:
        """Tell a client that follows which of its jobs are settled; False: it has to read before it is told more."""
        while new := _untold(state, watch):
            if watch.peer.when_drained(partial(self._look, watch)):
                watch.due = True
                watch.moved.update((batch.id, None) for batch, _, _, _ in new)
                return False
            rows = self._made_rows(state, [(batch, pos) for batch, pos, _, _ in new])
            for _, _, told, at in new[: len(rows)]:
                told[at] = 1
            watch.moved.update((batch.id, None) for batch, _, _, _ in new[len(rows) :])
            watch.peer.note(watch.ask_id, {"ended": rows})
            watch.peer.flush()
        return True

    def _made_rows(self, state: State, found: list[tuple[BatchState, int]]) -> list[Raw]:
        """Rows of the first of these jobs, as many as fit well into one message (at least one)."""
        now, known = time.monotonic(), self._rows
        if now > self._rows_until:
            known.clear()
            self._rows_until = now + ROWS_S
        keys = [(batch.id, pos, batch.attempts[pos], batch.states[pos]) for batch, pos in found]
        missing = [(key, job) for key, job in zip(keys, found, strict=True) if key not in known]
        made = self._jobs.first_rows(state, [job for _, job in missing]) if missing else []
        known.update((key, encode(row)) for (key, _), row in zip(missing, made, strict=False))
        rows, size = [], 0
        for key in keys:
            if key not in known or size > ROWS_SIZE:
                break
            size += len(known[key])
            rows.append(Raw(known[key]))
        return rows

    def _counts(self, state: State, watch: _Watch) -> dict[str, int]:
        totals: dict[str, int] = {}
        for number, low, high in watch.spans:
            batch = state.batches.peek(number)
            if batch is None:
                continue
            states = batch.states
            if high - low == 1 and states[low] < REMOVED:
                name = JOB_STATES[states[low]]
                totals[name] = totals.get(name, 0) + 1
                continue
            for byte, name in enumerate(JOB_STATES[:REMOVED]):
                found = states.count(byte, low, high)
                if found:
                    totals[name] = totals.get(name, 0) + found
        return totals

    def _time_is_up(self, watch: _Watch) -> None:
        if (id(watch.peer), watch.ask_id) in self._watches:
            self._drop(watch)
            watch.peer.answer(watch.ask_id, {"settled": False, "counts": self._counts(self._state(), watch)})

    def _drop(self, watch: _Watch) -> None:
        self._watches.pop((id(watch.peer), watch.ask_id), None)
        if watch.timer is not None:
            watch.timer.cancel()


def _untold(state: State, watch: _Watch) -> list[tuple[BatchState, int, bytearray, int]]:
    """(batch, position, what was told, place in that) of the next jobs that are settled and were not told."""
    out: list[tuple[BatchState, int, bytearray, int]] = []
    while watch.moved:
        number = next(iter(watch.moved))
        if (batch := state.batches.look(number)) is not None:
            for low, high, told in watch.told[number]:
                first = told.find(0)
                # Bytes are found many times faster than patterns match: most of a million jobs may still wait.
                last = max([batch.states.rfind(byte, low, high) for byte in range(SETTLED, REMOVED)])
                runs = spans_of(batch, _SETTLED, low + first, last + 1) if first >= 0 else []
                for start, end in zip(runs[::2], runs[1::2], strict=True):
                    at = told.find(0, start - low, end - low)
                    while at >= 0:
                        out.append((batch, low + at, told, at))
                        if len(out) == NOTE:
                            return out
                        at = told.find(0, at + 1, end - low)
        del watch.moved[number]
    return out


def _moved(entries: list[Entry]) -> set[int]:
    """The batches whose jobs moved."""
    out: set[int] = set()
    for entry in entries:
        event = entry.event
        if isinstance(event, Ended | Started):
            out.update(row[0] for row in event.rows)
        elif isinstance(event, Moved | Submitted | Removed | Leased):
            out.add(event.batch)
        elif isinstance(event, Pruned):
            out.update(event.batches)
    return out


def _unsettled(batch: AnyBatch | None, low: int, high: int, held: bool) -> bool:
    """Whether one of these jobs is to be waited for."""
    if not isinstance(batch, BatchState):  # pruned or put away: it was settled
        return False
    if low == 0 and high == batch.count:
        return batch.unsettled > (batch.counts[HOLDING] if held else 0)
    live = (byte for byte in range(SETTLED) if not held or byte != HOLDING)
    return any(batch.states.find(byte, low, high) >= 0 for byte in live)

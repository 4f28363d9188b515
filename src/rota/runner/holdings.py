"""The leases that a runner holds, and where each stands: queued, running or ended; and its parts of gangs.

Pure, as is the rest of the protocol: it knows slots and counts, and nothing of sessions and messages.
"""

from __future__ import annotations

from collections import deque

from rota.runner.lease import ENDED, QUEUED, RUNNING, Hold, Lease

TYPE_CHECKING = False  # as in `typing`, which is not worth its load time before the greeting is out
if TYPE_CHECKING:
    from typing import Any, Deque, Dict, List, Optional, Tuple

    from rota.runner.lease import Key, Outcome, Used

__all__ = ["Holdings"]

NOTE_CHARS = 1000
UNUSED: Used = (0.0, 0, None)


class Holdings:
    """The leases of a runner."""

    def __init__(self) -> None:
        self.leaving: Optional[str] = None  # why no more leases are taken
        self.slots: Dict[str, int] = {}
        self.running: Dict[str, int] = {}  # slot -> attempts running
        self.queued = 0
        self._held: Dict[Key, Lease] = {}  # leased, and its end not acknowledged
        self._queues: Dict[str, Deque[Lease]] = {}  # never an empty one
        self._staging: Dict[Key, Lease] = {}  # leased, and not to be started before what it reads is here
        self._fresh: Deque[Lease] = deque()  # running, start not told yet
        self._ended: List[List[Any]] = []
        self._disclaimed: List[List[Any]] = []
        self.address = ""  # where ranks of a gang are started: HOST:PORT
        self._holds: Dict[Key, Hold] = {}  # parts of gangs whose root is elsewhere
        self._releasing: Dict[Key, bool] = {}  # to be released; whether all of it on this node has ended
        self._released: Dict[Key, None] = {}  # to be told

    def held(self) -> List[List[int]]:
        """Every attempt that was leased to us and whose end is not acknowledged."""
        return [list(key) for key in self._held]

    def leases(self) -> List[Lease]:
        """The leases held, ended ones included."""
        return list(self._held.values())

    def has(self, key: Key) -> bool:
        """Whether an attempt is held: leased, and its end not acknowledged."""
        return key in self._held

    def holds(self) -> List[List[Any]]:
        """Every part of a gang that we hold, and where its ranks are started."""
        return [[*key, self.address] for key in self._holds]

    def parts(self) -> List[Hold]:
        """The parts of gangs that we hold."""
        return list(self._holds.values())

    @property
    def occupied(self) -> bool:
        """Whether anything is leased or held, or its release is not told."""
        return bool(self._held or self._holds or self._releasing or self._released)

    def released(self, key: Key) -> None:
        """Note that everything of an attempt on this node has ended and that its part is given up."""
        self._releasing[key] = True
        self._settle_release(key)

    def _settle_release(self, key: Key) -> None:
        """Tell a release once all has ended, and the end of a lease of that attempt is acknowledged."""
        if self._releasing.get(key) and key not in self._held:
            del self._releasing[key]
            self._holds.pop(key, None)
            self._released[key] = None

    def runs(self, key: Key) -> bool:
        """Whether a lease was handed out to be started, and its end is not noted."""
        lease = self._held.get(key)
        return lease is not None and lease.state == RUNNING

    def hold(self, lease: Lease) -> None:
        """Take a lease that comes from elsewhere than a manager's message."""
        self._held[lease.key] = lease
        self._enqueue(lease)

    def startable(self, clock: float, ahead: int = 0) -> List[Lease]:
        """Hand out the leases that may start now; those too late are disclaimed.

        `ahead` lets a launcher have that many more per slot, which it starts when one of that slot has ended.
        """
        found: List[Lease] = []
        emptied = []
        for slot, queue in self._queues.items():
            while queue and queue[0].start_by < clock:
                self.queued -= 1
                self._disclaim(queue.popleft(), "start-by passed")
            limit, busy = self.slots.get(slot, 0), self.running.get(slot, 0)
            if busy < limit + ahead and limit > 0:
                before = busy
                while queue and busy < limit + ahead:
                    lease = queue.popleft()
                    if lease.start_by < clock:  # it waited for its files, and what is before it did not
                        self.queued -= 1
                        self._disclaim(lease, "start-by passed")
                        continue
                    lease.state = RUNNING
                    lease.since = clock
                    found.append(lease)
                    self._fresh.append(lease)
                    busy += 1
                self.running[slot] = busy
                self.queued -= busy - before
            if not queue:
                emptied.append(slot)
        for slot in emptied:
            del self._queues[slot]
        return found

    def started(self, lease: Lease, wall: float, pid: int) -> None:
        """Note that the process of a lease exists."""
        lease.wall = wall
        lease.pid = pid

    def ended(
        self,
        lease: Lease,
        outcome: Outcome,
        started: float,
        ended: float,
        used: Used = UNUSED,
        output: Optional[List[Any]] = None,
    ) -> None:
        """Note the end of an attempt that was handed out; it stays held until the manager acknowledges it."""
        if lease.state != RUNNING:
            return
        lease.state = ENDED
        self._free(lease.slot)
        exit_code, signal, reason, note = outcome
        cpu_s, peak_memory, peak_disk = used
        if note is not None and len(note) > NOTE_CHARS:
            note = note[: NOTE_CHARS - 1] + "…"
        row: List[Any] = [
            lease.batch,
            lease.index,
            lease.attempt,
            exit_code,
            signal,
            reason,
            started,
            ended,
            cpu_s,
            peak_memory,
            output,
            note,
        ]
        if peak_disk is not None:
            row.append(peak_disk)
        self._ended.append(row)

    def unstarted(self, lease: Lease, why: str) -> None:
        """Give back a lease that was handed out and, as is certain, never started."""
        if lease.state == RUNNING:
            self._free(lease.slot)
            self._disclaim(lease, why)

    def requeue(self, lease: Lease) -> None:
        """Take back, to the front of its queue, a lease that was handed out and, as is certain, never started."""
        if lease.state != RUNNING:
            return
        if self.leaving is not None or lease.kill_asked:
            self.unstarted(lease, "killed" if lease.kill_asked else str(self.leaving))
            return
        self._free(lease.slot)
        lease.state = QUEUED
        self.queued += 1
        self._queues.setdefault(lease.slot, deque()).appendleft(lease)

    def _free(self, slot: str) -> None:
        left = self.running[slot] - 1
        if left or slot in self.slots:
            self.running[slot] = left
        else:
            del self.running[slot]

    def stop(self, why: str) -> None:
        """Take no more leases and give back those that have not started."""
        self.leaving = self.leaving or why
        for queue in self._queues.values():
            for lease in queue:
                self._disclaim(lease, why)
        for lease in self._staging.values():
            self._disclaim(lease, why)
        self._queues = {}
        self._staging = {}
        self.queued = 0

    def staged(self, key: Key, start_by: float, links: Tuple[Tuple[str, str], ...] = ()) -> None:
        """Note that what a lease reads is here: it may start."""
        lease = self._staging.pop(key, None)
        if lease is not None:
            lease.links = links
            lease.state, lease.start_by = QUEUED, start_by
            self._enqueue(lease)

    def unstaged(self, key: Key, reason: str, note: str, wall: float) -> None:
        """Note that what a lease reads cannot be brought: the attempt has ended before it started."""
        lease = self._staging.pop(key, None)
        if lease is not None:
            lease.state = ENDED
            self._ended.append([*key, None, None, reason, wall, wall, 0.0, 0, None, note[:NOTE_CHARS]])

    def _withdraw(self, lease: Lease, why: str) -> None:
        if self._staging.pop(lease.key, None) is not None:
            self._disclaim(lease, why)
            return
        queue = self._queues[lease.slot]
        queue.remove(lease)
        if not queue:
            del self._queues[lease.slot]
        self.queued -= 1
        self._disclaim(lease, why)

    def _disclaim(self, lease: Lease, why: str) -> None:
        lease.state = ENDED
        self._disclaimed.append([lease.batch, lease.index, lease.attempt, why])

    def _enqueue(self, lease: Lease) -> None:
        self.queued += 1
        queue = self._queues.get(lease.slot)
        if queue is None:
            queue = self._queues[lease.slot] = deque()
        queue.append(lease)

    def _copy_holdings(self, new: Holdings, memo: Dict[int, Any]) -> None:
        new.slots = dict(self.slots)
        new.running = dict(self.running)
        new._held = held = {key: lease.__deepcopy__(memo) for key, lease in self._held.items()}
        new._queues = {slot: deque(held[lease.key] for lease in queue) for slot, queue in self._queues.items()}
        new._staging = {key: held[key] for key in self._staging}
        new._fresh = deque(held[lease.key] for lease in self._fresh if lease.state == RUNNING)
        new._ended = list(self._ended)
        new._disclaimed = list(self._disclaimed)
        new._holds = dict(self._holds)
        new._releasing = dict(self._releasing)
        new._released = dict(self._released)

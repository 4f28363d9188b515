"""Which jobs of QCG there are, by name: the batch that each is in, and how its iterations have ended.

The manager keeps the jobs; this remembers what they are called. A line is on disk before the jobs of a request are
sent, and is of no account if they never arrived.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Entry", "Registry", "qcg_state"]

STATES = {
    "WAITING": "QUEUED", "PENDING": "QUEUED", "HOLDING": "QUEUED", "STARTING": "SCHEDULED", "RUNNING": "EXECUTING",
    "MISSING": "EXECUTING", "KILLING": "EXECUTING", "COMPLETED": "SUCCEED", "FAILED": "FAILED", "ABORTED": "CANCELED",
    "OMITTED": "OMITTED",
}  # fmt: skip
"""Our states → QCG's."""
ENDED = ("SUCCEED", "FAILED", "CANCELED", "OMITTED")
BATCH = "qcg-"
"""How the names of batches begin that requests have made."""


class Ended(NamedTuple):
    """One job, or one iteration of one, has ended."""

    name: str
    iteration: int | None
    state: str


class Entry:
    """One job of QCG."""

    def __init__(self, name: str, first: int, count: int, start: int | None) -> None:
        self.name = name
        self.first = first
        """Position of its first job in the batch."""
        self.count = count
        self.start = start
        """Index of its first iteration; None: it has none."""
        self.batch = 0
        self.states = bytearray(count)
        """Of each iteration: 0, or one more than its place in ENDED."""
        self.left = count
        """How many have not ended."""
        self.cancelled = False
        self.why = ""
        """Why it was never sent: what it waits for cannot come, or it asks for more than there is."""
        self.never = "OMITTED"
        """The state of one that was never sent."""

    @property
    def unsent(self) -> bool:
        """Whether it was never sent."""
        return bool(self.why)

    @property
    def state(self) -> str | None:
        """How it ended as a whole; None: it has not."""
        if self.left:
            return None
        if self.cancelled:
            return "CANCELED"
        found = {ENDED[number - 1] for number in set(self.states)}
        return found.pop() if len(found) == 1 else "FAILED"

    def selector(self, iteration: int | None = None) -> str:
        """The word by which rota names it, or one of its iterations."""
        if iteration is not None and self.start is not None:
            return f"{self.batch}.{self.first + iteration - self.start + 1}"
        if self.count == 1:
            return f"{self.batch}.{self.first + 1}"
        return f"{self.batch}.{self.first + 1}-{self.first + self.count}"

    def has(self, iteration: int) -> bool:
        """Whether it has this iteration."""
        return self.start is not None and self.start <= iteration < self.start + self.count

    def ended(self, at: int, state: str) -> bool:
        """Take the end of one iteration; False: that was known."""
        number = ENDED.index(state) + 1
        if self.states[at]:
            self.states[at] = number
            return False
        self.states[at] = number
        self.left -= 1
        return True


class Registry:
    """All jobs of QCG in a home."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.entries: dict[str, Entry] = {}
        self._by_batch: dict[int, list[Entry]] = {}
        """Batch → its jobs, by position."""
        self._waiting: dict[str, list[Entry]] = {}
        """Name of a batch → jobs of a request of which it is not known whether it arrived."""
        self.requests = 0
        self.left = 0
        """Jobs that have not ended."""
        self._read()

    def _read(self) -> None:
        try:
            with open(self._path, "rb") as file:
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return
        for line in lines[:-1]:  # what has no end was being written
            row = json.loads(line)
            if "jobs" in row:
                self.requests += 1
                entries = [Entry(*job) for job in row["jobs"]]
                for entry, why in zip(entries, row["why"], strict=True):
                    entry.why = why
                for at in row.get("failed", ()):
                    entries[at].never = "FAILED"
                self._waiting[row["request"]] = entries
            for name in row.get("removed", ()):
                for entries in self._waiting.values():
                    entries[:] = [entry for entry in entries if entry.name != name]
            for name in row.get("cancelled", ()):
                for entries in self._waiting.values():
                    for entry in entries:
                        entry.cancelled = entry.cancelled or entry.name == name

    def _write(self, row: Mapping[str, Any]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        number = os.open(self._path, flags, 0o600)
        try:
            os.write(number, json.dumps(row).encode() + b"\n")
            os.fsync(number)
        finally:
            os.close(number)

    # ---- what there is ----------------------------------------------------------------------------------------------

    def announce(self, request: str, entries: Sequence[Entry]) -> None:
        """Remember the jobs of a request that is about to be sent."""
        self.requests += 1
        rows = [(entry.name, entry.first, entry.count, entry.start) for entry in entries]
        row: dict[str, Any] = {"request": request, "jobs": rows, "why": [entry.why for entry in entries]}
        if failed := [at for at, entry in enumerate(entries) if entry.unsent and entry.never == "FAILED"]:
            row["failed"] = failed
        self._write(row)
        self._waiting[request] = list(entries)

    def arrived(self, request: str, batch: int) -> list[Entry]:
        """The jobs of a request are those of this batch (0: none of them was sent)."""
        entries = self._waiting.pop(request, [])
        for entry in entries:
            self.entries[entry.name] = entry
            if entry.unsent:
                for at in range(entry.count):
                    entry.ended(at, entry.never)
            else:
                entry.batch = batch
                self.left += 1
                self._by_batch.setdefault(batch, []).append(entry)
        return entries

    def find_batches(self, rows: Iterable[Mapping[str, Any]]) -> list[int]:
        """Find the requests of an earlier pilot among the manager's batches; the numbers of those that are there."""
        found = []
        for row in rows:
            if row["name"] in self._waiting:
                self.arrived(row["name"], int(row["id"]))
                found.append(int(row["id"]))
        for request, entries in list(self._waiting.items()):
            if entries and all(entry.unsent for entry in entries):
                self.arrived(request, 0)
        self._waiting.clear()
        return found

    def forget(self, request: str) -> None:
        """The jobs of a request were refused."""
        self._waiting.pop(request, None)

    def remove(self, names: Sequence[str]) -> None:
        """Forget jobs that have ended; their names are free."""
        if not names:
            return
        self._write({"removed": list(names)})
        for name in names:
            entry = self.entries.pop(name)
            if entry.batch in self._by_batch:
                self._by_batch[entry.batch].remove(entry)

    def cancel(self, names: Sequence[str]) -> None:
        """Remember that jobs are cancelled as a whole."""
        if names:
            self._write({"cancelled": list(names)})
        for name in names:
            self.entries[name].cancelled = True

    # ---- what happened ----------------------------------------------------------------------------------------------

    def take(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Ended]:
        """Take rows of jobs that are settled; what is new of that, each job after its last iteration."""
        for row in rows:
            state = STATES.get(row["state"], "")
            batch, _, index = row["id"].partition(".")
            entry = self._at(int(batch), int(index) - 1)
            if entry is None or state not in ENDED or not entry.ended(int(index) - 1 - entry.first, state):
                continue
            if entry.start is not None:
                yield Ended(entry.name, entry.start + int(index) - 1 - entry.first, state)
            if (whole := entry.state) is not None:
                self.left -= 1
                yield Ended(entry.name, None, whole)

    def _at(self, batch: int, pos: int) -> Entry | None:
        entries = self._by_batch.get(batch, ())
        low, high = 0, len(entries)
        while low < high:
            middle = (low + high) // 2
            if entries[middle].first + entries[middle].count <= pos:
                low = middle + 1
            else:
                high = middle
        return entries[low] if low < len(entries) and entries[low].first <= pos else None


def qcg_state(counts: Mapping[str, int], cancelled: bool) -> str:
    """The state of a job in QCG's words, from how many of its iterations are in which of ours."""
    states = {STATES[name]: count for name, count in counts.items() if count and name in STATES}
    live = [state for state in ("EXECUTING", "SCHEDULED", "QUEUED") if state in states]
    if live:
        begun = len(states) > 1 and live[0] == "QUEUED" and any(state in states for state in ENDED)
        return "EXECUTING" if begun else live[0]
    if cancelled:
        return "CANCELED"
    return next(iter(states)) if len(states) == 1 else "FAILED"

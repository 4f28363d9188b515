"""A store in memory, for the simulator and for tests: everything is kept as bytes, so that no live object hides a bug.

Its disk is perfect but for what `fail_at` says, and `crash_copy` is what a machine would find after a crash: what was
committed and nothing else.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from rota.model.data import Replica
from rota.model.errors import NotFoundError, StoreError, UsageError
from rota.model.events import AllocationMoved, Entry, Pruned, RunnerGreeted, Submitted
from rota.model.job import Result
from rota.store.api import Column, Loaded, Query, Staged, Sums
from rota.store.keeping import follows
from rota.store.rows import (
    check_overlap,
    check_range,
    check_stage,
    from_json,
    merged_runs,
    pack,
    pieces,
    runs_of,
    templates_of,
    to_json,
)

__all__ = ["MemoryStore"]

FREE = 1 << 40
_entry = msgspec.msgpack.Decoder(Entry)
_result = msgspec.msgpack.Decoder(Result)

Piece = tuple[int, bytes, list[int] | None]
"""(count, JSON, runs of templates)."""


class Disk(Struct):
    """What is durable."""

    log: dict[int, bytes] = field(default_factory=dict)
    results: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    batches: dict[int, tuple[int, dict[int, Piece] | None]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    environments: dict[str, bytes] = field(default_factory=dict)
    columns: dict[tuple[int, int], tuple[bytes, bytes]] = field(default_factory=dict)
    snapshot: tuple[int, bytes] | None = None
    last: int = 0
    pruned: dict[int, int] = field(default_factory=dict)
    """Batch → number of the entry that pruned it, until all of it is swept."""
    replicas: dict[tuple[str, str], Replica] = field(default_factory=dict)


class MemoryStore:
    """A Store without a disk.

    `fail_at` maps the number of a write (1 is the first; commit, checkpoint, stage, unstage and keep_environment count)
    to the error that it raises instead of writing. After a StoreError everything raises StoreError, as on a real disk.
    """

    def __init__(self, fail_at: dict[int, Exception] | None = None) -> None:
        self.fail_at = dict(fail_at or {})
        self.writes = 0
        self.failed: str | None = None
        self._disk = Disk()
        self._stages: dict[str, dict[int, Piece]] = {}
        self._open = False

    def crash_copy(self) -> "MemoryStore":
        """A new store with what was committed. Staged values are gone, as after a restart; faults are not copied."""
        other = type(self)()
        other._disk = _copied(self._disk)
        return other

    def load(self) -> Loaded:
        """What a restart needs."""
        self._open = True
        self.failed = None
        self._stages = {}
        disk = self._disk
        seq, snapshot = disk.snapshot or (0, None)
        columns = [
            Column(batch, chunk, *disk.columns[batch, chunk])
            for batch, chunk in sorted(disk.columns)
            if disk.pruned.get(batch, seq + 1) > seq
        ]
        return Loaded(snapshot, seq, columns, self._tail(seq, disk.last))

    def _tail(self, after: int, last: int) -> Iterator[Entry]:
        for seq in range(after + 1, last + 1):
            if seq not in self._disk.log:
                raise self._stop(f"entry {seq} of the log is missing")
            yield _entry.decode(self._disk.log[seq])

    # ---- writing ----------------------------------------------------------------------------------------------------

    def commit(self, entries: Sequence[Entry], results: Sequence[Result]) -> None:
        """Keep entries and results, all or nothing."""
        self._check_open()
        try:
            log = {entry.seq: pack(entry) for entry in entries}
            ended = [pack(result) for result in results]
        except (UnicodeError, OverflowError) as error:
            raise UsageError(f"these facts cannot be stored: {error}") from error
        disk = self._disk
        for due, entry in enumerate(entries, disk.last + 1):
            if entry.seq != due:
                raise self._stop(f"entry {entry.seq} came where {due} was due")
        submitted = [entry.event for entry in entries if isinstance(entry.event, Submitted)]
        for event in submitted:
            self._check_submitted(event)
        self._count_write()
        for event in submitted:
            taken = None if event.stage is None else self._stages.pop(event.stage)
            disk.batches[event.batch] = (event.spec.count, taken)
            if event.key:
                disk.keys[event.key] = event.batch
        disk.log.update(log)
        for result, packed in zip(results, ended, strict=True):
            place = (result.batch, result.pos, result.attempt)
            if place not in disk.results or follows(result, _result.decode(disk.results[place])):
                disk.results[place] = packed
        for entry in entries:
            if isinstance(entry.event, Pruned):
                for number in entry.event.batches:
                    del disk.batches[number]
                    disk.pruned[number] = entry.seq
                gone = set(entry.event.batches)
                disk.keys = {key: number for key, number in disk.keys.items() if number not in gone}
        disk.last += len(log)

    def _check_submitted(self, event: Submitted) -> None:
        if event.batch in self._disk.batches or event.key in self._disk.keys:
            raise self._stop(f"batch {event.batch} or its key '{event.key}' is there already")
        if event.stage is not None:
            covered = self.staged(event.stage).count
            if covered < event.spec.count:
                jobs = f"batch {event.batch} has {event.spec.count} jobs"
                raise self._stop(f"{jobs}, but '{event.stage}' has {covered} staged values")

    def checkpoint(self, seq: int, snapshot: bytes, columns: Sequence[Column]) -> None:
        """Replace the snapshot and these columns."""
        self._check_open()
        disk = self._disk
        covered = disk.snapshot[0] if disk.snapshot else 0
        if not covered <= seq <= disk.last:
            bounds = f"the last one was at {covered} and the log ends at {disk.last}"
            raise self._stop(f"a checkpoint came for entry {seq}, but {bounds}")
        self._count_write()
        disk.snapshot = (seq, bytes(snapshot))
        for column in columns:
            disk.columns[column.batch, column.chunk] = (bytes(column.states), bytes(column.attempts))

    def stage(self, stage: str, first: int, values: Sequence[Any], templates: Sequence[int] | None) -> None:
        """Keep values for a submission to come."""
        self._check_open()
        check_stage(stage, first, values, templates)
        rows = list(pieces(first, values))
        held = self._stages.get(stage, {})
        if rows:
            check_overlap(stage, first, len(values), [(at, piece[0]) for at, piece in held.items()])
        self._count_write()
        kept = {at: piece for at, piece in held.items() if not first <= at < first + len(values)}
        for at, count, body in rows:
            runs = None if templates is None else runs_of(templates[at - first : at - first + count])
            kept[at] = (count, body, runs)
        if kept:
            self._stages[stage] = kept

    def unstage(self, stage: str) -> None:
        """Drop what was staged under this name."""
        self._check_open()
        self._count_write()
        self._stages.pop(stage, None)

    def replicas(self) -> list[Replica]:
        """Which files are at which places."""
        self._check_open()
        return [self._disk.replicas[key] for key in sorted(self._disk.replicas)]

    def keep_replicas(self, keep: Sequence[Replica], drop: Sequence[tuple[str, str]]) -> None:
        """Write some replicas, and forget others."""
        self._check_open()
        self._count_write()
        for key in drop:
            self._disk.replicas.pop(key, None)
        self._disk.replicas.update({row.key: row for row in keep})

    def keep_environment(self, name: str, variables: dict[str, str]) -> None:
        """Keep an environment under its hash (once)."""
        self._check_open()
        try:
            body = to_json(variables)
        except UnicodeError as error:
            raise UsageError(f"an environment that is not UTF-8 cannot be stored: {error}") from None
        self._count_write()
        self._disk.environments.setdefault(name, body)

    def prepare(self) -> bool:
        """Have space ready for commits to come: there always is."""
        return False

    def sweep(self, rows: int) -> bool:
        """Delete some of what pruned batches left behind; True if there is more."""
        self._check_open()
        disk = self._disk
        left = sorted(key for key in disk.results if key[0] in disk.pruned)
        covered = disk.snapshot[0] if disk.snapshot else 0
        over = [number for number, seq in disk.pruned.items() if seq <= covered]
        if not left and not over:
            return False
        self._count_write()
        for key in left[:rows]:
            del disk.results[key]
        if not left:
            for number in over:
                disk.columns = {place: column for place, column in disk.columns.items() if place[0] != number}
                del disk.pruned[number]
        return bool(left)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def staged_values(self, stage: str, first: int) -> tuple[list[Any], list[int] | None]:
        """Some of the values staged under this name, from this position on, and their templates; none: the end."""
        self._check_open()
        piece = self._stages.get(stage, {}).get(first)
        if piece is None:
            return [], None
        return from_json(piece[1]), None if piece[2] is None else templates_of(piece[2])

    def search(self, query: Query, limit: int) -> list[Result]:
        """Results that fit, in the query's order."""
        self._check_open()
        found = []
        for key, body in self._disk.results.items():
            row = _result.decode(body)
            place = (row.ended or 0.0, *key) if query.newest_first else key
            if query.fits(row) and (query.after is None or _later(query, place)):
                found.append((place, row))
        found.sort(key=lambda pair: pair[0], reverse=query.newest_first or query.descending)
        return [row for _, row in found[:limit]]

    def ended_since(self, wall: float) -> list[int]:
        """Batches of which an attempt ended after this time."""
        self._check_open()
        return sorted(
            {key[0] for key, body in self._disk.results.items() if (_result.decode(body).ended or 0.0) > wall}
        )

    def output_files(self) -> list[tuple[str, str]]:
        """(directory, file) of all output that results name."""
        self._check_open()
        found: set[tuple[str, str]] = set()
        for key, body in self._disk.results.items():
            output = _result.decode(body).output
            place = from_json(output) if output is not None and key[0] in self._disk.batches else None
            if isinstance(place, list):
                found.update((place[0], name) for name in (place[1], place[5]) if name)
        return sorted(found)

    def staged(self, stage: str) -> Staged:
        """What has been staged under this name."""
        self._check_open()
        covered, chunks = 0, []
        for first, (count, _, runs) in sorted(self._stages.get(stage, {}).items()):
            if first != covered:
                break
            covered += count
            chunks.append((count, runs))
        return Staged(covered, merged_runs(chunks))

    def environment(self, name: str) -> dict[str, str]:
        """An environment by its hash."""
        self._check_open()
        if name not in self._disk.environments:
            raise NotFoundError(f"no environment is kept as '{name}'")
        found: dict[str, str] = from_json(self._disk.environments[name])
        return found

    def values(self, batch: int, first: int, count: int) -> list[Any]:
        """The values of jobs at positions first … first+count-1."""
        self._check_open()
        if batch not in self._disk.batches:
            raise NotFoundError(f"there is no batch {batch}")
        size, held = self._disk.batches[batch]
        check_range(batch, size, first, count)
        if held is None:
            return [None] * count
        found: list[Any] = []
        for at, (held_count, body, _) in sorted(held.items()):
            if at < first + count and at + held_count > first:
                found += from_json(body)[max(first - at, 0) : first + count - at]
        return found

    def results(self, batch: int, first: int, last: int, newest_only: bool) -> list[Result]:
        """Results of positions first..last inclusive, by position and attempt; or the last attempt of each."""
        self._check_open()
        keys = sorted(key for key in self._disk.results if key[0] == batch and first <= key[1] <= last)
        if newest_only:
            keys = list({key[1]: key for key in keys}.values())
        return [_result.decode(self._disk.results[key]) for key in keys]

    def place_of(self, runner: str) -> tuple[str, str | None] | None:
        """(site, native id of its allocation) of a runner, also of one that is long gone."""
        self._check_open()
        site, allocation, natives = None, None, dict[str, str]()
        for body in self._disk.log.values():
            event = _entry.decode(body).event
            if isinstance(event, RunnerGreeted) and event.runner == runner:
                site, allocation = event.site, event.allocation
            elif isinstance(event, AllocationMoved) and event.native_id is not None:
                natives[event.id] = event.native_id
        return None if site is None else (site, natives.get(allocation or ""))

    def recent_results(
        self, batches: Sequence[int] | None, before: tuple[float, int, int, int] | None, limit: int
    ) -> list[Result]:
        """Results by end time, newest first; one without an end time counts as ended at 0."""
        self._check_open()
        wanted = None if batches is None else set(batches)
        chosen = []
        for key, body in self._disk.results.items():
            if wanted is None or key[0] in wanted:
                result = _result.decode(body)
                place = (result.ended or 0.0, *key)
                if before is None or place < before:
                    chosen.append((place, result))
        chosen.sort(key=lambda pair: pair[0], reverse=True)
        return [result for _, result in chosen[:limit]]

    def slowest(self, batch: int, limit: int) -> list[Result]:
        """The attempts of a batch that took longest (wall time), longest first; those without times last."""
        self._check_open()
        chosen = [_result.decode(body) for key, body in self._disk.results.items() if key[0] == batch]
        chosen.sort(key=lambda row: (*_wall(row), row.pos, row.attempt))
        return chosen[:limit]

    def sums(self, batches: Sequence[int] | None) -> list[Sums]:
        """What the attempts that completed used in all, of each of these batches (None: all) that has any."""
        self._check_open()
        found: dict[int, Sums] = {}
        for key, body in sorted(self._disk.results.items()):
            row = _result.decode(body)
            if row.state != "COMPLETED" or (batches is not None and key[0] not in batches):
                continue
            of = found.setdefault(row.batch, Sums(row.batch, 0))
            wall = row.ended - row.started if row.ended is not None and row.started is not None else 0.0
            memory = row.peak_memory or 0
            of.count += 1
            of.wall_s, of.wall_squares, of.wall_most_s = (
                of.wall_s + wall,
                of.wall_squares + wall**2,
                max(of.wall_most_s, wall),
            )
            of.cpu_s += row.cpu_s or 0.0
            of.memory, of.memory_squares = of.memory + memory, of.memory_squares + float(memory) ** 2
            of.memory_most = max(of.memory_most, memory)
        return list(found.values())

    def entries(self, after: int, limit: int) -> list[Entry]:
        """The log."""
        self._check_open()
        upto = min(self._disk.last, after + limit)
        return [_entry.decode(self._disk.log[seq]) for seq in range(max(after, 0) + 1, upto + 1)]

    # ---- care -------------------------------------------------------------------------------------------------------

    def backup(self, path: str) -> None:
        """Write what is durable into a file that `restored` reads."""
        self._check_open()
        part = f"{path}.part"
        with open(part, "wb") as file:
            file.write(pack(self._disk))
        os.replace(part, path)

    @classmethod
    def restored(cls, path: str) -> "MemoryStore":
        """A store from a backup."""
        store = cls()
        with open(path, "rb") as file:
            store._disk = msgspec.msgpack.decode(file.read(), type=Disk)
        return store

    def free_bytes(self) -> int:
        """Plenty."""
        self._check_open()
        return FREE

    def close(self) -> None:
        """Close; `load` opens it again."""
        self._open = False

    # ---- faults -----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.failed is not None:
            raise StoreError(self.failed)
        if not self._open:
            raise StoreError("the store in memory is not open")

    def _count_write(self) -> None:
        self.writes += 1
        error = self.fail_at.get(self.writes)
        if error is not None:
            if isinstance(error, StoreError):
                self.failed = str(error)
            raise error

    def _stop(self, why: str) -> StoreError:
        self.failed = f"the store in memory: {why}"
        return StoreError(self.failed)


def _copied(disk: Disk) -> Disk:
    """An independent Disk: bytes and tuples are shared, what can change is not."""
    return Disk(
        dict(disk.log),
        dict(disk.results),
        {batch: (count, None if held is None else dict(held)) for batch, (count, held) in disk.batches.items()},
        dict(disk.keys),
        dict(disk.environments),
        dict(disk.columns),
        disk.snapshot,
        disk.last,
        dict(disk.pruned),
        dict(disk.replicas),
    )


def _later(query: Query, place: tuple[float, ...]) -> bool:
    assert query.after is not None
    seen: tuple[float, ...] = query.after if query.newest_first else query.after[1:]
    return place < seen if query.newest_first or query.descending else place > seen


def _wall(result: Result) -> tuple[bool, float]:
    """Sorts by wall time, longest first; results without one come last."""
    known = result.started is not None and result.ended is not None
    return not known, (result.started or 0.0) - (result.ended or 0.0) if known else 0.0

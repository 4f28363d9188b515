"""Current-state rows that follow from events: batches, runners, allocations, limits, and how the manager stands.

They are for people and tools that read the database; a restart folds the log and does not look at them.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from rota.model.batch import BatchSpec
from rota.model.errors import StoreError
from rota.model.events import (
    AllocationMoved,
    AllocationPlanned,
    Entry,
    LimitSet,
    ManagerMoved,
    Pruned,
    Respecified,
    RunnerGreeted,
    RunnerMoved,
    Submitted,
)
from rota.model.tables import ALLOCATION, RUNNER, move
from rota.store.connection import Connection
from rota.store.rows import Checked, to_json

__all__ = ["PROJECTED", "coverage", "project"]

_GREET = """INSERT INTO runners (id, state, allocation, site, host, pid, connect, session, until, seq)
    VALUES (?, 'SERVING', ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET state = 'SERVING', allocation = excluded.allocation, site = excluded.site,
    host = excluded.host, pid = excluded.pid, connect = excluded.connect, session = excluded.session,
    until = excluded.until, reason = NULL, seq = excluded.seq"""
_RUNNER = "UPDATE runners SET state = coalesce(?, state), reason = coalesce(?, reason), seq = ? WHERE id = ?"
_PLAN = """INSERT INTO allocations (id, state, site, tag, queue, planned, unsure, seq)
    VALUES (?, ?, ?, ?, ?, ?, 0, ?)
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, queue = excluded.queue, planned = excluded.planned,
    unsure = 0, native_id = NULL, reason = NULL, seq = excluded.seq
    WHERE site = excluded.site AND tag = excluded.tag"""
_ALLOCATION = """UPDATE allocations SET state = coalesce(?, state), native_id = coalesce(?, native_id),
    reason = coalesce(?, reason), unsure = ?, seq = ? WHERE id = ?"""
_BATCH = """INSERT INTO batches (id, name, count, submitted, key, by, env, source, crc, spec)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def coverage(con: Connection, source: int) -> int:
    """How many values in a row from 0 a source has."""
    covered = 0
    for first, count in con.execute("SELECT first, count FROM chunks WHERE source = ? ORDER BY first", (source,)):
        if first != covered:
            break
        covered += count
    return covered


def _submitted(con: Connection, entry: Entry, event: Submitted) -> None:
    source = None
    if event.stage is not None:
        found = con.execute("SELECT id FROM sources WHERE name = ?", (event.stage,))
        source = found[0][0] if found else None
        covered = coverage(con, source) if source is not None else 0
        if covered < event.spec.count:
            raise StoreError(
                f"batch {event.batch} has {event.spec.count} jobs, but '{event.stage}' has {covered} staged values"
            )
        con.execute("UPDATE sources SET name = NULL WHERE id = ?", (source,))
    spec = to_json(event.spec)
    crc = Checked.make(spec, event.batch, event.spec.count, source)
    con.execute(
        _BATCH,
        (
            event.batch,
            event.spec.name,
            event.spec.count,
            event.at,
            event.key or None,
            event.by,
            event.env,
            source,
            crc,
            spec,
        ),
    )


def _greeted(con: Connection, entry: Entry, event: RunnerGreeted) -> None:
    row = (
        event.runner,
        event.allocation,
        event.site,
        event.host,
        event.pid,
        event.connect,
        event.session,
        event.until,
        entry.seq,
    )
    con.execute(_GREET, row)


def _runner_moved(con: Connection, entry: Entry, event: RunnerMoved) -> None:
    for (state,) in con.execute("SELECT state FROM runners WHERE id = ?", (event.runner,)):
        con.execute(_RUNNER, (move(RUNNER, state, event.verb), event.reason, entry.seq, event.runner))


def _planned(con: Connection, entry: Entry, event: AllocationPlanned) -> None:
    state = "SUBMITTING" if event.submit else "WAITING"
    con.execute(_PLAN, (event.id, state, event.site, event.tag, event.queue, event.at, entry.seq))


def _allocation_moved(con: Connection, entry: Entry, event: AllocationMoved) -> None:
    for (state,) in con.execute("SELECT state FROM allocations WHERE id = ?", (event.id,)):
        # Rows that an older version wrote may say WAITING of an allocation that is SUBMITTING.
        new = move(ALLOCATION, state, event.verb) or move(ALLOCATION, "SUBMITTING", event.verb)
        con.execute(_ALLOCATION, (new, event.native_id, event.reason, event.unsure, entry.seq, event.id))


def _limit_set(con: Connection, entry: Entry, event: LimitSet) -> None:
    """Counts only: rates and windows are in the log and the checkpoint, which are the truth."""
    if event.count is None:
        con.execute("DELETE FROM limits WHERE name = ?", (event.name,))
    else:
        con.execute("INSERT OR REPLACE INTO limits VALUES (?, ?)", (event.name, event.count))


def _manager_moved(con: Connection, entry: Entry, event: ManagerMoved) -> None:
    con.execute("INSERT OR REPLACE INTO meta VALUES ('manager', ?)", (event.mode,))


def _pruned(con: Connection, entry: Entry, event: Pruned) -> None:
    for number in event.batches:
        con.execute("INSERT INTO pruned SELECT id, ?, source, 0 FROM batches WHERE id = ?", (entry.seq, number))
        con.execute("DELETE FROM batches WHERE id = ?", (number,))


def _respecified(con: Connection, entry: Entry, event: Respecified) -> None:
    """Write the changed specification; a damaged one is left as it is, for whoever reads it to see."""
    for count, source, crc, body in con.execute(
        "SELECT count, source, crc, spec FROM batches WHERE id = ?", (event.batch,)
    ):
        if Checked.make(body, event.batch, count, source) != crc:
            continue
        spec = msgspec.structs.replace(
            msgspec.json.decode(body, type=BatchSpec),
            name=event.name,
            after=event.after,
            not_before=event.not_before,
            at_once=event.at_once,
            max_failures=event.max_failures,
        )
        if event.scouts is not None:
            spec = msgspec.structs.replace(spec, scouts=event.scouts)
        body = to_json(spec)
        crc = Checked.make(body, event.batch, count, source)
        con.execute("UPDATE batches SET name = ?, crc = ?, spec = ? WHERE id = ?", (event.name, crc, body, event.batch))


PROJECTED: Final[dict[type, Callable[[Connection, Entry, Any], None]]] = {
    Submitted: _submitted,
    RunnerGreeted: _greeted,
    RunnerMoved: _runner_moved,
    AllocationPlanned: _planned,
    AllocationMoved: _allocation_moved,
    LimitSet: _limit_set,
    ManagerMoved: _manager_moved,
    Pruned: _pruned,
    Respecified: _respecified,
}
"""Events that change current-state rows. The frequent ones (leases, starts, ends) are not among them."""


def project(con: Connection, entry: Entry) -> None:
    """Bring the current-state rows up to this entry."""
    write = PROJECTED.get(type(entry.event))
    if write is not None:
        write(con, entry, entry.event)

"""Looking for results among millions: one pass, over a connection of its own."""

from collections.abc import Sequence
from typing import Any, Final

from rota.store.api import Query, Sums
from rota.store.database import Database, Row

__all__ = ["ended_since", "output_files", "search", "sums"]

_ENDED: Final = "coalesce(ended, 0.0)"
_BODY: Final = "CAST(body AS TEXT)"
_FIELDS: Final = {"exit_code": 4, "reason": 6, "host": 8}
"""Where in the body's JSON list they are."""
FEW_JOBS = 50_000
"""Batches with up to so many jobs are looked through as a whole and sorted; else results are taken by end time."""


def search(db: Database, query: Query, limit: int) -> list[Row]:
    """Rows (batch, pos, attempt, crc, body). A `+` keeps SQLite from an index that would not help."""
    by_batch = not query.newest_first or (query.batches is not None and _jobs(db, query.batches) <= FEW_JOBS)
    where, args = _conditions(query, by_batch)
    if query.newest_first:
        plus = "+" if by_batch else ""
        order = f"{plus}{_ENDED} DESC, batch DESC, pos DESC, attempt DESC"
        if query.after is not None:
            where += [f"{plus}{_ENDED} <= ?", f"({plus}{_ENDED}, batch, pos, attempt) < (?, ?, ?, ?)"]
            args += [query.after[0], *query.after]
    else:
        down = " DESC" if query.descending else ""
        order = f"batch{down}, pos{down}, attempt{down}"
        if query.after is not None:
            where.append(f"(batch, pos, attempt) {'<' if query.descending else '>'} (?, ?, ?)")
            args += query.after[1:]
    clause = f"WHERE {' AND '.join(where)}" if where else ""
    sql = f"SELECT batch, pos, attempt, crc, body FROM results {clause} ORDER BY {order} LIMIT ?"
    return db.look("results", sql, (*args, limit))


def _jobs(db: Database, batches: list[int]) -> int:
    sql = f"SELECT coalesce(sum(count), 0) FROM batches WHERE id IN ({', '.join([str(int(at)) for at in batches])})"
    return int(db.look("batches", sql)[0][0])


def _conditions(query: Query, by_batch: bool) -> tuple[list[str], list[Any]]:
    where: list[str] = []
    args: list[Any] = []
    if query.batches is not None:
        where.append(f"{'' if by_batch else '+'}batch IN ({', '.join([str(int(batch)) for batch in query.batches])})")
    plus = "+" if by_batch else ""
    for bound, sign in ((query.since, ">="), (query.until, "<=")):
        if bound is not None:
            where.append(f"{plus}{_ENDED} {sign} ?")
            args.append(bound)
    if query.states:
        where.append(f"state IN ({', '.join('?' * len(query.states))})")
        args += query.states
    for name, at in _FIELDS.items():
        wanted = getattr(query, name)
        if wanted is not None:
            where.append(f"json_extract({_BODY}, '$[{at}]') = ?")
            args.append(wanted)
    return where, args


def sums(db: Database, batches: Sequence[int] | None) -> list[Sums]:
    """What the attempts that completed used in all, by batch."""
    where = "" if batches is None else f"AND batch IN ({', '.join([str(int(batch)) for batch in batches])})"
    sql = f"""SELECT batch, count(*), total(wall), total(wall * wall), max(coalesce(wall, 0.0)), total(cpu),
            total(memory), total(1.0 * memory * memory), max(coalesce(memory, 0))
        FROM (SELECT batch, ended - started AS wall, json_extract({_BODY}, '$[11]') AS cpu,
                json_extract({_BODY}, '$[12]') AS memory
            FROM results WHERE state = 'COMPLETED' {where})
        GROUP BY batch ORDER BY batch"""
    return [Sums(*row) for row in db.look("results", sql)]


def ended_since(db: Database, wall: float) -> list[int]:
    """Batches of which an attempt ended after this time."""
    rows = db.look("results", f"SELECT DISTINCT batch FROM results WHERE {_ENDED} > ?", (wall,))
    return [row[0] for row in rows]


def output_files(db: Database) -> list[tuple[str, str]]:
    """(directory, file) of all output that results of batches that are kept name."""
    sql = f"""SELECT DISTINCT json_extract(o, '$[0]'), json_extract(o, '$[1]'), json_extract(o, '$[5]')
        FROM (SELECT json_extract({_BODY}, '$[13]') AS o FROM results WHERE batch IN (SELECT id FROM batches))
        WHERE o IS NOT NULL"""
    found = {(row[0], name) for row in db.look("output", sql) for name in row[1:] if row[0] and name}
    return sorted(found)

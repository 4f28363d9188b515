"""Writing results: the first word about an attempt stays.

One update is legitimate: an attempt that was given up has ended after all, by its own runner's word. Anything else that
comes for an attempt which has a result is left out and told in the log of the manager.
"""

import logging
from collections.abc import Sequence
from typing import Final

from rota.model.job import Result
from rota.store.connection import Connection, Insert, Row
from rota.store.rows import result_of

__all__ = ["follows", "write_results"]

log = logging.getLogger("rota")

_COLUMNS: Final = "INSERT INTO results (batch, pos, attempt, state, started, ended, crc, body)"
_FIRST: Final = Insert(_COLUMNS, 8, "ON CONFLICT (batch, pos, attempt) DO NOTHING")
_KEPT: Final = "SELECT batch, pos, attempt, crc, body FROM results WHERE (batch, pos, attempt) = (?, ?, ?)"
_LATE: Final = """UPDATE results SET state = ?, started = ?, ended = ?, crc = ?, body = ?
    WHERE (batch, pos, attempt) = (?, ?, ?)"""


def follows(late: Result, first: Result) -> bool:
    """Whether a result may take the place of the first: the attempt was given up, and its runner says how it ended."""
    unseen = first.state in ("FAILED", "ABORTED") and first.exit_code is None and first.signal is None
    return late.state == "SUPERSEDED" and late.runner == first.runner and (first.state == "LOST" or unseen)


def write_results(con: Connection, results: Sequence[Result], rows: Sequence[Row]) -> None:
    """Insert results, given with their rows; of attempts that have one, change only what may change."""
    new = [row for row in rows if row[3] != "SUPERSEDED"]
    if new:
        before = con.changes()
        _FIRST(con, new)
        if con.changes() - before < len(new):
            for row in new:
                if con.execute(_KEPT, row[:3])[0][4] != row[7]:
                    _tell(row)
    if len(new) < len(rows):
        for result, row in zip(results, rows, strict=True):
            if result.state == "SUPERSEDED":
                _late(con, result, row)


def _late(con: Connection, result: Result, row: Row) -> None:
    found = con.execute(_KEPT, row[:3])
    if not found:
        _FIRST(con, [row])
    elif follows(result, result_of(found[0])):
        con.execute(_LATE, (*row[3:], *row[:3]))
    elif found[0][4] != row[7]:
        _tell(row)


def _tell(row: Row) -> None:
    what = "batch %d position %d attempt %d has a result already: another one, %s, was left out"
    log.warning(what, *row[:4])

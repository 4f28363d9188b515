"""Deleting what pruned batches left behind: a little at a time, so that commits never wait long.

Rows go. Entries of the log stay, because their numbers count, but without what the batches ran.
"""

from msgspec.structs import replace

from rota.model.batch import Template
from rota.model.events import Entry, Retemplated, Submitted
from rota.store.connection import Connection
from rota.store.database import Database
from rota.store.rows import DamagedError, entry_of, entry_row

__all__ = ["Sweeper", "shrink"]

SPARE_PAGES = 1_024
"""Free pages that stay in the file for what comes next (4 MB)."""
PAGES_AT_ONCE = 256
CHUNKS_AT_ONCE = 16
BATCHES_AT_ONCE = 200
ENTRIES_AT_ONCE = 5_000
GONE = "[pruned]"


class Sweeper:
    """Deletes and forgets, and knows how far it has come; after a restart it looks at the log once more."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._forgotten: frozenset[int] = frozenset()
        """Batches that are looked for in the log, or that were."""
        self._after = self._upto = 0
        """Entries that were looked at, and those that are to be."""
        self.traces = False
        """Whether what was deleted can still be read: in the write-ahead log, or below it."""

    def sweep(self, covered: int, rows: int) -> bool:
        """One short transaction; True if there is more to do now. `covered`: what the last checkpoint was for."""
        db, done, after = self._db, [0], self._after
        sql = "SELECT 1 FROM pruned WHERE swept = 0 OR seq <= ? LIMIT 1"
        if not db.read("what was pruned", sql, (covered,)):
            return False
        over = "SELECT batch FROM pruned WHERE swept = 1 AND seq <= ? ORDER BY batch"
        numbers = [row[0] for row in db.read("what was pruned", over, (covered,))]
        known = [number for number in numbers if number in self._forgotten]
        if numbers and not known:
            self._forgotten, self._after, self._upto = frozenset(numbers), 0, covered
            after, known = 0, numbers

        def work(con: Connection) -> None:
            nonlocal after
            for number, source in con.execute(
                "SELECT batch, source FROM pruned WHERE swept = 0 ORDER BY batch LIMIT ?", (BATCHES_AT_ONCE,)
            ):
                if done[0] >= rows or not _emptied(con, number, source, rows - done[0], done):
                    return
            if done[0]:
                return
            if after < self._upto:
                after = _forgotten(con, self._forgotten, after, self._upto)
                return
            for number in known[:BATCHES_AT_ONCE]:
                con.execute("DELETE FROM columns WHERE batch = ?", (number,))
                con.execute("DELETE FROM pruned WHERE batch = ?", (number,))
                done[0] += 1

        db.write("deleting what was pruned", work)
        self._after, self.traces = after, True
        db.wrote(8 + done[0] // 8)
        return True

    def leave_no_traces(self) -> None:
        """See that what was deleted is in no file any more; if somebody reads just now, the next time."""
        self.traces = self.traces and not self._db.empty_log()


def _forgotten(con: Connection, batches: frozenset[int], after: int, upto: int) -> int:
    """Take what these batches ran out of some entries of the log; the last entry that was looked at.

    Only of entries that a checkpoint covers: no restart folds them. They can be folded all the same.
    """
    upto = min(upto, max(after, (con.execute("SELECT min(seq) FROM entries")[0][0] or 1) - 1) + ENTRIES_AT_ONCE)
    sql = """SELECT seq, at, by, crc, body FROM entries
        WHERE seq > ? AND seq <= ? AND kind IN ('Submitted', 'Retemplated')"""
    for row in con.execute(sql, (after, upto)):
        try:
            entry = entry_of(row)
        except DamagedError:
            continue  # who reads it will say so
        event = entry.event
        if isinstance(event, Submitted) and event.batch in batches:
            templates = tuple(_bare(template) for template in event.spec.templates)
            event = replace(event, spec=replace(event.spec, templates=templates))
        elif isinstance(event, Retemplated) and event.batch in batches:
            event = replace(event, template=_bare(event.template))
        else:
            continue
        *_, crc, body = entry_row(Entry(entry.seq, entry.at, entry.by, event))
        con.execute("UPDATE entries SET crc = ?, body = ? WHERE seq = ?", (crc, body, entry.seq))
    return upto


def _bare(template: Template) -> Template:
    """A template without what it ran, with what environment, and where."""
    return replace(
        template,
        argv=None if template.argv is None else (GONE,),
        shell=None if template.shell is None else GONE,
        cwd="/",
        set={},
        stdin=None,
        stdout=None,
        stderr=None,
        modules=(),
        setup=None,
        on_success=(),
        on_failure=(),
        on_exit=(),
    )


def _emptied(con: Connection, number: int, source: int | None, rows: int, done: list[int]) -> bool:
    """Delete some results, or else some values, of one batch; True if none is left."""
    low = con.execute("SELECT min(pos) FROM results WHERE batch = ?", (number,))[0][0]
    if low is not None:
        con.execute("DELETE FROM results WHERE batch = ? AND pos < ?", (number, low + rows))
        done[0] += max(1, con.execute("SELECT changes()")[0][0])
        if con.execute("SELECT 1 FROM results WHERE batch = ? LIMIT 1", (number,)):
            return False
    if source is not None:
        some = "SELECT id FROM chunks WHERE source = ? ORDER BY first LIMIT ?"
        found = con.execute(some, (source, CHUNKS_AT_ONCE))
        for (chunk,) in found:
            con.execute("DELETE FROM chunks WHERE id = ?", (chunk,))
        done[0] += 100 * len(found)
        if len(found) == CHUNKS_AT_ONCE:
            return False
        con.execute("DELETE FROM sources WHERE id = ?", (source,))
    con.execute("UPDATE pruned SET swept = 1 WHERE batch = ?", (number,))
    done[0] += 1
    return True


def shrink(db: Database) -> bool:
    """Give some free pages at the end of the file back to the file system; True if there are more."""
    if db.read("the file", "PRAGMA auto_vacuum") != [(2,)]:  # made by an older version: free pages are used again
        return False
    free = db.read("the file", "PRAGMA freelist_count")[0][0]
    if free <= SPARE_PAGES:
        return False
    db.write("shrinking the file", lambda con: _vacuum(con, min(PAGES_AT_ONCE, free - SPARE_PAGES)))
    db.wrote(2 * PAGES_AT_ONCE)
    return True


def _vacuum(con: Connection, pages: int) -> None:
    for _ in range(pages):  # the standard library stops after the first page, however many are asked for
        con.execute("PRAGMA incremental_vacuum(1)")

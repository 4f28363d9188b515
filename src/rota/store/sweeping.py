"""Deleting what pruned batches left behind: a little at a time, so that commits never wait long."""

from rota.store.connection import Connection
from rota.store.database import Database

__all__ = ["shrink", "sweep"]

SPARE_PAGES = 1_024
"""Free pages that stay in the file for what comes next (4 MB)."""
PAGES_AT_ONCE = 256
CHUNKS_AT_ONCE = 16
BATCHES_AT_ONCE = 200


def sweep(db: Database, covered: int, rows: int) -> bool:
    """One short transaction; True if there is more to do now. `covered`: the entry that the last checkpoint was for."""
    done = [0]

    def work(con: Connection) -> None:
        for number, source in con.execute(
            "SELECT batch, source FROM pruned WHERE swept = 0 ORDER BY batch LIMIT ?", (BATCHES_AT_ONCE,)
        ):
            if done[0] >= rows or not _emptied(con, number, source, rows - done[0], done):
                return
        over = "SELECT batch FROM pruned WHERE swept = 1 AND seq <= ? ORDER BY batch LIMIT ?"
        for (number,) in con.execute(over, (covered, BATCHES_AT_ONCE)) if not done[0] else ():
            con.execute("DELETE FROM columns WHERE batch = ?", (number,))
            con.execute("DELETE FROM pruned WHERE batch = ?", (number,))
            done[0] += 1

    if db.read("what was pruned", "SELECT 1 FROM pruned WHERE swept = 0 OR seq <= ? LIMIT 1", (covered,)):
        db.write("deleting what was pruned", work)
        db.wrote(8 + done[0] // 8)
        return True
    return False


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

"""The table of replicas."""

from collections.abc import Sequence

from rota.model.data import Replica
from rota.store.connection import Connection
from rota.store.database import Database

__all__ = ["read_replicas", "write_replicas"]


def read_replicas(db: Database) -> list[Replica]:
    """All replicas."""
    sql = "SELECT path, location, size, mtime, checksum, valid, cached, used, why FROM replicas ORDER BY path, location"
    return [
        Replica(path, location, size, mtime, checksum, bool(valid), bool(cached), used, why)
        for path, location, size, mtime, checksum, valid, cached, used, why in db.read("the replicas", sql)
    ]


def write_replicas(db: Database, keep: Sequence[Replica], drop: Sequence[tuple[str, str]]) -> None:
    """Write some, and forget others, in one transaction."""

    def work(con: Connection) -> None:
        for path, location in drop:
            con.execute("DELETE FROM replicas WHERE path = ? AND location = ?", (path, location))
        for row in keep:
            con.execute(
                "INSERT OR REPLACE INTO replicas VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (row.path, row.location, row.size, row.mtime, row.checksum, row.valid, row.cached, row.used, row.why),
            )

    with db.writing:
        db.check_usable()
        db.write("replicas", work, False)
        db.wrote(len(keep) + len(drop))

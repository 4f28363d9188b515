"""Opening a database: is it ours, is it sound, is it of this version."""

import os
import re
import stat
from pathlib import Path

from rota.model.errors import StoreError, VersionError
from rota.model.events import VERSION as EVENTS
from rota.store.connection import Connection, statements

__all__ = ["APPLICATION", "MIGRATIONS", "check_file", "check_own", "check_version", "latest", "prepare"]

APPLICATION = 0x726F7461
"""`rota` in the header of the file."""
PAGE = 4096
FULL_CHECK = 8 << 20
QUICK_CHECK = 64 << 20
"""How much is checked at each opening: below the first size everything, below the second the structure, beyond it
nothing, because a start would wait for seconds. Every row that matters has a checksum, so what is read is right or
refused in any case; `SqliteStore.check` reads everything."""
MIGRATIONS = Path(__file__).with_name("migrations")
_MAGIC = b"SQLite format 3\0"
_LEFT = "it was left as it is"


def latest(migrations: Path = MIGRATIONS) -> int:
    """The newest version that this rota knows."""
    return max(_numbered(migrations))


def _numbered(migrations: Path) -> dict[int, Path]:
    files = [path for path in migrations.iterdir() if re.fullmatch(r"[0-9]{4}_\w+\.sql", path.name)]
    found = {int(path.name[:4]): path for path in files}
    if not found or sorted(found) != list(range(1, len(files) + 1)):
        raise StoreError(f"{migrations}: the migrations are not numbered from 1 without gaps; install rota again")
    return found


def check_own(path: str) -> None:
    """Raise StoreError unless the files that SQLite would open are ours, no links, and nobody else can write them."""
    for end in ("", "-wal", "-shm", "-journal"):
        try:
            found = os.lstat(path + end)
        except OSError:
            continue  # missing, or what opening it will say
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise StoreError(
                f"{path + end}: not a file of yours that nobody else can write (uid {found.st_uid}, mode "
                f"{found.st_mode & 0o7777:04o}); {_LEFT}: find out who put it there, and move it away"
            )


def check_file(path: str) -> None:
    """Raise StoreError for a file that is plainly something else, before SQLite touches it."""
    try:
        with open(path, "rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); look at its permissions") from None
    if not head or os.path.exists(path + "-journal"):
        return  # new, or its making was cut short: SQLite tidies up
    if not head.startswith(_MAGIC) or len(head) < 100:
        what = "not a database, or its beginning is damaged"
        raise StoreError(f"{path}: {what}; {_LEFT}: move it away, or restore a backup")
    if os.path.getsize(path) == PAGE and head[68:72] == bytes(4):
        return  # one empty page: its making was cut short just after SQLite had laid down the file
    _check_owner(path, int.from_bytes(head[68:72], "big"))


def _check_owner(path: str, application: int) -> None:
    if application != APPLICATION:
        what = f"a database of another program (application id {application:#x})"
        raise StoreError(f"{path}: {what}; {_LEFT}: choose another path")


def prepare(con: Connection, path: str, migrations: Path = MIGRATIONS) -> None:
    """Check the database and bring it to the newest version; make it if the file is empty."""
    newest = latest(migrations)
    con.execute("PRAGMA cell_size_check=ON")
    con.execute("PRAGMA trusted_schema=OFF")
    if not con.execute("SELECT 1 FROM sqlite_master LIMIT 1"):
        _create(con, newest, migrations)
    _check_owner(path, con.execute("PRAGMA application_id")[0][0])
    version = con.execute("PRAGMA user_version")[0][0]
    if version > newest:
        _refuse_newer(path, "schema version", version, newest)
    _check(con, path)
    if version < newest:
        _migrate(con, version, newest, migrations)
    events = con.execute("SELECT value FROM meta WHERE key = 'events'")
    if not events or not isinstance(events[0][0], int):
        what = "the version of its events is missing, so the file is damaged"
        raise StoreError(f"{path}: {what}; keep it, and restore the latest backup")
    if events[0][0] > EVENTS:
        _refuse_newer(path, "events of version", events[0][0], EVENTS)
    if events[0][0] < EVENTS:
        con.execute("UPDATE meta SET value = ? WHERE key = 'events'", (EVENTS,))


def check_version(con: Connection, path: str, migrations: Path = MIGRATIONS) -> None:
    """Raise VersionError for a database that cannot be read as it is, because another version of rota wrote it."""
    newest, version = latest(migrations), con.execute("PRAGMA user_version")[0][0]
    if version > newest:
        _refuse_newer(path, "schema version", version, newest)
    if version < newest:
        raise VersionError(f"{path} was written by an older rota: rota up starts a manager, which brings it up to date")


def _refuse_newer(path: str, what: str, found: int, known: int) -> None:
    raise VersionError(
        f"{path} has {what} {found}, and this rota knows versions up to {known}: use the newer rota that wrote it, "
        f"or a backup made before the upgrade; {_LEFT}"
    )


def _create(con: Connection, newest: int, migrations: Path) -> None:
    """Make all tables in one transaction.

    Still without a write-ahead log, so that the header tells whose file it is from the first moment on.
    """
    con.execute(f"PRAGMA page_size={PAGE}")
    con.execute("PRAGMA auto_vacuum=INCREMENTAL")  # so that pruning gives space back without copying the file
    con.execute("BEGIN IMMEDIATE")
    try:
        _run(con, [path for _, path in sorted(_numbered(migrations).items())])
        con.execute("INSERT INTO meta VALUES ('events', ?)", (EVENTS,))
        con.execute(f"PRAGMA application_id={APPLICATION}")
        con.execute(f"PRAGMA user_version={newest}")
        con.execute("COMMIT")
    finally:
        if con.in_transaction():
            con.execute("ROLLBACK")


def _migrate(con: Connection, version: int, newest: int, migrations: Path) -> None:
    """Make all steps of a migration in one transaction: the old version or the new, nothing between."""
    found = _numbered(migrations)
    con.execute("BEGIN IMMEDIATE")
    try:
        _run(con, [found[step] for step in range(version + 1, newest + 1)])
        con.execute(f"PRAGMA user_version={newest}")
        con.execute("COMMIT")
    finally:
        if con.in_transaction():
            con.execute("ROLLBACK")


def _run(con: Connection, scripts: list[Path]) -> None:
    for script in scripts:
        for sql in statements(script.read_text(encoding="utf-8")):
            con.execute(sql)


def _check(con: Connection, path: str) -> None:
    size = con.execute("PRAGMA page_count")[0][0] * con.execute("PRAGMA page_size")[0][0]
    if size > QUICK_CHECK:
        return
    found = con.execute("PRAGMA integrity_check(1)" if size <= FULL_CHECK else "PRAGMA quick_check(1)")
    if found != [("ok",)]:
        what = f"damaged ({found[0][0]})"
        raise StoreError(f"{path}: {what}; keep the file, look at the disk, and restore the latest backup")

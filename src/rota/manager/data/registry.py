"""The registry: which files are at which places. Kept by the store, told to policies as the fact `replicas`."""

import time
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from rota.manager.writer import Writer
from rota.model.data import Replica
from rota.store.api import Store

__all__ = ["Registry"]


class Registry:
    """All replicas, in memory and on disk. A change is told at once, and written soon after."""

    def __init__(self, store: Store, writer: Writer, tell: Callable[[str, object, object], None]) -> None:
        self._store = store
        self._writer = writer
        self._tell = tell
        self._rows: dict[str, dict[str, Replica]] = {}
        """Path → place → the replica."""

    def load(self) -> None:
        """Read what is on disk, and tell policies."""
        for row in self._store.replicas():
            self._rows.setdefault(row.path, {})[row.location] = row
        for path in self._rows:
            self._tell_path(path)

    def of(self, path: str) -> list[Replica]:
        """All replicas of a path."""
        return list(self._rows.get(path, {}).values())

    def at(self, path: str, location: str) -> Replica | None:
        """The replica of a path at a place."""
        return self._rows.get(path, {}).get(location)

    def all(self) -> list[Replica]:
        """Every replica, by path and place."""
        return [self._rows[path][place] for path in sorted(self._rows) for place in sorted(self._rows[path])]

    def cached(self, location: str) -> list[Replica]:
        """What was brought to a place, the one that was used longest ago first."""
        found = [rows[location] for rows in self._rows.values() if location in rows and rows[location].cached]
        return sorted(found, key=lambda row: row.used)

    def keep(self, *rows: Replica) -> None:
        """Take new replicas, or what is new of those that there are."""
        news = [row for row in rows if self.at(*row.key) != row]
        for row in news:
            self._rows.setdefault(row.path, {})[row.location] = row
        self._write(news, [])
        for path in dict.fromkeys(row.path for row in news):
            self._tell_path(path)

    def drop(self, keys: Iterable[tuple[str, str]]) -> None:
        """Forget replicas; the files stay where they are."""
        gone = [key for key in keys if self.at(*key) is not None]
        for path, location in gone:
            del self._rows[path][location]
            if not self._rows[path]:
                del self._rows[path]
        self._write([], gone)
        for path in dict.fromkeys(path for path, _ in gone):
            self._tell_path(path)

    def spoil(self, path: str, location: str, why: str) -> None:
        """Take it that a replica cannot be used."""
        row = self.at(path, location)
        if row is not None and row.valid:
            self.keep(replace(row, valid=False, why=why))

    def use(self, path: str, location: str) -> None:
        """A job begins to use a replica."""
        row = self.at(path, location)
        if row is not None and row.cached:
            self.keep(replace(row, used=time.time()))

    def _write(self, keep: list[Replica], drop: list[tuple[str, str]]) -> None:
        if keep or drop:
            self._writer.put(lambda: self._store.keep_replicas(keep, drop), lambda error: None)

    def _tell_path(self, path: str) -> None:
        valid = sorted((row.location, row.size) for row in self.of(path) if row.valid)
        self._tell("replicas", path, tuple(valid) or None)

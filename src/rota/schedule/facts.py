"""Facts: what is known beside jobs and places, by name and key, with a version for each key.

Told by the core, read by policies. A key that changes wakes only what has looked it up.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

__all__ = ["ALL", "Facts", "Key", "Stats", "Watched"]

Key = tuple[str, Any]
"""(fact, key)."""
ALL = "*"
"""The key that stands for every key of a fact: whoever goes over all of them has looked it up."""
_NONE: Mapping[Any, Any] = MappingProxyType({})


class Stats(Struct, frozen=True):
    """How allocations fare at a queue: the fact `stats`, by (site, queue; "": the site's own)."""

    wait_s: float | None = None
    """Recent mean of the seconds from submission to start; None: none has started yet."""
    waiting: int = 0
    """How many wait now."""
    oldest: float = 0.0
    """Wall-clock time at which the oldest of these was submitted."""
    running: int = 0
    """How many run."""
    kinds: tuple[tuple[int, int, float], ...] = ()
    """(class of sizes, class of times, recent mean of the seconds that such waited), where there are several sites."""


class Facts(Mapping[str, Mapping[Any, Any]]):
    """Fact → key → value. A fact that nobody told is empty. Values are never changed in place."""

    __slots__ = ("_values", "changed", "versions")

    def __init__(self) -> None:
        self._values: dict[str, dict[Any, Any]] = {}
        self.versions: dict[Key, int] = {}
        self.changed: dict[Key, None] = {}
        """The keys that changed since the scheduler last looked, which empties this."""

    def tell(self, name: str, key: Any, value: Any) -> bool:
        """Set a value, or take it away (None); returns whether that is news."""
        values = self._values.get(name)
        if values is None:
            values = self._values[name] = {}
        if values.get(key) == value:
            return False
        if value is None:
            del values[key]
        else:
            values[key] = value
        for changed in ((name, key), (name, ALL)):
            self.versions[changed] = self.versions.get(changed, 0) + 1
            self.changed[changed] = None
        return True

    @property
    def source(self) -> "Facts":
        """The facts themselves."""
        return self

    def version(self, name: str) -> int:
        """How often any key of a fact has changed."""
        return self.versions.get((name, ALL), 0)

    def copy(self) -> "Facts":
        """Facts that can go another way."""
        new = Facts()
        new._values = {name: values.copy() for name, values in self._values.items()}
        new.versions, new.changed = self.versions.copy(), self.changed.copy()
        return new

    def __getitem__(self, name: str) -> Mapping[Any, Any]:
        values = self._values.get(name)
        return _NONE if values is None else MappingProxyType(values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Watched(Mapping[str, Mapping[Any, Any]]):
    """Facts that note which keys were looked up."""

    __slots__ = ("_facts", "_known", "seen")

    def __init__(self, facts: Mapping[str, Mapping[Any, Any]]) -> None:
        self._facts = facts
        self._known: dict[str, _WatchedFact] = {}
        self.seen: set[Key] = set()

    @property
    def source(self) -> Facts | None:
        """The facts themselves."""
        return self._facts.source if isinstance(self._facts, Facts | Watched) else None

    def version(self, name: str) -> int:
        """How often any key of a fact has changed: whoever asks has looked all of them up."""
        self.seen.add((name, ALL))
        return self._facts.version(name) if isinstance(self._facts, Facts | Watched) else 0

    def __getitem__(self, name: str) -> Mapping[Any, Any]:
        fact = self._known.get(name)
        if fact is None:
            fact = self._known[name] = _WatchedFact(name, self._facts[name], self)
        return fact

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)


class _WatchedFact(Mapping[Any, Any]):
    """One fact of these."""

    __slots__ = ("_name", "_values", "_watched")

    def __init__(self, name: str, values: Mapping[Any, Any], watched: Watched) -> None:
        self._name = name
        self._values = values
        self._watched = watched

    def __getitem__(self, key: Any) -> Any:
        self._watched.seen.add((self._name, key))
        return self._values[key]

    def get(self, key: Any, default: Any = None) -> Any:
        self._watched.seen.add((self._name, key))
        return self._values.get(key, default)

    def __contains__(self, key: Any) -> bool:
        self._watched.seen.add((self._name, key))
        return key in self._values

    def __iter__(self) -> Iterator[Any]:
        self._watched.seen.add((self._name, ALL))
        return iter(self._values)

    def __len__(self) -> int:
        self._watched.seen.add((self._name, ALL))
        return len(self._values)

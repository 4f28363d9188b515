"""From what lines say of each other to the links of a graph: ids in any order, names, and what is outside."""

from array import array
from collections.abc import Iterable
from typing import Any

from rota.model.batch import Dependency
from rota.model.errors import UsageError
from rota.model.graph import MAX_NAMES, MEMBER, find_circle
from rota.model.selector import parse_selector

__all__ = ["Weaver"]

AFTER = ("after", "after_any", "after_failure")
"""Fields of a line that say what it waits for, in the order of the conditions of links."""
SHOWN = 12
"""Lines of a circle that are shown."""

_Given = tuple[Any, Any, Any, Any, Any]
"""after, after_any, after_failure, name and live of a line."""


class Weaver:
    """Collects the lines of one batch that have an id, a name or something to wait for; then makes their links."""

    def __init__(self, where: str = "") -> None:
        self._where = where
        self._ids: dict[str, int] = {}
        self._lines: dict[int, int] = {}
        """Position of a job that says something of the kind → the number of its line."""
        self._given: dict[int, _Given] = {}
        self._groups: dict[str, int] = {}
        """Name that lines have → node."""
        self._gates: dict[tuple[str, bool, bool], int] = {}
        """(what is outside, whether new batches count, and rerun) → node."""
        self._links: array[int] = array("I")
        self._offsets: array[int] = array("I", (0,))

    @property
    def woven(self) -> bool:
        """Whether any line says something of the kind."""
        return bool(self._given)

    def add(self, pos: int, number: int, line: Any) -> None:
        """Take the fields of one line; `number` is what people know it by."""
        if line.id is not None:
            word = line.id if type(line.id) is str else str(line.id)
            if not word or word[0] in "@:-":
                raise UsageError(
                    f"field 'id': '{word[:40]}' cannot be one: give a word that does not begin with @ : or -"
                )
            if self._ids.setdefault(word, pos) != pos:
                raise UsageError(f"field 'id': line {self._number(self._ids[word])} has the id '{word[:40]}' already")
            self._lines[pos] = number
        given = (line.after, line.after_any, line.after_failure, line.name, line.live)
        if given != _NOTHING:
            if given[:3] == _NOTHING[:3] and line.live is not None:
                raise UsageError("field 'live': there is nothing to wait for; give after")
            for name in _several(line.name):
                if not name or name[0] in "@:-":
                    raise UsageError(f"field 'name': '{name[:40]}' cannot be one: it must not begin with @ : or -")
            self._given[pos] = given
            self._lines[pos] = number

    def _number(self, pos: int) -> int:
        return self._lines.get(pos, pos + 1)

    def weave(self, count: int) -> None:
        """Make the links of all jobs, now that all ids and names are known. Refuses unknown ids, and circles."""
        names = sorted({name for given in self._given.values() if given[3] for name in _several(given[3])})
        if len(names) > MAX_NAMES:
            raise UsageError(f"{self._where}the lines have {len(names):,} names; the most is {MAX_NAMES:,}")
        self._groups = {name: count + at for at, name in enumerate(names)}
        offsets, links, ids = array("I", (0,)), array("I"), self._ids
        for pos in range(count):
            given = self._given.get(pos)
            if given is not None:
                try:  # most lines wait for the success of lines with an id, and say nothing else
                    if type(given[0]) is not tuple or given[1:] != _NOTHING[1:]:
                        raise KeyError
                    row = [ids[word] << 2 for word in given[0]]
                    links.extend(row if len(row) < 2 else dict.fromkeys(row))
                except KeyError:
                    links.extend(dict.fromkeys(self._row(pos, count + len(names), given)))
            offsets.append(len(links))
        self._offsets, self._links = offsets, links
        if circle := find_circle(count, offsets, links):
            numbers = [str(self._number(pos)) for pos in circle]
            if len(numbers) > SHOWN:
                numbers[SHOWN // 2 : -SHOWN // 2] = ["…"]
            path = " → ".join(numbers)
            if len(circle) == 2:
                raise UsageError(f"{self._where}line {numbers[0]} waits for itself and could never run")
            raise UsageError(f"{self._where}lines {path} wait for each other and could never run")

    def _row(self, pos: int, first: int, given: _Given) -> Iterable[int]:
        """The links of one line; `first` is the node of the first thing outside."""
        own = set(_several(given[3]))
        live, rerun = bool(given[4]), given[4] == "rerun"
        for condition, words in enumerate(given[:3]):
            for word in _several(words):
                by_name = word[:1] == "@"
                if word in self._ids:
                    node = self._ids[word]
                elif by_name and word[1:] in self._groups and word[1:] not in own and not live:
                    node = self._groups[word[1:]]
                else:
                    self._check(pos, condition, word)
                    key = (word, live and by_name, rerun and by_name)
                    node = self._gates.setdefault(key, first + len(self._gates))
                yield node << 2 | condition
        for name in sorted(own):
            yield self._groups[name] << 2 | MEMBER

    def _check(self, pos: int, bits: int, word: str) -> None:
        """Refuse what is neither an id nor a selector."""
        where = f"{self._where}line {self._number(pos)}: field '{AFTER[bits]}': "
        try:
            selector = parse_selector([word])
            if not word.startswith("@") and not word[:1].isdigit():  # a name has its @ here: it could be a mistyped id
                raise UsageError("not a selector")
            if selector.states or not (selector.spans or selector.names):
                raise UsageError("not a batch, job or name")
        except UsageError:
            raise UsageError(f"{where}no line has the id '{word[:60]}'{self._nearest(word)}") from None

    def _nearest(self, word: str) -> str:
        import difflib

        near = difflib.get_close_matches(word, list(self._ids)[:20_000], 1)
        return f" (did you mean '{near[0]}', line {self._number(self._ids[near[0]])}?)" if near else ""

    def rows(self, first: int, count: int) -> list[list[int]]:
        """The links of these jobs."""
        offsets, links = self._offsets, self._links
        return [links[offsets[pos] : offsets[pos + 1]].tolist() for pos in range(first, first + count)]

    def head(self) -> dict[str, Any]:
        """The nodes that are not jobs of the batch, as a request carries them."""
        import msgspec

        after = [Dependency(word, live=live, rerun=rerun) for word, live, rerun in self._gates]
        return {"names": list(self._groups), "after": msgspec.to_builtins(after)}


_NOTHING: _Given = (None, None, None, None, None)


def _several(given: Any) -> Iterable[str]:
    if given is None:
        return ()
    return (str(given),) if isinstance(given, str | int) else (str(word) for word in given)

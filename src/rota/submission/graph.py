"""A workflow from Python: jobs that wait for each other, submitted as one batch."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["Graph"]


class Graph:
    """A workflow of any shape: `add` its jobs, in any order, then `client.submit(lines=graph)`.

    The job of the first `add` is number 1 of the batch, and so on.
    """

    def __init__(self) -> None:
        self._lines: list[dict[str, Any]] = []

    def add(
        self,
        command: str | Sequence[str],
        *,
        after: str | int | Iterable[str | int] = (),
        id: str | None = None,
        **fields: Any,
    ) -> str:
        """Add a job, with the fields of a JSON line; its id, for the `after` of others."""
        own = id if id is not None else f"#{len(self._lines) + 1}"
        line = {"command": command if isinstance(command, str) else list(command), "id": own, **fields}
        waits = (after,) if isinstance(after, str | int) else tuple(after)
        if waits:
            line["after"] = waits
        self._lines.append(line)
        return own

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

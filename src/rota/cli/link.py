"""The way from a command to its manager."""

import sys

from rota.wire.client import Connection, NoManagerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from typing import Any

__all__ = ["connect", "connect_or_start", "pages"]


def connect(args: "argparse.Namespace") -> Connection:
    """A connection to the manager that is up; NoManagerError (exit status 3) if none is."""
    return Connection.connect(args.home)


def connect_or_start(home: "str | None", extra: "Sequence[str]" = (), say: bool = True) -> "tuple[Connection, bool]":
    """A connection, and whether the manager was started for it."""
    try:
        return Connection.connect(home), False
    except NoManagerError:
        # A manager of this home on another host is no reason to start a second one: `start` refuses that.
        pass
    from rota.manager.daemon import start

    pid = start(home, extra)
    connection = Connection.connect(home)
    if say:
        there = connection.manager
        print(f"rota: started a manager on {there.get('host')} (pid {pid}), home {there.get('home')}", file=sys.stderr)
    return connection, True


def pages(
    connection: Connection, op: str, field: str, most: "int | None" = None, **arguments: "Any"
) -> "Iterator[list[Any]]":
    """The rows of a paged answer, page by page, at most so many."""
    after = None
    while most is None or most > 0:
        limit = 1_000 if most is None else min(most, 1_000)
        answer = connection.ask(op, after=after, limit=limit, **arguments)
        rows, after = answer[field], answer.get("next")
        if rows:
            yield rows
        if most is not None:
            most -= len(rows)
        if after is None:
            return

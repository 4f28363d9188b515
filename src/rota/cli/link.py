"""Connections from commands to their manager, which is started or taken down if need be."""

import os
import sys
import time

from rota.model.errors import RotaError
from rota.wire.client import Connection, NoManagerError, job_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from typing import Any

    from rota.manager.offline.looking import Reader

    Looker = Connection | Reader
    """Whoever answers questions."""

__all__ = ["connect", "connect_or_start", "look", "pages", "take_down"]

STOP_S = 60.0
"""How long a manager may take to end."""


def connect(args: "argparse.Namespace") -> Connection:
    """A connection to the manager that is up; NoManagerError (exit status 3) if none is."""
    return Connection.connect(args.home)


def look(args: "argparse.Namespace") -> "Looker":
    """A connection to the manager that is up, or else to its store: looking needs no manager."""
    try:
        return Connection.connect(args.home)
    except NoManagerError:
        from rota.manager.paths import Paths

        if not os.path.exists(Paths(args.home).database):
            raise
        from rota.manager.offline.looking import Reader

        reader = Reader(args.home)
        pilot = os.path.exists(Paths(args.home).pilot)
        how = "the pilot here has ended" if pilot else "no manager is up"
        print(f"rota: {how}: this is what its store says{'' if pilot else ' (rota up starts one)'}", file=sys.stderr)
        return reader


def greeted(home: "str | None") -> Connection:
    """A connection to a manager that has answered: one that is being killed still has a socket, and answers nobody."""
    connection = Connection.connect(home)
    try:
        _ = connection.manager
    except BaseException:
        connection.close()
        raise
    return connection


def connect_or_start(home: "str | None", extra: "Sequence[str]" = (), say: bool = True) -> "tuple[Connection, bool]":
    """A connection, and whether the manager was started for it."""
    try:
        return greeted(home), False
    except NoManagerError:
        if home is None and job_address() is not None:
            raise  # a second one would end with the job that this runs in
        # A manager of this home on another host is no reason to start a second one: `start` refuses that.
    from rota.manager.daemon import start

    pid = start(home, extra)
    connection = Connection.connect(home)
    if say:
        there = connection.manager
        print(f"rota: started a manager on {there.get('host')} (pid {pid}), home {there.get('home')}", file=sys.stderr)
    return connection, True


def take_down(connection: Connection, kill: bool) -> "tuple[dict[str, Any], bool]":
    """Ask the manager to end; its answer, and whether it is gone by now."""
    there = connection.manager
    answer = connection.ask("down", kill=kill)
    deadline = time.monotonic() + STOP_S
    try:
        while time.monotonic() < deadline:
            connection.ask("ping")
            time.sleep(0.02)
    except RotaError:
        pass  # it no longer listens
    while there.get("host") == os.uname().nodename and not has_ended(int(there["pid"])):
        if time.monotonic() > deadline:
            return answer, False
        time.sleep(0.005)
    return answer, True


def has_ended(pid: int) -> bool:
    """True if this process is gone, or only waits for its parent to notice."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"Z", b"X")
    except OSError:
        return True


def pages(
    connection: "Looker",
    op: str,
    field: str,
    most: "int | None" = None,
    most_at_once: int = 1_000,
    **arguments: "Any",
) -> "Iterator[list[Any]]":
    """The rows of a paged answer, page by page, at most so many."""
    after = None
    while most is None or most > 0:
        limit = most_at_once if most is None else min(most, most_at_once)
        answer = connection.ask(op, after=after, limit=limit, **arguments)
        rows, after = answer[field], answer.get("next")
        if rows:
            yield rows
        if most is not None:
            most -= len(rows)
        if after is None:
            return

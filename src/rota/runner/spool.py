"""What a runner leaves in files and says on standard error: reports that it could not send, for those after it."""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False  # as in `typing`, which is not worth its load time before the greeting is out
if TYPE_CHECKING:
    from typing import Any, Dict

    from rota.runner.lease import Key
    from rota.runner.protocol import Runner

__all__ = ["UNSENT", "log", "restore", "sync_directory", "write_json"]

UNSENT = "unsent.json"
MAYBE = type(None)
REAL = (int, float)
ENDED = (  # as EndedRow of docs/protocol.md
    *((int,), (int,), (int,), (int, MAYBE), (int, MAYBE), (str, MAYBE), REAL, REAL, REAL, (int,)),
    *((list, MAYBE), (str, MAYBE), (int, MAYBE)),
)
DISCLAIMED = ((int,), (int,), (int,), (str,))


def log(text: str) -> None:
    """Say something on standard error, with the time."""
    try:
        sys.stderr.write("%s rota-runner[%d] %s\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), os.getpid(), text))
        sys.stderr.flush()
    except OSError:
        pass  # nobody listens; that must not end jobs


def write_json(directory: str, name: str, content: Dict[str, Any]) -> None:
    """Write a file whole or not at all, and have it on disk."""
    path = os.path.join(directory, name)
    temporary = "%s.%s.%d" % (path, os.uname().nodename, os.getpid())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(fd)
    os.rename(temporary, path)
    sync_directory(directory)


def sync_directory(directory: str) -> None:
    """Have the names in a directory on disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def restore(runner: Runner, output: str) -> Dict[Key, None]:
    """Take over the unacknowledged reports that an earlier runner left in this directory."""
    path = os.path.join(output, UNSENT)
    try:
        with open(path, encoding="ascii") as file:
            runner.restore(_sound(json.load(file)))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        log("cannot use %s: %s" % (path, problem))
        try:
            os.rename(path, path + ".bad")  # kept as evidence, and out of the way of the next spool
        except OSError:
            pass
        return {}
    return {lease.key: None for lease in runner.leases()}


def _sound(spooled: Any) -> Dict[str, Any]:
    """See that spooled reports are such as the manager takes: a job may have written them."""
    if not isinstance(spooled, dict):
        raise ValueError("not an object")
    for kind, types in (("ended", ENDED), ("disclaimed", DISCLAIMED)):
        for row in spooled[kind]:
            fits = isinstance(row, list) and len(types) - 1 <= len(row) <= len(types)
            if not fits or not all(type(value) in wanted for value, wanted in zip(row, types)):
                raise ValueError("not a row of %s: %.100r" % (kind, row))
            if any(type(value) in (int, float) and not 0 <= value < 1 << 53 for value in row):
                raise ValueError("a figure out of all bounds: %.100r" % (row,))
    return spooled

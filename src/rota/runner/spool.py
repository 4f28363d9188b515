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
            runner.restore(json.load(file))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as problem:
        log("cannot use %s: %s" % (path, problem))
        try:
            os.rename(path, path + ".bad")  # kept as evidence, and out of the way of the next spool
        except OSError:
            pass
        return {}
    return {lease.key: None for lease in runner.leases()}

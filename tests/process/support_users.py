"""Another user on this machine: a real user id, which only root can take. We are the victim."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

THIEF = 42_102


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that everybody may write, such as scratch; not sticky."""
    if os.getuid() != 0:
        pytest.skip("needs root: another user is made")
    with tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp") as place:
        os.chmod(place, 0o777)
        yield Path(place)


def by_thief(deed: Callable[[], object]) -> bool:
    """Do something as the other user, in a process of its own; whether the system let him.

    Forked and not started: he need not be able to read this installation.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(THIEF, THIEF, THIEF)
            os.setresuid(THIEF, THIEF, THIEF)
            os.umask(0)
            deed()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

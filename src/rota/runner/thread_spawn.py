"""Start jobs from one of several threads.

`os.posix_spawn` keeps the interpreter's lock until the job has become its program: no other thread can do anything
meanwhile, and on a busy machine that is long. The same function of the C library, called by ctypes, does not.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from rota.runner.spawn import DEFAULTS, Spawner, Streams

if TYPE_CHECKING:
    from rota.runner.environment import Environment

__all__ = ["ThreadSpawner", "Variables", "own_directory"]

Variables = Tuple["Environment", Dict[bytes, bytes]]
"""What all jobs of a spec have, and what this one has, which counts where both have it."""

CLONE_FS = 0x200
SETPGROUP, SETSIGDEF, SETSIGMASK, SETSID = 0x02, 0x04, 0x08, 0x80
ROOM = 1024  # bytes for what the C library keeps there: more than any has
MOST_ACTIONS = 1000
libc = ctypes.CDLL(None, use_errno=True)


def own_directory() -> bool:
    """Give this thread a directory and a umask of its own."""
    return bool(libc.unshare(CLONE_FS) == 0)


def _signals(numbers: List[int]) -> Any:
    found = ctypes.create_string_buffer(ROOM)
    libc.sigemptyset(found)
    for number in numbers:
        libc.sigaddset(found, number)
    return found


def _words(texts: List[bytes]) -> Any:
    """These as C has them."""
    if b"\0" in b"".join(texts):
        raise ValueError("embedded null byte")
    return (ctypes.c_char_p * (len(texts) + 1))(*texts)


def _variables(given: Mapping[bytes, bytes]) -> Any:
    if b"=" in b"".join(given):
        raise ValueError("illegal environment variable name")
    return _words([b"%b=%b" % item for item in given.items()])


class ThreadSpawner(Spawner):
    """Starts jobs from one thread."""

    def __init__(self) -> None:
        super().__init__()
        self._attributes = ctypes.create_string_buffer(ROOM)
        libc.posix_spawnattr_init(self._attributes)
        libc.posix_spawnattr_setsigmask(self._attributes, _signals([]))
        libc.posix_spawnattr_setsigdefault(self._attributes, _signals(DEFAULTS))
        alone = SETSID if "setsid" in self._alone else SETPGROUP  # a group of 0 is one of its own
        if libc.posix_spawnattr_setflags(self._attributes, ctypes.c_short(SETSIGDEF | SETSIGMASK | alone)):
            raise OSError("this C library cannot start a process in a session of its own")
        self._actions: Dict[Streams, Any] = {}
        self._pid = ctypes.c_int()
        self._last: Tuple[str, List[str], bytes, Any] = ("", [], b"", None)  # many jobs are alike
        self._environment: Optional[Environment] = None
        self._names: Dict[bytes, bytes] = {}
        self._common: Any = None
        self._pointers = b""

    def _spawn(self, path: str, argv: List[str], env: Variables, streams: Streams) -> int:
        if path != self._last[0] or argv != self._last[1]:
            program, *words = map(os.fsencode, (path, *argv))
            _words([program])
            self._last = (path, argv, program, _words(words))
        program, words = self._last[2:]
        environment, own = env
        common, mine = self._common_to(environment, own), _variables(own)  # arrays of pointers, of which the last is 0
        pid = ctypes.byref(self._pid)
        code = libc.posix_spawn(pid, program, self._files(streams), self._attributes, words, common + bytes(mine))
        if code:
            raise OSError(code, os.strerror(code))
        return self._pid.value

    def _common_to(self, environment: Environment, own: Dict[bytes, bytes]) -> bytes:
        """The pointers to the variables of a spec that its jobs do not have themselves."""
        if environment is not self._environment or own.keys() != self._names.keys():
            self._common = _variables({name: environment.base[name] for name in environment.base if name not in own})
            self._pointers = bytes(self._common)[: -ctypes.sizeof(ctypes.c_char_p)]
            self._environment, self._names = environment, own
        return self._pointers

    def _files(self, streams: Streams) -> Any:
        """What makes these the standard streams."""
        actions = self._actions.get(streams)
        if actions is None:
            if len(self._actions) >= MOST_ACTIONS:
                for old in self._actions.values():
                    libc.posix_spawn_file_actions_destroy(old)
                self._actions.clear()
            actions = self._actions[streams] = ctypes.create_string_buffer(ROOM)
            libc.posix_spawn_file_actions_init(actions)
            for number, fd in enumerate(streams):
                libc.posix_spawn_file_actions_adddup2(actions, fd, number)
        return actions

"""Start a job by posix_spawn: in its own session or group, with nothing of the runner's but what its spec says.

`os.posix_spawn` has no cwd, so who starts a job changes directory before; each thread that does has one of its own.
Every descriptor of the runner is close-on-exec: a job inherits 0, 1 and 2 only.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Any, Dict, List, Optional, Tuple

from rota.runner.contained import keeper
from rota.runner.environment import DEFAULT_PATH
from rota.runner.lease import Lease
from rota.runner.plan import Plan, StartError
from rota.runner.segments import Lane

__all__ = ["Env", "Spawner", "Streams", "cannot_enter", "cannot_read", "cannot_write", "enter", "problem", "resolve"]

# What Python or a nohup made the runner ignore would be ignored by its jobs too.
DEFAULTS = [
    int(number)
    for number in (
        signal.SIGPIPE,
        signal.SIGXFSZ,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGHUP,
        signal.SIGTERM,
        signal.SIGCHLD,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGXCPU,
    )
]
WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY
DUP2 = os.POSIX_SPAWN_DUP2
FULL = (errno.ENOSPC, errno.EDQUOT)
SCARCE = 16384  # bytes: a disk with less is full, as a file system may keep a few blocks
Streams = Tuple[int, int, int]
Env = Any
"""The variables of a job, as a spawner takes them: a Dict[bytes, bytes], or what its own kind says."""


def enter(plan: Plan) -> str:
    """Change to the job's directory; return its path."""
    try:
        os.chdir(plan.cwd)
    except (OSError, ValueError) as error:
        raise cannot_enter(plan.cwd, error) from None
    return plan.cwd


def cannot_enter(cwd: str, error: Exception) -> StartError:
    """The error of a job whose directory is not there, or cannot be made."""
    if isinstance(error, OSError) and error.errno in FULL:
        return StartError("disk-full", "cannot make the directory %s: %s" % (cwd, error.strerror))
    return StartError("cwd", "cannot change to the directory %s: %s" % (cwd, _why(error)))


def cannot_read(path: Optional[str], error: Exception) -> StartError:
    """The error of a job whose standard input cannot be opened."""
    return StartError("start", "cannot read standard input from %s: %s" % (path, _why(error)))


def cannot_write(path: Optional[str], error: Exception) -> StartError:
    """The error of a job that has a file for its output which cannot be opened."""
    full = isinstance(error, OSError) and error.errno in FULL
    return StartError("disk-full" if full else "output", "cannot write output to %s: %s" % (path, _why(error)))


def full_disk(plan: Plan) -> Optional[str]:
    """That a disk which a failed job writes to (its output, its directory) has no space left, in words; else None."""
    places = [os.path.dirname(path) or plan.cwd for path in (plan.stdout, plan.stderr) if path is not None]
    for place in dict.fromkeys((*places, plan.cwd)):
        try:
            disk = os.statvfs(place)
        except (OSError, ValueError):
            continue
        if disk.f_blocks and disk.f_bavail * disk.f_frsize < SCARCE:
            free, size = (_size(blocks * disk.f_frsize) for blocks in (disk.f_bavail, disk.f_blocks))
            return "the disk of %s is full: %s of %s are free" % (place, free, size)
    return None


def _size(count: int) -> str:
    """Bytes as people say them, as in 3.2G."""
    unit, text = 0, float(count)
    while text >= 1024 and unit < 4:
        unit, text = unit + 1, text / 1024
    return ("%.0f%s" if text >= 100 else "%.3g%s") % (text, ("", "K", "M", "G", "T")[unit])


def _why(error: Exception) -> str:
    return str(error.strerror) if isinstance(error, OSError) and error.strerror else str(error)


def open_streams(plan: Plan, null: int, lane: Lane, opened: List[int]) -> Streams:
    """Open what the spec names; relative paths count from the job's directory. `opened` gets what to close again."""
    stdin, stdout, stderr = null, lane.out, lane.err
    if plan.stdin and plan.stdin != "/dev/null":
        try:
            stdin = os.open(plan.stdin, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
            opened.append(stdin)
            os.set_blocking(stdin, True)  # non-blocking only so that opening a FIFO cannot hold up the runner
        except (OSError, ValueError) as error:
            raise cannot_read(plan.stdin, error) from None
    if plan.stdout is not None:
        stdout = _open_output(plan.stdout, null, opened)
    if plan.stderr is not None:
        stderr = stdout if plan.stderr == plan.stdout else _open_output(plan.stderr, null, opened)
    return stdin, stdout, stderr


def _open_output(path: str, null: int, opened: List[int]) -> int:
    if path == "/dev/null":
        return null
    try:
        fd = os.open(path, WRITE | os.O_NONBLOCK, 0o666)
        opened.append(fd)
        os.set_blocking(fd, True)
        return fd
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from None


def resolve(name: str, search: bytes) -> str:
    """Find the program in the job's own PATH, as a shell in the job's directory would."""
    if "/" in name:
        return name
    if not name or "\0" in name:
        raise StartError("not-found", "no such command: %r" % name, 127)
    seen = None
    for part in os.fsdecode(search).split(":"):
        candidate = os.path.join(part or ".", name)
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            seen = candidate
    if seen is not None:
        raise StartError("not-executable", "not executable: %s" % seen, 126)
    raise StartError("not-found", "no such command: %s (looked in %s)" % (name, os.fsdecode(search)), 127)


def problem(path: str, code: int, cwd: str) -> StartError:
    """Say what an errno of exec means to the person whose job it is."""
    shown = path if path.startswith("/") else "%s (in %s)" % (path, cwd)
    if code == errno.ENOENT:
        if os.path.exists(path):
            return StartError("not-executable", "cannot execute %s: its interpreter is missing" % shown, 126)
        return StartError("not-found", "no such command: %s" % shown, 127)
    if code == errno.ENOTDIR:
        return StartError("not-found", "no such command: %s" % shown, 127)
    if code in (errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.EISDIR, errno.ETXTBSY, errno.ELIBBAD):
        what = "it is a directory" if os.path.isdir(path) else os.strerror(code)
        return StartError("not-executable", "cannot execute %s: %s" % (shown, what), 126)
    if code == errno.E2BIG:
        return StartError("start", "cannot start %s: its arguments and environment are too long" % shown)
    return StartError("start", "cannot start %s: %s" % (shown, os.strerror(code)))


class Spawner:
    """Starts jobs from this process."""

    def __init__(self) -> None:
        # PBS and TORQUE know by its session what belongs to a job: what leaves it escapes their limits and accounts.
        self._alone: Dict[str, Any] = {"setpgroup": 0} if "PBS_JOBID" in os.environ else {"setsid": True}
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._paths: Dict[Tuple[str, bytes], str] = {}
        self._umask = -1

    def start(self, lease: Lease, plan: Plan, lane: Lane, env: Env) -> int:
        """Start the job and return its pid, or raise StartError."""
        argv = plan.argv(lease.command)
        self.use_umask(plan.umask)
        cwd = enter(plan)
        path = self.find(argv[0], plan.env.path)
        if plan.plain:
            return self.spawn(path, argv, env, (self._null, lane.out, lane.err), cwd, plan.env.path)
        opened: List[int] = []
        try:
            streams = open_streams(plan, self._null, lane, opened)
            return self.spawn(path, argv, env, streams, cwd, plan.env.path)
        finally:
            for fd in opened:
                os.close(fd)

    def use_umask(self, umask: int) -> None:
        """Take the umask of the job: files are made as its submitter would."""
        if umask != self._umask:
            os.umask(umask)
            self._umask = umask

    def start_here(self, command: Any, plan: Plan, lane: Lane, env: Dict[bytes, bytes], cwd: str) -> int:
        """Start the command of a job in the directory that we are in, with this environment."""
        argv = plan.argv(command if plan.container is None else keeper(plan, command))
        search = env.get(b"PATH", DEFAULT_PATH)
        path = self.find(argv[0], search)
        opened: List[int] = []
        try:
            streams = open_streams(plan, self._null, lane, opened)
            return self.spawn(path, argv, env, streams, cwd, search)
        finally:
            for fd in opened:
                os.close(fd)

    def behave(self, command: str, plan: Plan, err: int, env: Dict[bytes, bytes], cwd: str) -> int:
        """Start a behaviour in the directory that we are in; what it writes goes to the job's standard error."""
        argv = plan.argv(command)
        search = env.get(b"PATH", DEFAULT_PATH)
        path = self.find(argv[0], search)
        return self.spawn(path, argv, env, (self._null, err, err), cwd, search)

    def find(self, name: str, search: bytes) -> str:
        """The path of a program, as resolve() finds it, remembered; if that is out of date, exec fails."""
        path = self._paths.get((name, search))
        if path is not None:
            return path
        path = resolve(name, search)
        if path.startswith("/"):
            if len(self._paths) > 10000:
                self._paths.clear()
            self._paths[(name, search)] = path
        return path

    def spawn(self, path: str, argv: List[str], env: Env, streams: Streams, cwd: str, search: bytes) -> int:
        """Start a program, found by this search path, in the directory that we are in; `cwd` is its name for people."""
        try:
            return self._spawn(path, argv, env, streams)
        except OSError as error:
            code = error.errno or 0
        except ValueError as error:  # a NUL in a word, or "=" in the name of a variable
            raise StartError("start", "cannot start %s: %s" % (path, error)) from None
        if code == errno.ENOEXEC and os.path.isfile(path):  # a script without "#!": what every shell does with it
            return self.spawn("/bin/sh", ["sh", path, *argv[1:]], env, streams, cwd, search)
        second = self.again(argv[0], path, search)
        if second is not None:
            return self.spawn(second, argv, env, streams, cwd, search)
        raise problem(path, code, cwd)

    def _spawn(self, path: str, argv: List[str], env: Env, streams: Streams) -> int:
        actions = [(DUP2, streams[0], 0), (DUP2, streams[1], 1), (DUP2, streams[2], 2)]
        return os.posix_spawn(path, argv, env, file_actions=actions, setsigmask=(), setsigdef=DEFAULTS, **self._alone)

    def again(self, name: str, path: str, search: bytes) -> Optional[str]:
        """Look again for a program that may have moved since find(); its new path, if there is one."""
        if "/" in name or not self._paths:
            return None
        self._paths.clear()
        second = resolve(name, search)
        return second if second != path else None

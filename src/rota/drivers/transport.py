"""How commands and small files reach the host where a batch system's programs are."""

import asyncio
import base64
import errno
import os
import shlex
import signal
import stat
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Protocol

from rota.drivers.descriptors import as_before
from rota.drivers.dialect import Answer
from rota.model.errors import RotaError

__all__ = ["LocalTransport", "PrefixTransport", "Transport", "UnreachableError", "UnreadError", "scrubbed"]

OUTPUT_MOST = 32 << 20
ROWS_MOST = 400_000
"""Bytes and lines of one answer; the rest is left out, and who reads it is told so."""
FILE_MOST = 1 << 20
AT_ONCE = 8
WATCH_S = 0.5
KEEP = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LD_LIBRARY_PATH"),
    *("KRB5CCNAME", "SSH_AUTH_SOCK", "MUNGE_SOCKET", "SLURM_CONF", "LSB_SHAREDIR", "XLSF_UIDDIR"),
    *("SGE_ROOT", "SGE_CELL", "SGE_CLUSTER_NAME", "SGE_QMASTER_PORT", "SGE_EXECD_PORT"),
    *("PBS_SERVER", "PBS_CONF_FILE", "PBS_EXEC", "PBS_HOME", "PBS_DEFAULT", "PBS_PRIMARY", "PBS_SECONDARY"),
)
"""What clients of batch systems need to find their servers. What else is in the environment could change what they
print (SQUEUE_FORMAT, LSB_BJOBS_FORMAT, BSUB_QUIET …) or what they submit (SBATCH_*), and is left out."""
NO_SUCH_PROGRAM = 127


class UnreachableError(RotaError):
    """The host or its batch system could not be spoken to."""

    code = "busy"

    def __init__(self, words: str, *, ran: bool, login: bool = False) -> None:
        super().__init__(words)
        self.ran = ran
        """Whether the command may have run nevertheless."""
        self.login = login
        """Somebody has to log in there first."""


class UnreadError(UnreachableError):
    """Some files (`paths`) cannot be read; the others that exist were (`found`)."""

    def __init__(self, words: str, found: dict[str, bytes], paths: Sequence[str]) -> None:
        super().__init__(words, ran=True)
        self.found = found
        self.paths = paths


class Transport(Protocol):
    """Runs commands somewhere, and reads and writes small files there."""

    name: str
    """Where that is, in words."""

    async def run(self, argv: Sequence[str], stdin: str | None = None, timeout_s: float = 60.0) -> Answer:
        """Run a command to its end, or end it after its time. Raises UnreachableError."""
        ...

    async def which(self, programs: Sequence[str]) -> dict[str, str | None]:
        """Absolute paths of programs."""
        ...

    async def read(self, paths: Sequence[str]) -> dict[str, bytes]:
        """The files among these that exist. Raises UnreadError, with the reason and the others, if one cannot be read.

        And UnreachableError if nothing can be.
        """
        ...

    async def write(self, path: str, data: bytes, mode: int = 0o600) -> None:
        """Put a file there, whole or not at all; its directory is made if there is none (0700)."""
        ...


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that commands of batch systems get."""
    keep = {name: value for name, value in environ.items() if name in KEEP or name.startswith(("LSF_", "EGO_"))}
    keep.setdefault("PATH", os.defpath)
    return {**keep, "LANG": "C.UTF-8", "LC_ALL": "C", "TZ": "UTC"}


class LocalTransport:
    """Commands on this host: each in a session of its own, a few at once.

    They write into files, not pipes: whatever a command leaves running in the background (a master of ssh, a daemon of
    qsub) would keep a pipe open, and the answer would never be complete.
    """

    name = "this host"

    def __init__(
        self, environ: Mapping[str, str] | None = None, output_most: int = OUTPUT_MOST, at_once: int = AT_ONCE
    ) -> None:
        self.environ = scrubbed(os.environ if environ is None else environ)
        self._output_most = output_most
        self._slots = asyncio.Semaphore(at_once)

    async def run(self, argv: Sequence[str], stdin: str | None = None, timeout_s: float = 60.0) -> Answer:
        """Run a command on this host."""
        async with self._slots:
            with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
                if stdin is not None:
                    source.write(stdin.encode("utf-8", "surrogateescape"))
                    source.seek(0)
                return await self._run(argv, source, out, err, timeout_s)

    async def _run(
        self, argv: Sequence[str], source: IO[bytes], out: IO[bytes], err: IO[bytes], timeout_s: float
    ) -> Answer:
        try:
            child = await asyncio.create_subprocess_exec(
                *argv,
                stdin=source,
                stdout=out,
                stderr=err,
                env=self.environ,
                cwd="/",
                start_new_session=True,
                preexec_fn=as_before(),
            )
        except (OSError, ValueError) as error:
            return Answer(NO_SUCH_PROGRAM, "", f"rota: cannot run {argv[0]}: {error}")
        code: int | None = None
        cut = False
        try:
            code, cut = await self._wait(child, (out, err), timeout_s)
        finally:
            if child.returncode is None:
                _kill_group(child.pid)
                await asyncio.shield(child.wait())
        texts = [self._text(file) for file in (out, err)]
        return Answer(code, texts[0][0], texts[1][0], cut or texts[0][1])

    async def _wait(
        self, child: asyncio.subprocess.Process, files: tuple[IO[bytes], IO[bytes]], timeout_s: float
    ) -> tuple[int | None, bool]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        waiting = loop.create_task(child.wait())
        try:
            while (left := deadline - loop.time()) > 0:
                await asyncio.wait({waiting}, timeout=min(left, WATCH_S))
                if waiting.done():
                    return waiting.result(), False
                if any(os.fstat(file.fileno()).st_size > self._output_most for file in files):
                    return None, True
            return None, False
        finally:
            waiting.cancel()

    def _text(self, file: IO[bytes]) -> tuple[str, bool]:
        # The offset is shared with the command and whoever it left behind, so it is not moved.
        data = os.pread(file.fileno(), self._output_most + 1, 0)
        cut = len(data) > self._output_most
        if cut:
            data = data[: data.rfind(b"\n", 0, self._output_most) + 1]
        if data.count(b"\n") > ROWS_MOST:
            data, cut = b"\n".join(data.split(b"\n", ROWS_MOST)[:ROWS_MOST]) + b"\n", True
        return data.decode("utf-8", "replace"), cut

    async def which(self, programs: Sequence[str]) -> dict[str, str | None]:
        """Find programs along the PATH that the commands get."""
        return {program: _which(program, self.environ["PATH"]) for program in programs}

    async def read(self, paths: Sequence[str]) -> dict[str, bytes]:
        """Read files, in a thread: a network file system may take its time."""
        return await asyncio.to_thread(_read_all, paths)

    async def write(self, path: str, data: bytes, mode: int = 0o600) -> None:
        """Write a file under another name, then rename it."""
        await asyncio.to_thread(_write, path, data, mode)


class PrefixTransport:
    """Commands inside something that another transport reaches: a container, another user, another host.

    `prefix` is what stands before a command, such as ("docker", "exec", "-i", "C") or ("apptainer", "exec", "IMAGE").
    With `joined`, the command becomes one word of shell after it, as ssh wants. `setup` is a line of shell that is run
    before each command (a profile of the batch system to be read).
    """

    def __init__(
        self, outer: Transport, prefix: Sequence[str], *, joined: bool = False, setup: str = "", name: str = ""
    ) -> None:
        self._outer = outer
        self._prefix = tuple(prefix)
        self._joined = joined
        self._setup = setup
        self.name = name or f"{shlex.join(self._prefix)} on {outer.name}"

    async def run(self, argv: Sequence[str], stdin: str | None = None, timeout_s: float = 60.0) -> Answer:
        """Run a command there; that it did run is known by a last line that only the far side can write."""
        script = WRAP.replace("SETUP", self._setup or ":")
        words = ("sh", "-c", script, "rota", str(max(1, round(timeout_s))), *argv)
        inner = (shlex.join(words),) if self._joined else words
        answer = await self._outer.run((*self._prefix, *inner), stdin, timeout_s + 10)
        return self._unwrap(answer, argv)

    def _unwrap(self, answer: Answer, argv: Sequence[str]) -> Answer:
        before, mark, after = answer.stderr.rpartition(MARK)
        if mark and after.strip().isdigit():
            code: int | None = int(after)
            return Answer(None if code == TIMED_OUT else code, answer.stdout, before, answer.cut)
        if answer.code is None:
            return answer
        raise self.unreachable(answer, argv)

    def unreachable(self, answer: Answer, argv: Sequence[str]) -> UnreachableError:
        """The error for an answer that does not come from the far side."""
        words = answer.stderr.strip()[-500:] or answer.stdout.strip()[-500:] or "it said nothing"
        never = answer.code == NO_SUCH_PROGRAM and words.startswith("rota: cannot run")
        return UnreachableError(f"{self.name}: {argv[0]} got no answer (code {answer.code}): {words}", ran=not never)

    async def which(self, programs: Sequence[str]) -> dict[str, str | None]:
        """Find programs there, by a login shell too: what modules and profiles add is not on a plain PATH."""
        answer = await self.run(("sh", "-c", WHICH, "rota", *programs))
        found: dict[str, str | None] = dict.fromkeys(programs)
        for line in answer.stdout.splitlines():
            program, _, path = line.partition("=")
            if program in found and path.startswith("/"):
                found[program] = path
        return found

    async def read(self, paths: Sequence[str]) -> dict[str, bytes]:
        """Read files there, all with one command."""
        if not paths:
            return {}
        answer = await self.run(("sh", "-c", READ), "".join(f"{path}\n" for path in _sound(paths)))
        if answer.code != 0:
            raise UnreachableError(f"{self.name}: files cannot be read: {answer.stderr.strip()[-500:]}", ran=True)
        found, unread = {}, []
        for line in answer.stdout.splitlines():
            number, _, content = line.partition(" ")
            if number.isdigit() and int(number) < len(paths):
                path = paths[int(number)]
                if content == UNREAD:
                    unread.append(path)
                else:
                    found[path] = base64.b64decode(content)
        if unread:
            words = f"{self.name}: files cannot be read: {answer.stderr.strip()[-500:]}"
            raise UnreadError(words, found, unread)
        return found

    async def write(self, path: str, data: bytes, mode: int = 0o600) -> None:
        """Write a file there: sent as text, and decoded."""
        text = base64.encodebytes(data).decode()
        answer = await self.run(("sh", "-c", WRITE, "rota", path, f"{mode:o}"), text)
        if answer.code != 0:
            raise UnreachableError(f"{self.name}: cannot write {path}: {answer.stderr.strip()[-500:]}", ran=True)


MARK = "\nrota-exit-status "
TIMED_OUT = 124
WRAP = (
    # One line, since csh, the login shell of some, wants it so.
    r'limit=$1; shift; SETUP; unset $(env | sed -n "s/^\(\(SQUEUE\|SACCT\|SBATCH\|SCANCEL\|SINFO\|LSB\|BSUB\|BJOBS\)'
    '_[A-Za-z0-9_]*\\)=.*/\\1/p") SLURM_TIME_FORMAT SLURM_CLUSTERS PBS_QSTAT_EXECONLY PBS_QSTAT_NO_COMPLETE '
    "SGE_LONG_QNAMES 2>/dev/null; "
    "LC_ALL=C; TZ=UTC; export LC_ALL TZ; "
    'if command -v timeout >/dev/null 2>&1; then timeout -k 5 "$limit" "$@"; else "$@"; fi; '
    'status=$?; printf "\\nrota-exit-status %d\\n" $status >&2; exit $status'
)
WHICH = (
    'for p; do f=$(command -v "$p" 2>/dev/null) || '
    'f=$("${SHELL:-sh}" -lc \'command -v "$0"\' "$p" 2>/dev/null </dev/null | tail -n 1); '
    'echo "$p=$f"; done'
)
UNREAD = "!"
"""In place of what a file contains."""
READ = (
    f'no() {{ echo "$1 cannot be read: no permission, or not a file" >&2; echo "$n {UNREAD}"; }}; '
    'n=0; while IFS= read -r f; do d=${f%/*}; if [ -d "$d" ] && ! ls "$d" >/dev/null 2>&1; then no "$d"; '
    'elif [ -e "$f" ]; then if [ -f "$f" ] && [ -r "$f" ]; then '
    f'echo "$n $(head -c {FILE_MOST} <"$f" | base64 | tr -d "\\n")"; else no "$f"; fi; fi; n=$((n+1)); done'
)
WRITE = (
    'umask 077; mkdir -p "${1%/*}" && base64 -d >"$1.$$.tmp" && chmod "$2" "$1.$$.tmp" && mv -f "$1.$$.tmp" "$1" || '
    '{ s=$?; rm -f "$1.$$.tmp"; exit $s; }'
)


def _sound(paths: Iterable[str]) -> Iterable[str]:
    for path in paths:
        if "\n" in path or not path.startswith("/"):
            raise ValueError(f"not an absolute path on one line: {path!r}")
        yield path


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _which(program: str, path: str) -> str | None:
    for directory in [""] if program.startswith("/") else path.split(os.pathsep):
        candidate = os.path.join(directory, program)
        if os.path.isabs(candidate) and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def _read_all(paths: Sequence[str]) -> dict[str, bytes]:
    found, unread, words = {}, [], []
    for path in _sound(paths):
        try:
            os.listdir(os.path.dirname(path))  # makes a network file system look again
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):  # a pipe would be waited for
                    raise OSError(errno.EINVAL, "not a file")
                found[path] = os.read(fd, FILE_MOST)
            finally:
                os.close(fd)
        except FileNotFoundError:
            continue
        except OSError as error:
            unread.append(path)
            words.append(f"cannot read {path}: {error}")
    if unread:
        raise UnreadError("; ".join(words)[:500], found, unread)
    return found


def _write(path: str, data: bytes, mode: int) -> None:
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        part = f"{path}.{os.getpid()}.tmp"
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(fd)
            os.replace(part, path)
        except OSError:
            if os.path.lexists(part):
                os.unlink(part)
            raise
    except OSError as error:
        raise UnreachableError(f"cannot write {path}: {error}", ran=True) from error

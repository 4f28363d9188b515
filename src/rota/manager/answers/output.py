"""The output of jobs: read from files here, or asked of the runner where a job runs on another host.

Offsets count what the job wrote, also where some of it is not kept: so who follows a job goes on at the right place
when it has ended and its head and tail have been joined.
"""

import asyncio
import base64
import itertools
import json
import os
import re
import socket
import stat
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

from rota.core.state import BatchState, State
from rota.manager.answers.jobs import find_job
from rota.manager.answers.running import Ref, Running
from rota.manager.jobbook import JobBook
from rota.manager.outbound import Outbound
from rota.manager.sites.api import Site
from rota.model.errors import NotFoundError
from rota.model.job import Result
from rota.model.tables import SETTLED
from rota.runner.spill import stretch
from rota.store.api import Store
from rota.wire.messages import Log, Tail

__all__ = ["LINE", "Output", "last_line"]

LINE = 2000
"""Bytes of a running job's output of which the last line is shown."""
END = 2000
"""Bytes of stderr that a summary shows."""
JOINED = re.compile(rb"\n?\[rota: (?:at least )?[0-9]+ bytes left out\]\n")
"""What stands between head and tail, see rota.runner.spill."""
ANSWER_S = 3.0
"""How long a runner may take to answer; then nothing is shown, as if nothing had been written."""


class Read(Protocol):
    """Reads a stretch of a file, and says how large that is."""

    def __call__(self, path: str, offset: int, limit: int, links: bool = False) -> tuple[bytes, int]:
        """Bytes from an offset on, and the size."""
        ...


class Output:
    """The output of jobs, and the questions to runners about it that are open."""

    def __init__(
        self,
        store: Store,
        book: JobBook,
        running: Running,
        outbound: Outbound | None,
        sites: Callable[[], Iterable[Site]] = tuple,
        directory: str | None = None,
    ) -> None:
        self._store = store
        self._sites = sites
        self._directory = directory
        """Where what jobs printed is kept here: it may have come from another home, with the queue."""
        self._book = book
        self._running = running
        self._outbound = outbound
        """None: no runner can be asked."""
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[str, asyncio.Future[Tail]]] = {}

    async def log(self, state: State, asked: Log) -> dict[str, Any]:
        """A stretch of a job's output."""
        there = self.elsewhere(state, asked.job, asked.attempt, asked.stream)
        if there is None:
            try:
                data, after, end, dropped, path = self._read(state, asked)
            except NotFoundError:
                read = await self._fetch(state, asked)
                if read is None:
                    raise
                data, after, end, dropped, path = self._read(state, asked, read)
        else:
            data, after = await self.ask(state, *there, asked.stream, asked.offset, asked.limit)
            end, dropped, path = False, 0, None
        text = base64.b64encode(data).decode()
        return {"data": text, "next": after, "end": end, "truncated": dropped, "path": path}

    async def _fetch(self, state: State, asked: Log) -> Read | None:
        """A way to read the output of an attempt on a host that shares no files with us; None: there is none."""
        batch, pos = find_job(state, asked.job)
        wanted = batch.attempts[pos] if asked.attempt is None else asked.attempt
        found = [result for result in self._store.results(batch.id, pos, pos, False) if result.attempt == wanted]
        live = batch.live.get(pos)
        host = found[0].host if found else state.runners[live.runner].host if live is not None else None
        path, start, most = self._book.path(batch, pos, max(wanted, 1), asked.stream), asked.offset, asked.limit
        if path is None and found and found[0].output is not None:
            place = json.loads(found[0].output)
            name, start, most, _ = place[1:5] if asked.stream == "stdout" else place[5:9]
            path = None if name is None else os.path.join(place[0], name)
        if path is None or host is None:
            return None
        for site in self._sites():
            if (data := await site.read_output(host, path, start, most)) is not None:
                size = start + len(data)
                return lambda _path, offset, limit, links=False: (data[offset - start :][:limit], size)
        return None

    def _moved(self, place: str, name: str) -> str:
        """The path of a file of output: where it was written, or where it is if it came here with the queue."""
        path = os.path.join(place, name)
        if self._directory is not None and not os.path.lexists(path):
            here = os.path.join(self._directory, os.path.basename(place), name)
            return here if os.path.lexists(here) else path
        return path

    def _read(self, state: State, asked: Log, read: Read | None = None) -> tuple[bytes, int, bool, int, str | None]:
        """(data, where it ends, whether that was all, bytes that were dropped, the file) of what can be read here."""
        read = read or _read_file
        stream, offset, limit = asked.stream, asked.offset, asked.limit
        batch, pos = find_job(state, asked.job)
        newest = batch.attempts[pos]
        wanted = newest if asked.attempt is None else asked.attempt
        if wanted > newest or wanted < 0:
            raise NotFoundError(f"job {asked.job} has had {newest} attempts; there is no attempt {wanted}")
        if not wanted and batch.states[pos] < SETTLED:
            return b"", offset, False, 0, None  # it has yet to start: whoever follows goes on
        running = pos in batch.live and wanted == newest
        path = self._book.path(batch, pos, max(wanted, 1), stream)
        if path is not None:
            data, size = read(path, offset, limit, links=True)
            return data, offset + len(data), not running and offset + len(data) >= size, 0, path
        if running:
            data, after = self._so_far(state, batch, pos, stream, offset, limit) or (b"", offset)
            return data, after, False, 0, None
        found = [result for result in self._store.results(batch.id, pos, pos, False) if result.attempt == wanted]
        if not found or found[0].output is None:
            return b"", offset, True, 0, None
        place = json.loads(found[0].output)
        at = 1 if stream == "stdout" else 5
        name, start, length, dropped = place[at : at + 4]
        if name is None:
            return b"", offset, True, dropped, None
        path = self._moved(place[0], name)
        if read is _read_file and not os.path.lexists(path) and found[0].host not in ("", None, socket.gethostname()):
            raise NotFoundError(
                f"its output cannot be read: it is on {found[0].host}, in {path}, which is not seen here and is on no "
                "host of a site"
            )
        head, line = _joint(path, start, length, read) if dropped else (length, 0)
        if offset < head:
            first, most = offset, min(limit, head - offset)
        elif head <= offset - dropped:
            first, most = offset - dropped + line, limit
        else:
            first, most = head, max(limit, line)
        data, _ = read(path, start + first, max(0, min(most, length - first)))
        reached = first + len(data)
        after = reached if reached <= head else reached - line + dropped
        return data, after, reached >= length or not data, dropped, path

    def _so_far(
        self, state: State, batch: BatchState, pos: int, stream: str, offset: int, limit: int
    ) -> tuple[bytes, int] | None:
        """The output so far of a running job that writes to a file of rota's, if that can be read here."""
        job, runner = (batch.id, batch.index(pos), batch.attempts[pos]), batch.live[pos].runner
        path = self._running.scratch(state, job, runner, stream)
        if path is None:
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if not _is_ours(os.fstat(fd)):
                return None
            found = stretch(fd, offset, limit)
        finally:
            os.close(fd)
        # If it has just ended, its file may be another's already.
        return found if self._running.lives(state, job, runner) else None

    def last_line(self, state: State, batch: BatchState, pos: int) -> str | None:
        """The end of the standard output of a job that runs, if that can be read here."""
        path = self._book.path(batch, pos, batch.attempts[pos], "stdout")
        try:
            if path is not None:
                return last_line(_read_file(path, -LINE, LINE, links=True)[0])
            found = self._so_far(state, batch, pos, "stdout", -LINE, LINE)
        except (NotFoundError, OSError):
            return None
        return None if found is None else last_line(found[0])

    def last_words(self, state: State, job: str) -> str:
        """The last words of a job: of its standard error, or else of its standard output."""
        batch, pos = find_job(state, job)
        streams: tuple[Literal["stderr", "stdout"], ...] = ("stderr", "stdout") if batch.attempts[pos] else ()
        if not streams:
            return ""
        last = self._store.results(batch.id, pos, pos, True)
        for stream in streams:
            text = self.tail(batch, pos, last[-1] if last else None, stream, END)
            if text.strip():
                return text.decode("utf-8", "replace")
        return ""

    def tail(self, batch: BatchState, pos: int, result: Result | None, stream: str, limit: int) -> bytes:
        """The end of what the last attempt of a job wrote; nothing if that cannot be read here."""
        path = self._book.path(batch, pos, max(batch.attempts[pos], 1), stream)
        try:
            if path is not None:
                return _read_file(path, -limit, limit)[0]
            if result is None or result.output is None:
                return b""
            place = json.loads(result.output)
            at = 1 if stream == "stdout" else 5
            name, start, length, _ = place[at : at + 4]
            if name is None:
                return b""
            first = max(0, length - limit)
            return _read_file(self._moved(place[0], name), start + first, length - first)[0]
        except (NotFoundError, OSError):
            return b""

    # ---- on other hosts ---------------------------------------------------------------------------------------------

    def elsewhere(self, state: State, job: str, attempt: int | None, stream: str) -> tuple[Ref, str] | None:
        """(attempt, runner) of a job that runs, if only its runner can read what it has written so far."""
        batch, pos = find_job(state, job)
        live = batch.live.get(pos)
        if live is None or attempt not in (None, live.attempt) or not self._running.is_elsewhere(state, live.runner):
            return None
        if self._book.path(batch, pos, live.attempt, stream) is not None:
            return None
        return (batch.id, batch.index(pos), live.attempt), live.runner

    async def ask(self, state: State, job: Ref, runner: str, stream: str, offset: int, limit: int) -> tuple[bytes, int]:
        """A stretch of what a running job has written, and where it ends; a negative offset counts from the end."""
        peer = self._outbound.peers.get(runner) if self._outbound is not None else None
        known = state.runners.get(runner)
        if peer is None or known is None:
            return b"", offset
        number = next(self._numbers)
        future: asyncio.Future[Tail] = asyncio.get_running_loop().create_future()
        self._asked[number] = (runner, future)
        what = {"job": job, "stream": stream, "offset": offset, "limit": limit}
        try:
            peer.send({"t": "tail", "session": known.session, "ask": number, **what})
            told = await asyncio.wait_for(future, ANSWER_S)
        except TimeoutError:
            return b"", offset
        finally:
            self._asked.pop(number, None)
        data = told.data or b""
        return data, offset + len(data) if told.next is None else told.next

    def told(self, runner: str, message: Tail) -> None:
        """Take a runner's answer."""
        asked = self._asked.get(message.ask)
        if asked is not None and asked[0] == runner and not asked[1].done():
            asked[1].set_result(message)


def _is_ours(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) and info.st_uid == os.getuid()


def _read_file(path: str, offset: int, limit: int, links: bool = False) -> tuple[bytes, int]:
    """Bytes of a regular file that is ours, and its size; a negative offset counts from the end.

    Links are followed only where the user named the file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
    except OSError as error:
        raise NotFoundError(f"its output cannot be read: {path}: {error.strerror}") from None
    try:
        info = os.fstat(fd)
        if not _is_ours(info):
            return b"", 0
        return os.pread(fd, limit, offset if offset >= 0 else max(0, info.st_size + offset)), info.st_size
    finally:
        os.close(fd)


def _joint(path: str, start: int, length: int, read: Read) -> tuple[int, int]:
    """How long the head of an output beyond its cap is, and the line behind it; all of it if it was not joined."""
    first = max(0, length // 2 - 100)
    found = JOINED.search(read(path, start + first, min(length - first, 200))[0])
    return (length, 0) if found is None else (first + found.start(), found.end() - found.start())


def last_line(data: bytes) -> str:
    """The last line of the end of an output."""
    lines = data.rstrip(b"\r\n").splitlines()
    return lines[-1].decode("utf-8", "replace") if lines else ""

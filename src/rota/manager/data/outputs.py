"""What jobs wrote, once they have COMPLETED: registered where it is; objects are sent to where they belong.

What an attempt owes is written down before it can end. So whatever becomes of this manager, and however long a place or
a store of objects is away, it is sent in the end, or people are told why not.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from rota.manager.data.files import Files, Key
from rota.manager.data.places import S3, Place
from rota.manager.data.transfers import TransferError
from rota.manager.writer import Writer
from rota.model.data import URL, Replica
from rota.model.errors import RotaError
from rota.wire.home import write_private

__all__ = ["Outputs", "Owed"]

log = logging.getLogger("rota")
Job = tuple[int, int]
"""Batch, index."""
AGAIN_S = 5.0
AGAIN_MOST_S = 300.0
MISSING_MOST = 10_000
"""Jobs of which it is remembered what they have not written."""
LINES_MOST = 20_000
"""Lines beyond what is owed, after which the journal is written anew."""


class Owed(Struct):
    """What an attempt is to have written, and where."""

    job: Key
    place: str
    cwd: str
    outputs: tuple[str, ...]
    since: float = 0.0
    """Wall-clock time at which it had COMPLETED; 0: it has not."""
    tries: int = 0
    why: str = ""
    """Why the last try has failed."""

    @property
    def name(self) -> str:
        """The job, as people call it."""
        return f"{self.job[0]}.{self.job[1]}"


class Line(Struct, omit_defaults=True):
    """A line of the journal: what is owed from now on, or no more."""

    owed: Owed | None = None
    done: Key | None = None


class Outputs:
    """Sees to what jobs have written."""

    def __init__(self, files: Files, writer: Writer, home: str) -> None:
        self._files = files
        self._writer = writer
        self._path = os.path.join(home, "outputs.jsonl")
        self._promised: dict[Job, Owed] = {}
        """Attempts that are not over, the newest of each job."""
        self.owed: dict[Job, Owed] = {}
        """What those owe that have COMPLETED."""
        self.missing: dict[Key, str] = {}
        """What the last ones that have COMPLETED did not write, in words."""
        self._tasks: dict[Job, asyncio.Task[None]] = {}
        self._lines = 0
        files.coming = self.coming

    def start(self, is_live: Callable[[Key], bool], has_completed: Callable[[Key], bool]) -> None:
        """Take up what the last manager left."""
        for owed in self._read():
            if is_live(owed.job):
                self._promised[owed.job[:2]] = owed
            elif has_completed(owed.job):
                self.complete(owed)
        self._write_anew()

    def _read(self) -> list[Owed]:
        found: dict[Key, Owed] = {}
        try:
            with open(self._path, "rb") as file:
                lines = file.readlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            log.warning("what jobs are to have written cannot be read: %s", error)
            return []
        for line in lines:
            try:
                row = msgspec.json.decode(line, type=Line)
            except msgspec.DecodeError as error:  # the last one may be cut: its attempt is promised anew
                log.warning("%s: a line that cannot be read is left out: %s", self._path, error)
                continue
            if row.owed is not None:
                found[row.owed.job] = row.owed
            if row.done is not None:
                found.pop(row.done, None)
        return list(found.values())

    def promise(self, rows: Sequence[Owed]) -> None:
        """Write down what attempts will owe, before anything can be known of their end: the writer keeps the order."""
        new = [row for row in rows if self._promised.get(row.job[:2]) != row]
        self._promised.update((row.job[:2], row) for row in new)
        self._append([Line(owed=row) for row in new])

    @property
    def is_busy(self) -> bool:
        """Whether there are attempts of which it has to know how they end."""
        return bool(self._promised)

    def ended(self, job: Key, completed: bool) -> None:
        """An attempt is over."""
        owed = self._promised.get(job[:2])
        if owed is None or owed.job != job:
            return
        del self._promised[job[:2]]
        if completed:
            self.complete(owed)
        else:
            self._append([Line(done=job)])

    def complete(self, owed: Owed) -> None:
        """Begin to see to what an attempt has written; what an earlier one of that job owes is not wanted any more."""
        job = owed.job[:2]
        if (earlier := self._tasks.get(job)) is not None:
            earlier.cancel()
            self._append([Line(done=self.owed[job].job)])
        owed.since = time.time()
        self.owed[job] = owed
        self._tasks[job] = asyncio.get_running_loop().create_task(self._deliver(owed))

    def coming(self, url: str) -> str | None:
        """Who has written an object that is not where it belongs yet, in words; None: nobody."""
        for owed in self.owed.values():
            if url in owed.outputs:
                return f"{url}: job {owed.name} has written it, and it is being sent" + (owed.why and f" ({owed.why})")
        return None

    async def _deliver(self, owed: Owed) -> None:
        """Try until it is done, less and less often."""
        sent: set[str] = set()
        while True:
            owed.tries += 1
            try:
                await self._see_to(owed, sent)
                break
            except (RotaError, OSError) as error:
                owed.why = " ".join(str(error).split())
                log.warning("what job %s has written at %s (try %d): %s", owed.name, owed.place, owed.tries, owed.why)
            await asyncio.sleep(min(AGAIN_S * 2.0 ** min(owed.tries - 1, 10), AGAIN_MOST_S))
        del self.owed[owed.job[:2]], self._tasks[owed.job[:2]]
        self._append([Line(done=owed.job)])

    async def _see_to(self, owed: Owed, sent: set[str]) -> None:
        place = self._files.places().get(owed.place)
        if place is None:
            raise RotaError(f"there is no place {owed.place} any more")
        files = [path for path in owed.outputs if not path.startswith(URL)]
        missing = await self._files.register(files, place, owed.name)
        for url in [path for path in owed.outputs if path.startswith(URL) and path not in sent]:
            path = os.path.join(owed.cwd, url.rpartition("/")[2])
            if not await self._upload(place, path, url):
                missing.append(f"{path}, which was to become {url}")
            sent.add(url)
        if missing:
            words = f"it has COMPLETED, and has not written {', '.join(missing)} at {place.name}"
            log.warning("job %s: %s", owed.name, words)
            self.missing[owed.job] = words
            if len(self.missing) > MISSING_MOST:
                del self.missing[next(iter(self.missing))]

    async def _upload(self, place: Place, path: str, url: str) -> bool:
        """Make a file an object; False: there is no such file."""
        info = await self._files.seen(place, path)
        if info is None:
            return False
        what = (url, info["size"], info["mtime"])
        try:
            found = await self._files.transfers.bring(what, place, path, self._files.places()[S3], url)
        except TransferError as error:
            if error.kind == "gone" and await self._files.seen(place, path) is None:
                return False
            raise
        self._files.registry.keep(Replica(url, S3, found["size"], found["mtime"], found["sha256"]))
        return True

    def told(self, job: Key) -> str | None:
        """What of an attempt's output is not where it belongs, in words; None: nothing is known to be missing."""
        owed = self.owed.get(job[:2])
        if owed is None or owed.job != job:
            return self.missing.get(job)
        why = f" (try {owed.tries}: {owed.why})" if owed.why else ""
        if urls := [path for path in owed.outputs if path.startswith(URL)]:
            return f"what it has written is not where it belongs yet: {', '.join(urls)}{why}"
        return f"what it has written could not be looked at yet{why}" if why else None

    # ---- the journal ------------------------------------------------------------------------------------------------

    def _append(self, lines: Sequence[Line]) -> None:
        if not lines:
            return
        self._lines += len(lines)
        if self._lines > LINES_MOST + 2 * (len(self.owed) + len(self._promised)):
            self._write_anew()
            return
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        self._writer.put(lambda: _append(self._path, data), _complain)

    def _write_anew(self) -> None:
        rows = [*self.owed.values(), *self._promised.values()]
        self._lines = len(rows)
        data = b"".join(msgspec.json.encode(Line(owed=row)) + b"\n" for row in rows)
        if data or os.path.exists(self._path):
            self._writer.put(lambda: write_private(self._path, data), _complain)

    async def close(self) -> None:
        """Give up what is under way: it goes on with the next manager."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)


def _append(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "ab") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)


def _complain(error: BaseException | None) -> None:
    if error is not None:
        log.warning("what jobs are to have written cannot be written down: %s", error)

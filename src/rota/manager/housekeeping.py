"""Housekeeping of the queue: backups, pruning, and the removal of output that nothing refers to."""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from rota.core.stimuli import Prune
from rota.manager.inbound import now
from rota.manager.paths import Paths
from rota.model.errors import NoSpaceError, RefusedError, RotaError, StoreError, UsageError
from rota.model.selector import Selector, parse_selector
from rota.store.redacting import redact
from rota.store.schema import check_file
from rota.wire import messages
from rota.wire.home import private_directory

if TYPE_CHECKING:
    from rota.manager.service import Manager

__all__ = ["Housekeeping", "HousekeepingSettings"]

log = logging.getLogger("rota")

ROWS = 2_000
"""Rows that one short transaction deletes."""
PAUSE_S = 0.005
"""The pause between two such transactions, for commits."""
LOOK_S = 60.0
SOON_S = 2.0
"""When to look for what had to wait for a checkpoint, and when if one is under way."""
RETENTION_S = 3_600.0
"""How often retention looks for batches that are old enough."""
COLD_S = 600.0
"""A segment of a runner in session that was not written to for so long holds nothing that is yet to be reported."""
FORGOTTEN_S = 86_400.0
"""A directory of output that no known runner has is removed if nobody wrote to it for so long."""
_BACKUP = re.compile(r"rota-\d{8}-\d{6}(?:-\d+)?\.db")
_SEGMENT = re.compile(r"(\d+)\.seg")


class HousekeepingSettings(Struct, frozen=True):
    """The housekeeping that is done unasked: regular backups, and pruning by age; None: not done."""

    backup_every_s: float | None = None
    backup_keep: int = 5
    keep_settled_s: float | None = None


class Housekeeping:
    """The housekeeping of one manager. What takes long is done in threads, or in short pieces by the writer."""

    def __init__(self, manager: "Manager", settings: HousekeepingSettings) -> None:
        self._manager = manager
        self._settings = settings
        self._paths = Paths(manager.home)
        self._copying = asyncio.Lock()
        self._pruning = asyncio.Lock()
        self._sweeping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._look_at = 0.0
        self._prune_at = 0.0
        self._backup_at = 0.0

    def start(self) -> None:
        """Go on with the deletions that the last life left, and note when the next backup is due."""
        at = time.monotonic()
        self._look_at, self._prune_at = at + LOOK_S, at + 10
        if self._settings.backup_every_s is not None:
            last = max((os.path.getmtime(path) for path in self._own_backups()), default=0.0)
            self._backup_at = at + max(10.0, self._settings.backup_every_s - (time.time() - last))
        self.sweep()

    def look(self) -> None:
        """Begin what is due; called every few seconds."""
        at, settings = time.monotonic(), self._settings
        if at >= self._look_at:  # what had to wait for a checkpoint
            self._look_at = at + LOOK_S
            self.sweep()
        if settings.keep_settled_s is not None and at >= self._prune_at:
            self._prune_at = at + RETENTION_S
            self._start(self._retain(settings.keep_settled_s))
        if settings.backup_every_s is not None and at >= self._backup_at:
            self._backup_at = at + settings.backup_every_s
            self._start(self._regular_backup(settings.backup_keep))

    async def close(self) -> None:
        """Cancel what is under way."""
        for task in [*self._tasks, *([self._sweeping] if self._sweeping is not None else [])]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _start(self, work: Any) -> None:
        task = self._manager.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- backups ----------------------------------------------------------------------------------------------------

    async def backup(self, path: str | None, redacted: bool = False) -> dict[str, Any]:
        """Copy the queue while it is in use; the path and the size of the copy."""
        async with self._copying:
            await self._manager.durable()
            begin = time.monotonic()
            state = self._manager.state
            facts = {"batches": len(state.batches), "jobs": sum(batch.count for batch in state.batches.rows())}
            target, size = await asyncio.to_thread(self._copy, path, redacted)
            return {"path": target, "bytes": size, **facts, "elapsed_s": round(time.monotonic() - begin, 3)}

    def _copy(self, path: str | None, redacted: bool) -> tuple[str, int]:
        name = time.strftime("redacted-%Y%m%d-%H%M%S.db" if redacted else "rota-%Y%m%d-%H%M%S.db")
        if path is None:
            private_directory(self._paths.backups)
            path = os.path.join(self._paths.backups, name)
            number = 2
            while os.path.lexists(path):
                path = os.path.join(self._paths.backups, f"{name[:-3]}-{number}.db")
                number += 1
        elif not os.path.isabs(path):
            raise UsageError(f"'{path}': the manager needs an absolute path")
        elif os.path.isdir(path):
            path = os.path.join(path, name)
        own = self._paths.database
        if os.path.realpath(path) in {os.path.realpath(own + end) for end in ("", "-wal", "-shm")}:
            raise RefusedError(f"{path} is the queue itself: give another path")
        if os.path.lexists(path):
            try:
                if not os.path.isfile(path) or os.path.getsize(path) == 0:
                    raise StoreError("not a database")
                check_file(path)
            except StoreError:
                raise RefusedError(f"{path} exists and is no backup of rota's: give another path") from None
        if not redacted:
            self._manager.store.backup(path)
            return path, os.path.getsize(path)
        part = f"{path}.whole-{os.getpid()}"  # under its name only once nothing is left in it
        try:
            self._manager.store.backup(part)
            redact(part)
            os.replace(part, path)
        finally:
            if os.path.lexists(part):
                os.unlink(part)
        return path, os.path.getsize(path)

    async def _regular_backup(self, keep: int) -> None:
        try:
            made = await self.backup(None)
            log.info("backup %s (%d bytes, %.1f s)", made["path"], made["bytes"], made["elapsed_s"])
            for old in sorted(self._own_backups(), key=os.path.getmtime)[: -max(keep, 1)]:
                os.unlink(old)
        except (RotaError, OSError) as error:
            log.error("the regular backup failed: %s", error)
            if isinstance(error, StoreError):
                self._manager.fail(error)

    def _own_backups(self) -> list[str]:
        try:
            names = os.listdir(self._paths.backups)
        except OSError:
            return []
        return [os.path.join(self._paths.backups, name) for name in names if _BACKUP.fullmatch(name)]

    # ---- pruning ----------------------------------------------------------------------------------------------------

    async def prune(self, args: messages.Prune, by: str) -> dict[str, Any]:
        """Forget settled batches; what was done, and what was left alone and why."""
        selector = parse_selector(args.sel)
        if selector.empty and not args.all and not args.older_than_s and not args.keep:
            raise UsageError("which batches? Name some (7, @name), or give --older-than, --keep or --all")
        return await self._prune(selector, args.older_than_s, args.keep, args.dry_run, by)

    async def _prune(
        self, selector: Selector, older_than_s: float, keep: int, dry_run: bool, by: str
    ) -> dict[str, Any]:
        async with self._pruning:
            young: frozenset[int] = frozenset()
            if older_than_s:
                await self._manager.durable()
                open_ = {batch.id for batch in self._manager.state.batches.open() if batch.unsettled}
                ended = await asyncio.to_thread(self._manager.store.ended_since, time.time() - older_than_s)
                young = frozenset(ended) | open_
            total: dict[str, Any] = {}
            while True:
                stimulus = Prune(
                    at=now(),
                    by=by,
                    selector=_present(selector, self._manager.state.batches) if total else selector,
                    older_than_s=older_than_s,
                    keep=keep,
                    dry_run=dry_run,
                    young=young,
                )
                reply = await self._manager.told(stimulus)
                more = reply.pop("more")
                if total:
                    reply["batches"] += total["batches"]
                    reply["jobs"] += total["jobs"]
                    reply["sample"] = total["sample"]
                total = reply
                if not more:
                    break
        if total["batches"] and not dry_run:
            self._manager.checkpoint_soon()  # what the batches ran is taken out of the log once that covers it
            self._look_at = min(self._look_at, time.monotonic() + SOON_S)
            self.sweep()
        return total

    async def _retain(self, keep_s: float) -> None:
        try:
            done = await self._prune(Selector(), keep_s, 0, False, "retention")
        except RotaError as error:
            log.error("pruning what is old failed: %s", error)
            return
        if done["batches"]:
            log.info("pruned %d batches with %d jobs that were settled long ago", done["batches"], done["jobs"])

    # ---- what pruning leaves behind ---------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Delete what pruned batches left, in the background, unless that is under way."""
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = self._manager.loop.create_task(self._sweep())

    async def _sweep(self) -> None:
        found = False
        try:
            while await self._manager.writer.run(lambda: self._manager.store.sweep(ROWS)):
                found = True
                await asyncio.sleep(PAUSE_S)
            if found:
                await self._remove_output()
            while await self._manager.writer.run(self._manager.store.prepare):  # noqa: ASYNC110  a pause for commits
                await asyncio.sleep(PAUSE_S)
        except NoSpaceError as error:
            log.warning("what was pruned is deleted later: %s", error)
        except StoreError as error:
            self._manager.fail(error)

    async def _remove_output(self) -> None:
        await self._manager.durable()
        state = self._manager.state
        live = {runner.output for runner in state.runners.values() if runner.state not in ("CLOSED", "EXPIRED")}
        host = socket.gethostname()
        calm = {
            runner.output: runner.pid
            for runner in state.runners.values()
            if runner.state == "SERVING" and runner.host == host and state.soft.contacts[runner.id].connected
        }
        live |= {os.path.join(self._paths.output, a.tag) for a in state.allocations.values() if a.state.endswith("ING")}
        closed = {runner.output for runner in state.runners.values() if runner.state == "CLOSED"} - live
        tags = {a.tag for a in state.allocations.values() if a.state.endswith("ING")}
        tags |= {runner.id.partition(".")[0] for runner in state.runners.values() if runner.output in live}
        over = {name: site.over(tags) for name, site in self._manager.sites.items()}
        kept = await asyncio.to_thread(self._kept)
        files, freed = await asyncio.to_thread(self._collect, kept, live, calm, closed)
        if files:
            log.info("removed %d files of output (%d bytes) that nothing refers to any more", files, freed)
        for name, site in list(self._manager.sites.items()):
            if over.get(name) and (count := await site.clear(over[name], kept)):
                log.info("removed what %d runners left on hosts of %s", count, name)

    def _kept(self) -> dict[str, set[str]]:
        """Directory → files of output that results name."""
        kept: dict[str, set[str]] = {}
        for directory, name in self._manager.store.output_files():
            kept.setdefault(directory, set()).add(name)
        return kept

    def _collect(
        self, kept: dict[str, set[str]], live: set[str], calm: dict[str, int], closed: set[str]
    ) -> tuple[int, int]:
        """Remove segments that no result names, and directories of runners that are over when none is left."""
        count = freed = 0
        for directory in _directories(self._paths.output):
            names = kept.get(directory, set())
            if directory in live:
                unused = _cold(directory, names, calm[directory]) if directory in calm else []
            elif names:
                unused = [name for name in _segments(directory) if name not in names]
            else:
                if directory in closed or _age(directory) > FORGOTTEN_S:
                    count, freed = count + 1, freed + _size(directory)
                    shutil.rmtree(directory, ignore_errors=True)
                continue
            for name in unused:
                path = os.path.join(directory, name)
                with contextlib.suppress(OSError):
                    size = os.path.getsize(path)
                    os.unlink(path)
                    count, freed = count + 1, freed + size
        return count, freed


def _present(selector: Selector, batches: Container[int]) -> Selector:
    """A selector without the batches that are gone by now."""
    return Selector(tuple(span for span in selector.spans if span[0] in batches), selector.names, selector.states)


def _directories(output: str) -> list[str]:
    try:
        with os.scandir(output) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _segments(directory: str) -> list[str]:
    """Segment files, by number."""
    try:
        names = [name for name in os.listdir(directory) if _SEGMENT.fullmatch(name)]
    except OSError:
        return []
    return sorted(names, key=lambda name: int(name.partition(".")[0]))


def _cold(directory: str, kept: set[str], pid: int) -> list[str]:
    """Segments that a runner of this host is done with: it has not got them open, and nobody wrote to them lately."""
    last = time.time() - COLD_S
    try:
        descriptors = f"/proc/{pid}/fd"
        open_ = {os.readlink(os.path.join(descriptors, name)) for name in os.listdir(descriptors)}
    except OSError:  # gone, or changing: the next time
        return []
    found: list[str] = []
    for name in _segments(directory):
        path = os.path.join(directory, name)
        with contextlib.suppress(OSError):
            if name not in kept and os.path.realpath(path) not in open_ and os.stat(path).st_mtime < last:
                found.append(name)
    return found


def _age(directory: str) -> float:
    """Seconds since anything in a directory was written."""
    newest = 0.0
    for at, _, files in os.walk(directory):
        for path in [at, *(os.path.join(at, name) for name in files)]:
            with contextlib.suppress(OSError):
                newest = max(newest, os.lstat(path).st_mtime)
    return time.time() - newest


def _size(directory: str) -> int:
    total = 0
    for at, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(at, name)).st_size
    return total

"""Transfers: a file or directory goes from one place to another, by two commands and a pipe between them.

Several at once, bounded for each link and each place. One that was cut goes on where it was. What the far side says of
a failure decides what is done about it: another source, more room, another place for the job, or nothing.
"""

import asyncio
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from rota.drivers.descriptors import as_before
from rota.manager.data.places import Place
from rota.model.errors import RotaError

__all__ = ["PER_LINK", "PER_PLACE", "Journal", "Transfer", "TransferError", "Transfers"]

log = logging.getLogger("rota")
PER_LINK = 2
PER_PLACE = 4
TRIES = 4
"""How often one that is cut goes on."""
PAUSE_S = 1.0
GIVEN_UP = "it was given up"
STALL_S = 60.0
"""How long nothing may arrive before a connection is taken to be cut."""


class TransferError(RotaError):
    """Something could not be brought; `code` as in `runner/staging.py`, and of which place that tells."""

    def __init__(self, code: str, words: str, place: str) -> None:
        super().__init__(words)
        self.kind = code
        self.place = place


class Transfer(Struct):
    """One that waits, goes on, or is over."""

    path: str
    source: str
    target: str
    size: int
    done: int = 0
    state: str = "waiting"
    """waiting, running, done or failed."""
    tries: int = 0
    began: float = 0.0
    ended: float = 0.0
    why: str = ""


class Journal:
    """What lies at places of transfers under way, in a file: the next manager takes it over, or removes it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._parts: set[tuple[str, str, str]] = set()

    def load(self) -> dict[str, list[tuple[str, str]]]:
        """Place → (path, ident) of what the last manager left."""
        out: dict[str, list[tuple[str, str]]] = {}
        try:
            with open(self._path, encoding="utf-8") as file:
                self._parts = {(place, path, ident) for place, path, ident in json.load(file)}
        except (OSError, ValueError):
            return out
        for place, path, ident in sorted(self._parts):
            out.setdefault(place, []).append((path, ident))
        return out

    def begin(self, place: str, path: str, ident: str) -> None:
        """Something may lie at a place from now on."""
        self._parts.add((place, path, ident))
        self._write()

    def end(self, place: str, parts: Iterable[tuple[str, str]]) -> None:
        """Nothing of these lies at a place any more."""
        self._parts.difference_update((place, *part) for part in parts)
        self._write()

    def _write(self) -> None:
        try:
            with open(f"{self._path}.new", "w", encoding="utf-8") as file:
                json.dump(sorted(self._parts), file)
            os.replace(f"{self._path}.new", self._path)
        except OSError as error:  # a transfer goes on; at worst something is left behind
            log.warning("what is brought where cannot be written down: %s", error)


class Transfers:
    """Those under way, the last ones that are over, and how many bytes went between places in all."""

    def __init__(self, measured: Callable[[str, str, float], None], journal: Journal) -> None:
        self._measured = measured
        self._journal = journal
        self._links: dict[tuple[str, str], asyncio.Semaphore] = {}
        self._places: dict[str, asyncio.Semaphore] = {}
        self._cleaning: dict[str, asyncio.Lock] = {}
        self._begun: set[tuple[str, str, str]] | None = set()
        """(place, path, ident) of every transfer of this manager, until what the last one left is seen to."""
        self.closing = False
        """Whether the manager ends: what is cut now goes on later."""
        self.live: list[Transfer] = []
        self.past: list[Transfer] = []
        self.moved: dict[tuple[str, str], int] = {}
        """(from, to) → bytes that went there since the manager was started."""
        self.leftovers: dict[str, list[tuple[str, str]]] = {}
        """Place → (path, ident) of what lies there of transfers that were given up, and could not be removed yet."""

    async def bring(
        self, what: tuple[str, int, int], source: Place, source_path: str, target: Place, target_path: str
    ) -> dict[str, Any]:
        """Bring a path (of this size and time) from a place to another; what is there then. Raises TransferError."""
        path, size, mtime = what
        transfer = Transfer(path, source.name, target.name, size, began=time.time())
        self.live.append(transfer)
        ident = hashlib.sha1(f"{path}\0{target_path}\0{size}\0{mtime}".encode()).hexdigest()[:16]
        link = self._links.setdefault((source.name, target.name), asyncio.Semaphore(PER_LINK))
        names = sorted((source.name, target.name))  # in one order, or each could wait for what the other has
        ends = [self._places.setdefault(name, asyncio.Semaphore(PER_PLACE)) for name in names]
        try:
            async with link, ends[0], ends[1]:
                transfer.state, transfer.began = "running", time.time()
                await self._begin(target.name, (target_path, ident))
                found = await self._with_tries(transfer, ident, source, source_path, target, target_path)
            transfer.state = "done"
            self._journal.end(target.name, [(target_path, ident)])
            return found
        except (Exception, asyncio.CancelledError) as error:
            was, transfer.state, transfer.why = transfer.state, "failed", str(error) or GIVEN_UP
            if was == "running":  # else there is nothing of it
                self.leftovers.setdefault(target.name, []).append((target_path, ident))
                if not self.closing:  # else it goes on with the next manager
                    await asyncio.shield(self.clean(target))
            raise
        finally:
            transfer.ended = time.time()
            self.live.remove(transfer)
            self.past = [*self.past[-99:], transfer]

    async def _with_tries(
        self, transfer: Transfer, ident: str, source: Place, source_path: str, target: Place, target_path: str
    ) -> dict[str, Any]:
        while True:
            transfer.tries += 1
            try:
                return await self._once(transfer, ident, source, source_path, target, target_path)
            except TransferError as error:
                again = error.kind in ("cut", "changed") and transfer.tries < TRIES
                log.info("%s from %s to %s: %s", transfer.path, source.name, target.name, error)
                if not again:
                    raise
                transfer.why = str(error)
                await self._see(transfer, source, target)
                await asyncio.sleep(PAUSE_S * 2 ** (transfer.tries - 1))

    async def _see(self, transfer: Transfer, source: Place, target: Place) -> None:
        """After a cut: that a place cannot be reached any more is said at once, for another may do."""
        for place in (target, source):
            try:
                await place.ask("files", paths=[])
            except RotaError as error:
                raise TransferError("cut", f"{transfer.why}; {error}", place.name) from None

    async def _once(
        self, transfer: Transfer, ident: str, source: Place, source_path: str, target: Place, target_path: str
    ) -> dict[str, Any]:
        """Try once, from where the last try was."""
        try:
            await self.clean(target)
            have = (await target.ask("received", path=target_path, ident=ident)).get("bytes", 0)
            send = await source.argv({"what": "send", "path": source_path, "offset": have})
            take = await target.argv({"what": "receive", "path": target_path, "ident": ident, "offset": have})
        except RotaError as error:
            raise TransferError("cut", str(error), _named(error, source, target)) from None
        began = time.monotonic()
        answer, said = await self._pipe(transfer, send, take)
        if answer is None:
            raise TransferError("cut", f"the connection was cut: {said}" if said else "the connection was cut", "")
        if "error" in answer:
            blamed = target.name if answer["error"] in ("full", "denied") else source.name
            where = f"{blamed}: " if blamed == target.name else ""
            raise TransferError(answer["error"], f"{where}{answer['words']}", blamed)
        moved = max(0, answer["size"] - have)
        transfer.done = answer["size"]
        link = (source.name, target.name)
        self.moved[link] = self.moved.get(link, 0) + moved
        if moved >= 1 << 20:
            self._measured(*link, moved / max(0.001, time.monotonic() - began))
        return answer

    async def _pipe(
        self, transfer: Transfer, send: tuple[str, ...], take: tuple[str, ...]
    ) -> tuple[dict[str, Any] | None, str]:
        """Run both commands; the answer of the one that receives (None: it gave none), and what was said."""
        read, write = os.pipe()
        children: list[asyncio.subprocess.Process] = []
        try:
            sender = await asyncio.create_subprocess_exec(
                *send, stdin=asyncio.subprocess.DEVNULL, stdout=write, stderr=asyncio.subprocess.PIPE,
                start_new_session=True, preexec_fn=as_before(),
            )  # fmt: skip
            children.append(sender)
            receiver = await asyncio.create_subprocess_exec(
                *take, stdin=read, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                start_new_session=True, preexec_fn=as_before(),
            )  # fmt: skip
            children.append(receiver)
        except BaseException:
            await _end(children)
            raise
        finally:
            os.close(read)
            os.close(write)
        watch = asyncio.create_task(_drain(sender))
        try:
            out, said = await self._follow(transfer, receiver)
            if not out.strip():
                said = (await watch) or said
            return _answer(out), said
        finally:
            await _end(children)
            await watch

    async def _follow(self, transfer: Transfer, receiver: asyncio.subprocess.Process) -> tuple[bytes, str]:
        """Count what arrives, until the end; nothing for too long is a cut."""
        assert receiver.stdout is not None and receiver.stderr is not None
        reading, said = asyncio.create_task(receiver.stdout.read()), ""
        try:
            while True:
                line = await asyncio.wait_for(receiver.stderr.readline(), STALL_S)
                if not line:
                    break
                words = line.decode(errors="replace").strip()
                if words.startswith("rota-bytes "):
                    transfer.done = int(words.split()[1])
                elif words:
                    said = words
            return await asyncio.wait_for(reading, STALL_S), said
        except TimeoutError:
            return b"", f"nothing arrived for {STALL_S:g} s"
        finally:
            reading.cancel()

    async def _begin(self, place: str, part: tuple[str, str]) -> None:
        """Take over what lies at a place of an earlier transfer of the same, if it does; nobody removes it now."""
        async with self._cleaning.setdefault(place, asyncio.Lock()):
            left = [each for each in self.leftovers.pop(place, ()) if each != part]
            if left:
                self.leftovers[place] = left
            if self._begun is not None:
                self._begun.add((place, *part))
            self._journal.begin(place, *part)

    def inherit(self, parts: Mapping[str, list[tuple[str, str]]]) -> None:
        """Take it upon us to remove what an earlier manager left, unless it is being used or was."""
        for place, rows in parts.items():
            left = [part for part in rows if (place, *part) not in (self._begun or ())]
            if left:
                self.leftovers.setdefault(place, []).extend(left)
        self._begun = None

    async def clean(self, place: Place) -> None:
        """Remove what lies at a place of transfers that were given up, if it can be reached now."""
        async with self._cleaning.setdefault(place.name, asyncio.Lock()):
            parts = list(self.leftovers.get(place.name, ()))
            if not parts or place.why_not is not None:
                return
            try:
                if "error" in await place.ask("discard", parts=parts):  # somebody still writes there
                    return
            except (RotaError, OSError):
                return
            left = [part for part in self.leftovers.pop(place.name) if part not in parts]
            if left:
                self.leftovers[place.name] = left
            self._journal.end(place.name, parts)


async def _end(children: list[asyncio.subprocess.Process]) -> None:
    for child in children:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def _drain(sender: asyncio.subprocess.Process) -> str:
    assert sender.stderr is not None
    lines = (await sender.stderr.read()).decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


def _answer(out: bytes) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(out.strip().rpartition(b"\n")[2])
        return found
    except ValueError:
        return None


def _named(error: RotaError, source: Place, target: Place) -> str:
    """Which of two places an error tells of."""
    return source.name if source.name.rpartition("/")[2] in str(error) else target.name

"""What the manager tells of jobs that settle, gathered by a thread for one that serves."""

import asyncio
import contextlib
import queue
import socket
import threading
from typing import Any

from rota.model.errors import RotaError
from rota.wire.aclient import AsyncConnection
from rota.wire.client import LostError, NoManagerError

__all__ = ["Feed"]

TOGETHER = 500
"""Batches that are followed over one connection; the manager takes no more than 1,000 questions at a time."""
AGAIN_S = 0.2


class Feed:
    """Follows batches. `rows` gives what has settled; `wake` becomes readable when there is something."""

    def __init__(self, home: str) -> None:
        self._home = home
        self.wake, self._waker = socket.socketpair()
        self.wake.setblocking(False)
        self._waker.setblocking(False)
        self._rows: queue.SimpleQueue[list[dict[str, Any]]] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: list[tuple[AsyncConnection, list[int]]] = []
        """Connections, and of each how many batches are followed over it."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="rota-qcg-feed", daemon=True)
        self._thread.start()

    def follow(self, batches: list[int]) -> None:
        """Tell of these too."""
        self._loop.call_soon_threadsafe(self._begin, [str(number) for number in batches])

    def rows(self) -> list[dict[str, Any]]:
        """All rows that came since the last time."""
        with contextlib.suppress(BlockingIOError):
            while self.wake.recv(4096):
                pass
        out: list[dict[str, Any]] = []
        while True:
            try:
                out += self._rows.get_nowait()
            except queue.Empty:
                return out

    def close(self) -> None:
        """Follow nothing any more."""

        async def end() -> None:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for connection, _ in self._connections:
                await connection.close()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self.wake.close()
        self._waker.close()

    def _begin(self, words: list[str]) -> None:
        task = self._loop.create_task(self._to_the_end(words))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _to_the_end(self, words: list[str]) -> None:
        while True:
            connection, users = await self._connection()
            users[0] += 1
            try:
                async for note in connection.notes("follow", sel=words, held=False):
                    self._tell(note.get("ended", []))
                return
            except (LostError, NoManagerError):
                self._drop(connection)
                await asyncio.sleep(AGAIN_S)
            except RotaError:
                return  # the batch was removed or pruned
            finally:
                users[0] -= 1

    async def _connection(self) -> tuple[AsyncConnection, list[int]]:
        while True:
            for held in self._connections:
                if held[1][0] < TOGETHER:
                    return held
            try:
                connection = await AsyncConnection.connect(self._home)
            except (NoManagerError, LostError):
                await asyncio.sleep(AGAIN_S)
                continue
            self._connections.append((connection, [0]))

    def _drop(self, connection: AsyncConnection) -> None:
        self._connections = [held for held in self._connections if held[0] is not connection]

    def _tell(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            self._rows.put(rows)
            with contextlib.suppress(BlockingIOError):
                self._waker.send(b"x")

"""The one thread that writes the store, so that the loop never waits for a disk."""

import asyncio
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Writer"]

Done = Callable[[BaseException | None], None]
T = TypeVar("T")


class Writer:
    """Does pieces of work one after the other in a thread of its own, and says in the loop when each is done."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Done] | None] = queue.SimpleQueue()
        self._over: deque[tuple[Done, BaseException | None]] = deque()
        self._bell = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Wakes the loop once for each piece: that is at every commit, and `call_soon_threadsafe` has more to do."""
        loop.add_reader(self._bell, self._tell)
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], Any], done: Done) -> None:
        """Do the work in the thread, then call `done(error or None)` in the loop."""
        self._work.put((work, done))

    async def run(self, work: Callable[[], T]) -> T:
        """Do the work in the thread, and wait for what it returns."""
        future: asyncio.Future[T] = self._loop.create_future()
        returned: list[T] = []

        def done(error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(returned[0])
            else:
                future.set_exception(error)

        self.put(lambda: returned.append(work()), done)
        return await future

    def close(self) -> None:
        """Finish what is queued, then end the thread."""
        self._work.put(None)
        self._thread.join()
        while self._over:
            self._tell()
        self._loop.remove_reader(self._bell)
        os.close(self._bell)

    def _run(self) -> None:
        while True:
            item = self._work.get()
            if item is None:
                return
            work, done = item
            error: BaseException | None = None
            try:
                work()
            except BaseException as problem:  # the loop decides what it means
                error = problem
            self._over.append((done, error))
            os.eventfd_write(self._bell, 1)

    def _tell(self) -> None:
        """Say in the loop that a piece is done."""
        os.eventfd_read(self._bell)
        done, error = self._over.popleft()
        done(error)

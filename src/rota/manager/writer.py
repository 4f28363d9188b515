"""The one thread that writes the store, so that the loop never waits for a disk that is slow.

Going to a thread and back takes longer than a small commit on a quick disk, and somebody waits for both: so while the
disk is quick, small pieces are done by the loop itself.
"""

import asyncio
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Writer"]

Done = Callable[[BaseException | None], None]
T = TypeVar("T")
QUICK_S = 0.003
"""The loop waits itself for a disk that takes no longer than this, going by what it took lately."""


class Writer:
    """Does pieces of work one after the other in a thread of its own, and says in the loop when each is done."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Done, bool] | None] = queue.SimpleQueue()
        self._over: deque[tuple[Done, BaseException | None]] = deque()
        self._bell = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Wakes the loop once for each piece: that is at every commit, and `call_soon_threadsafe` has more to do."""
        loop.add_reader(self._bell, self._tell)
        self._queued = 0
        """Pieces that the thread has, and of which the loop has not been told that they are done."""
        self._usual_s = QUICK_S
        """How long small pieces took lately."""
        self.apart = False
        """Whether every piece is for the thread: on network file systems, where whoever reads holds up who writes."""
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], Any], done: Done, small: bool = False) -> None:
        """Do the work in the thread, or here if it is small, then call `done(error or None)` in the loop."""
        if small and not self.apart and not self._queued and self._usual_s <= QUICK_S:
            done(self._do(work, small))
            return
        self._queued += 1
        self._work.put((work, done, small))

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
            work, done, small = item
            self._over.append((done, self._do(work, small)))
            os.eventfd_write(self._bell, 1)

    def _do(self, work: Callable[[], Any], small: bool) -> BaseException | None:
        """Do a piece, and see how long it takes; its error if there is one: the loop decides what that means."""
        began = time.perf_counter()
        try:
            work()
        except BaseException as problem:
            return problem
        finally:
            if small:
                self._usual_s += (time.perf_counter() - began - self._usual_s) / 8
        return None

    def _tell(self) -> None:
        """Say in the loop that a piece is done."""
        os.eventfd_read(self._bell)
        done, error = self._over.popleft()
        self._queued -= 1
        done(error)

"""The one thread that writes the store, so that the loop never waits for a disk."""

import asyncio
import queue
import threading
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
            self._loop.call_soon_threadsafe(done, error)

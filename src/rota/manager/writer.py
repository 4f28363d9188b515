"""The one thread that writes the store, so that the loop never waits for a disk."""

import asyncio
import queue
import threading
from collections.abc import Callable

__all__ = ["Writer"]

Done = Callable[[BaseException | None], None]


class Writer:
    """Runs jobs one after the other in a thread of its own, and says in the loop when each is done."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None], done: Done) -> None:
        """Run `job` in the thread, then `done(error or None)` in the loop."""
        self._jobs.put((job, done))

    async def run(self, job: Callable[[], None]) -> None:
        """Run `job` in the thread and wait for it."""
        future: asyncio.Future[None] = self._loop.create_future()

        def done(error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.put(job, done)
        await future

    def close(self) -> None:
        """Finish what is queued, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            item = self._jobs.get()
            if item is None:
                return
            job, done = item
            error: BaseException | None = None
            try:
                job()
            except BaseException as problem:  # the loop decides what it means
                error = problem
            self._loop.call_soon_threadsafe(done, error)

"""Who writes the store: one thread, so that the loop never waits for a slow disk; for a quick one the loop itself.

To hand work to a thread and to hear of its end takes more CPU than a small commit does otherwise. So a commit that
nothing else is before is made in the loop, as long as the last ones were over within `QUICK_S`; one that takes longer
sends the next `PROBATION` to the thread.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["PROBATION", "QUICK_S", "Writer"]

Done = Callable[[BaseException | None], None]
T = TypeVar("T")

QUICK_S = 0.02
"""A disk that takes longer for a commit is not waited for in the loop."""
PROBATION = 20
"""So many commits in a row that the thread made must have been quick before the loop makes one."""


class Writer:
    """Does pieces of work one after the other, most of them in a thread of its own, and says in the loop when each is
    done."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.perf_counter) -> None:
        self._loop = loop
        self._clock = clock
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Done, bool] | None] = queue.SimpleQueue()
        self._queued = 0
        """Pieces of work that the thread has, or had and the loop does not know yet that they are done."""
        self._unproven = PROBATION
        """How many quick commits are missing until the loop makes one."""
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], Any], done: Done) -> None:
        """Do the work in the thread, then call `done(error or None)` in the loop."""
        self._queued += 1
        self._work.put((work, done, False))

    def commit(self, work: Callable[[], Any], done: Done) -> None:
        """Do the work of a commit, here or in the thread, then call `done(error or None)`, now or later in the loop."""
        if self._queued or self._unproven:
            self._queued += 1
            self._work.put((work, done, True))
            return
        error, took_s = self._try(work)
        self._judge(took_s)
        done(error)

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
            work, done, judged = item
            error, took_s = self._try(work)
            self._loop.call_soon_threadsafe(self._written, done, error, took_s if judged else None)

    def _try(self, work: Callable[[], Any]) -> tuple[BaseException | None, float]:
        """(what the work raised, how many seconds it took)."""
        began = self._clock()
        try:
            work()
        except BaseException as problem:  # the loop decides what it means
            return problem, self._clock() - began
        return None, self._clock() - began

    def _written(self, done: Done, error: BaseException | None, took_s: float | None) -> None:
        self._queued -= 1
        if took_s is not None:
            self._judge(took_s)
        done(error)

    def _judge(self, took_s: float) -> None:
        """Learn from a commit how quick the disk is."""
        if took_s > QUICK_S:
            self._unproven = PROBATION
        elif self._unproven:
            self._unproven -= 1

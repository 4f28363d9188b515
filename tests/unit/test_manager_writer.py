"""Who commits: the thread until the disk has proven to be quick, then the loop; earlier work is done first."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

from rota.manager.writer import PROBATION, QUICK_S, Writer


class Clock:
    """A clock that work moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def driven(scenario: Callable[[Writer, Clock], Awaitable[None]]) -> None:
    """Run a scenario in a loop, with a writer that is closed afterwards."""

    async def main() -> None:
        clock = Clock()
        writer = Writer(asyncio.get_running_loop(), clock)
        try:
            await scenario(writer, clock)
        finally:
            writer.close()

    asyncio.run(main())


async def commit(writer: Writer, clock: Clock, took_s: float = 0.0, error: Exception | None = None) -> bool:
    """Commit something that takes so long; whether that was done in the loop."""
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    where: list[int] = []

    def work() -> None:
        where.append(threading.get_ident())
        clock.now += took_s
        if error is not None:
            raise error

    writer.commit(work, done.set_result)
    assert await done is error
    return where == [threading.get_ident()]


def test_the_loop_commits_once_the_disk_has_proven_to_be_quick() -> None:
    async def scenario(writer: Writer, clock: Clock) -> None:
        first = [await commit(writer, clock, QUICK_S / 2) for _ in range(PROBATION)]
        assert not any(first)
        assert await commit(writer, clock, QUICK_S / 2)
        assert await commit(writer, clock, 2 * QUICK_S)  # nobody knows before
        again = [await commit(writer, clock) for _ in range(PROBATION)]
        assert not any(again)
        assert await commit(writer, clock)

    driven(scenario)


def test_a_slow_commit_of_the_thread_counts_too() -> None:
    async def scenario(writer: Writer, clock: Clock) -> None:
        for _ in range(PROBATION - 1):
            await commit(writer, clock)
        assert not await commit(writer, clock, 2 * QUICK_S)
        assert not any([await commit(writer, clock) for _ in range(PROBATION)])
        assert await commit(writer, clock)

    driven(scenario)


def test_what_was_put_before_a_commit_is_done_before_it() -> None:
    async def scenario(writer: Writer, clock: Clock) -> None:
        for _ in range(PROBATION):
            await commit(writer, clock)
        told: list[str] = []
        writer.put(lambda: told.append("staged"), lambda _: told.append("known"))
        assert not await commit(writer, clock)
        assert told == ["staged", "known"]
        assert await commit(writer, clock)

    driven(scenario)


def test_slow_work_of_another_kind_does_not_count() -> None:
    async def scenario(writer: Writer, clock: Clock) -> None:
        for _ in range(PROBATION):
            await commit(writer, clock)

        def sweep() -> str:
            clock.now += 10 * QUICK_S
            return "swept"

        assert await writer.run(sweep) == "swept"
        assert await commit(writer, clock)

    driven(scenario)


def test_an_error_is_told_wherever_it_happens() -> None:
    async def scenario(writer: Writer, clock: Clock) -> None:
        assert not await commit(writer, clock, error=OSError("full"))
        for _ in range(PROBATION):
            await commit(writer, clock)
        assert await commit(writer, clock, error=OSError("full"))

    driven(scenario)

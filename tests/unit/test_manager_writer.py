"""The thread that writes: pieces one after the other, and the loop is told of each."""

import asyncio
import threading
from functools import partial

import pytest

from rota.manager.writer import Writer


def test_each_piece_is_told_once_in_the_loop_and_in_order() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        failed: list[object] = []
        loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
        writer = Writer(loop)
        told: list[tuple[int, str, str | None]] = []
        bug, problem = RuntimeError("in the loop"), OSError("in the thread")

        def work(number: int) -> None:
            if number == 2:
                raise problem

        def done(number: int, error: BaseException | None) -> None:
            told.append((number, threading.current_thread().name, None if error is None else str(error)))
            if number == 1:
                raise bug

        for number in range(4):
            writer.put(partial(work, number), partial(done, number))
        assert await writer.run(lambda: 5) == 5
        here = threading.current_thread().name
        assert told == [(0, here, None), (1, here, None), (2, here, "in the thread"), (3, here, None)]
        assert failed == [bug], "and who was told after that was told all the same"
        with pytest.raises(OSError, match="in the thread"):
            await writer.run(lambda: work(2))
        writer.put(lambda: None, lambda error: told.append((9, "last", None)))
        writer.close()
        assert told[-1][0] == 9

    asyncio.run(main())

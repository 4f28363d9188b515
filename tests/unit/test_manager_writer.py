"""Who writes: the writer's thread, or the loop itself while the disk is quick."""

import asyncio
import threading

from rota.manager import writer
from rota.manager.writer import QUICK_S, Writer


def run(test):
    async def around():
        made = Writer(asyncio.get_running_loop())
        try:
            await test(made)
        finally:
            made.close()

    asyncio.run(around())


class Disk:
    """Work that takes as long as it is told, and remembers who did it."""

    def __init__(self, monkeypatch):
        self.now, self.seen = 0.0, []
        monkeypatch.setattr(writer.time, "perf_counter", lambda: self.now)

    def takes(self, seconds):
        def work():
            self.now += seconds
            self.seen.append(threading.current_thread().name)

        return work


def test_small_pieces_are_done_by_the_loop_while_the_disk_is_quick(monkeypatch):
    disk = Disk(monkeypatch)

    async def test(made):
        done = []
        made.put(disk.takes(QUICK_S / 2), done.append, small=True)
        assert done == [None], "it was waited for"
        made.put(disk.takes(QUICK_S * 100), done.append, small=True)
        await made.run(disk.takes(0.0))
        made.put(disk.takes(0.0), done.append, small=True)
        await made.run(lambda: None)
        assert disk.seen == ["MainThread", "MainThread", "writer", "writer"]
        assert done == [None, None, None]

    run(test)


def test_on_a_network_file_system_the_loop_waits_for_nothing(monkeypatch):
    disk = Disk(monkeypatch)

    async def test(made):
        made.apart = True
        made.put(disk.takes(0.0), lambda error: None, small=True)
        await made.run(lambda: None)
        assert disk.seen == ["writer"]

    run(test)


def test_a_disk_that_has_become_quick_again_is_waited_for_again(monkeypatch):
    disk = Disk(monkeypatch)

    async def test(made):
        for seconds in (QUICK_S * 9, *[0.0] * 20):
            made.put(disk.takes(seconds), lambda error: None, small=True)
            await made.run(lambda: None)
        assert disk.seen[:2] == ["MainThread", "writer"]
        assert disk.seen[-1] == "MainThread"

    run(test)


def test_nothing_overtakes_what_the_thread_has():
    async def test(made):
        order, gate = [], threading.Event()
        made.put(lambda: (gate.wait(60), order.append("large")), lambda error: None)
        made.put(lambda: order.append("small"), lambda error: None, small=True)
        assert order == []
        gate.set()
        await made.run(lambda: None)
        assert order == ["large", "small"]

    run(test)


def test_an_error_is_told_wherever_it_was_met():
    async def test(made):
        told = []

        def fail():
            raise OSError("no disk")

        made.put(fail, told.append, small=True)
        made.put(fail, told.append)
        await made.run(lambda: None)
        assert [str(error) for error in told] == ["no disk", "no disk"]

    run(test)

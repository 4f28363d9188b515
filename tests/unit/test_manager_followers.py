"""Clients that follow jobs: each job told once, and those that do not read cost little."""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

from core_world import World
from rota.core.state import BatchState, State
from rota.manager.answers.waits import Watchers
from rota.model.events import Entry
from rota.model.job import format_job
from rota.wire.peer import Limits, Peer


class Rows:
    """Rows of nothing but ids; remembers how many were made."""

    def __init__(self, most: int = 1000) -> None:
        self.made = 0
        self.most = most

    def first_rows(self, state: State, found: list[tuple[BatchState, int]]) -> list[dict[str, Any]]:
        self.made += len(found)
        return [{"id": format_job(batch.id, batch.index(pos))} for batch, pos in found[: self.most]]


class Reader:
    """A client that can stop reading."""

    def __init__(self, reads: bool = True) -> None:
        self.reads = reads
        self.told: list[str] = []
        self.answers: list[dict[str, Any]] = []
        self.calls: list[Callable[[], object]] = []

    def when_drained(self, call: Callable[[], object]) -> bool:
        if not self.reads:
            self.calls.append(call)
        return not self.reads

    def note(self, ask_id: int, body: dict[str, Any]) -> None:
        self.told += [json.loads(bytes(row))["id"] for row in body["ended"]]

    def answer(self, ask_id: int, result: dict[str, Any], flushed: bool = False) -> None:
        self.answers.append(result)

    def flush(self) -> None:
        pass

    def read(self) -> None:
        self.reads = True
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def following(world: World, peer: Reader, most: int = 1000, words: tuple[str, ...] = ()) -> tuple[Watchers, Rows]:
    rows = Rows(most)
    watchers = Watchers(rows, lambda: world.state)  # type: ignore[arg-type]
    watchers.add(peer, 1, list(words), True, False, None)  # type: ignore[arg-type]
    return watchers, rows


def kill(world: World, watchers: Watchers, *words: str) -> None:
    at = len(world.events())
    world.change("kill", *words)
    watchers.committed([Entry(0, 0.0, "", event) for event in world.events()[at:]])


def test_every_job_is_told_once_and_then_the_answer() -> None:
    world = World(check=False)
    for _ in range(3):
        world.submit(4)
    world.change("kill", "1")
    peer = Reader()
    watchers, _ = following(world, peer, most=3)
    assert peer.told == ["1.1", "1.2", "1.3", "1.4"]
    kill(world, watchers, "3.2-3")
    kill(world, watchers, "2", "3")
    assert sorted(peer.told) == sorted(f"{batch}.{index}" for batch in (1, 2, 3) for index in (1, 2, 3, 4))
    assert peer.answers == [{"counts": {"ABORTED": 12}}]


def test_who_does_not_read_is_told_the_rest_when_it_has_read() -> None:
    world = World(check=False)
    for _ in range(40):
        world.submit(1)
    peer = Reader(reads=False)
    watchers, rows = following(world, peer)
    for number in range(1, 40):
        kill(world, watchers, str(number))
    assert rows.made == 0 and len(peer.calls) == 1
    peer.read()
    assert peer.told == [f"{number}.1" for number in range(1, 40)] and rows.made == 39
    assert peer.answers == []
    kill(world, watchers, "40")
    assert peer.told[-1] == "40.1" and peer.answers == [{"counts": {"ABORTED": 40}}]


def test_a_batch_of_many_is_told_note_by_note() -> None:
    world = World(check=False)
    world.submit(1700)
    world.change("kill", "1")
    peer = Reader()
    following(world, peer)
    assert peer.told == [f"1.{index}" for index in range(1, 1701)] and len(peer.answers) == 1


class Gate:
    """Lets everybody in."""

    def arrive(self, peer: Peer, transport: asyncio.Transport) -> None:
        pass

    def closed(self, peer: Peer) -> None:
        pass


def test_a_peer_tells_when_what_was_sent_has_left() -> None:
    async def talk() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        made = lambda: Peer(None, Gate(), Limits(), "here")  # type: ignore[arg-type] # noqa: E731
        transport, peer = await loop.create_connection(made, sock=ours)
        drained = asyncio.Event()
        assert not peer.when_drained(drained.set)
        while not peer.when_drained(drained.set):
            peer.note(1, {"text": "x" * 100_000})
            peer.flush()
        assert peer.buffered < 4 << 20
        while not drained.is_set():
            assert await asyncio.wait_for(loop.sock_recv(theirs, 1 << 20), 60)
            await asyncio.sleep(0)
        assert not peer.when_drained(drained.set)
        transport.abort()
        theirs.close()

    asyncio.run(talk())


def test_what_several_follow_is_made_once_for_all() -> None:
    world = World(check=False)
    world.submit(30)
    first, second = Reader(), Reader()
    watchers, rows = following(world, first)
    watchers.add(second, 1, ["1.5-40"], True, False, None)  # type: ignore[arg-type]
    kill(world, watchers, "1.1-20")
    assert first.told == [f"1.{index}" for index in range(1, 21)]
    assert second.told == [f"1.{index}" for index in range(5, 21)]
    assert rows.made == 20
    watchers._rows_until = 0.0  # what was made is not kept for long
    kill(world, watchers, "1")
    assert (len(first.told), len(second.told), len(first.answers), len(second.answers)) == (30, 26, 1, 1)
    assert rows.made == 30 and len(watchers._rows) == 10


def test_a_job_that_ran_again_has_another_row() -> None:
    world = World(check=False)
    world.submit(2)
    first, second = Reader(), Reader()
    watchers, rows = following(world, first)
    kill(world, watchers, "1.1")
    world.change("retry", "1.1")
    world.change("kill", "1.1")
    world.state.batches[1].attempts[0] += 1
    watchers.add(second, 2, [], True, False, None)  # type: ignore[arg-type]
    assert (first.told, second.told, rows.made) == (["1.1"], ["1.1"], 2)

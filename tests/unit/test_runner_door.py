"""The door of a node: how many it lets in."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Iterator

import pytest

from rota.runner import door as doors
from rota.runner.channel import ERROR, EXIT, START, CallingChannel
from rota.runner.door import STRANGER_S, STRANGERS, Door

KEY, SECRET = (7, 1, 1), "5" * 64


class Gangs:
    """As much of the runner's gangs as a door needs that starts nothing."""

    grace_s = 0.0

    def secret_of(self, key: object) -> str | None:
        return SECRET if key == KEY else None

    def due(self, at: float) -> None:
        pass


class World:
    """A door, its loop, and who comes to it."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.door = Door(Gangs(), self.epoll)  # type: ignore[arg-type]
        self.peers: list[socket.socket] = []

    def call(self, count: int = 1) -> socket.socket:
        for _ in range(count):
            self.peers.append(socket.create_connection(("127.0.0.1", self.door.port)))
        return self.peers[-1]

    def serve(self, now: float) -> int:
        """Do what is to be done; how many rounds that took."""
        for rounds in range(1000):
            events = self.epoll.poll(0.02)
            if not events:
                return rounds
            for fd, _ in events:
                assert self.door.serve(fd, now)
        raise AssertionError("it does not come to rest")

    def greeted(self) -> int:
        """How many have been spoken to."""
        return len(select.select(self.peers, [], [], 0)[0])

    def close(self) -> None:
        self.door.close()
        self.epoll.close()
        for peer in self.peers:
            peer.close()


@pytest.fixture
def world() -> Iterator[World]:
    found = World()
    try:
        yield found
    finally:
        found.close()


def test_who_finds_no_room_waits_until_there_is_some(world: World) -> None:
    world.call(STRANGERS + 3)
    world.serve(0.0)
    assert world.greeted() == STRANGERS
    world.door.tick(STRANGER_S + 1)  # these have not proved themselves in time
    world.serve(STRANGER_S + 1)
    assert world.greeted() == STRANGERS + 3  # the end of the connection, or a greeting


def test_without_descriptors_the_door_rests_and_looks_again(world: World) -> None:
    class Exhausted:
        fileno = world.door._listener.fileno

        def accept(self) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

    listener = world.door._listener
    world.door._listener = Exhausted()  # type: ignore[assignment]
    world.call()
    assert world.serve(0.0) == 1, "it spins"
    world.door._listener = listener
    assert world.door.tick(0.0) <= doors.PAUSE_S
    world.door.tick(doors.PAUSE_S)
    world.serve(doors.PAUSE_S)
    assert world.greeted() == 1


def test_one_command_too_many_is_told_so(world: World) -> None:
    world.door._most = 0
    peer, channel = world.call(), CallingChannel(KEY, SECRET)
    heard: list[tuple[bytes, bytes]] = []
    peer.settimeout(60)
    deadline = time.monotonic() + 30
    sent = False
    while len(heard) < 2 and time.monotonic() < deadline:
        world.serve(0.0)
        heard += channel.feed(peer.recv(4096))
        if channel.proved and not sent:
            channel.send(START, b"{}")
            sent = True
        peer.sendall(channel.out)
        channel.out.clear()
    assert heard == [(ERROR, b"0 commands run here by rota rsh: there can be no more"), (EXIT, b"255")]

"""The connection by which ranks are started: who gets in, and what cannot be done to what is said."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.runner.channel import ERR, IN, OUT, START, CallingChannel, Channel, ChannelError, DoorChannel
from rota.runner.rsh import RshError, parse

KEY = (7, 1, 2)
SECRET = "ab" * 16


def carry(source: Channel, target: Channel, size: int = 1 << 20) -> list[tuple[bytes, bytes]]:
    """Carry all that one end has to say to the other, in pieces."""
    data = bytes(source.out)
    source.out.clear()
    found = []
    for at in range(0, len(data), size):
        found += target.feed(data[at : at + size])
    return found


def met(secret: str = SECRET, size: int = 1 << 20) -> tuple[CallingChannel, DoorChannel]:
    """Both ends, after their greetings."""
    caller, door = CallingChannel(KEY, secret), DoorChannel({KEY: SECRET}.get)
    for source, target in ((door, caller), (caller, door), (door, caller)):
        assert carry(source, target, size) == []
    assert caller.proved and door.proved and door.key == KEY
    return caller, door


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([START, IN, OUT, ERR]), st.binary(max_size=300))), st.integers(1, 50))
def test_what_is_sent_arrives_whole_and_in_order_however_it_is_cut(frames, size):
    for here, there in (met(size=size), tuple(reversed(met()))):
        for frame in frames:
            here.send(*frame)
        assert carry(here, there, size) == frames


def test_a_wrong_secret_lets_nobody_in_and_tells_nothing_of_the_right_one():
    caller, door = CallingChannel(KEY, "cd" * 16), DoorChannel({KEY: SECRET}.get)
    carry(door, caller)
    with pytest.raises(ChannelError):
        carry(caller, door)
    assert not door.proved and not door.out
    caller, door = CallingChannel((7, 1, 3), SECRET), DoorChannel({KEY: SECRET}.get)
    carry(door, caller)
    with pytest.raises(ChannelError):
        carry(caller, door)


def test_a_door_that_does_not_know_the_secret_is_not_trusted():
    caller, door = CallingChannel(KEY, SECRET), DoorChannel({KEY: SECRET}.get)
    carry(door, caller)
    caller.out.clear()
    with pytest.raises(ChannelError):
        caller.feed(b"\0\0\0\x4c" + b'{"proof":"%b"}' % (b"0" * 64))
    assert not caller.proved


def test_the_secret_is_never_sent():
    caller, door = met()
    caller.send(START, b"{}")
    door.send(OUT, b"x")
    for channel in (caller, door):
        assert SECRET.encode() not in channel.out and bytes.fromhex(SECRET) not in channel.out


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_frame_that_was_changed_is_refused(data):
    caller, door = met()
    caller.send(IN, b"some input")
    raw = bytearray(caller.out)
    at = data.draw(st.integers(4, len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ChannelError):
        door.feed(bytes(raw))


def test_repeating_leaving_out_and_turning_around_are_refused():
    caller, door = met()
    caller.send(IN, b"1")
    first = bytes(caller.out)
    assert door.feed(first) == [(IN, b"1")]
    with pytest.raises(ChannelError):
        door.feed(first)
    caller, door = met()
    caller.send(IN, b"1")
    caller.out.clear()
    caller.send(IN, b"2")
    with pytest.raises(ChannelError):
        carry(caller, door)
    caller, door = met()
    door.send(OUT, b"1")
    with pytest.raises(ChannelError):
        door.feed(bytes(door.out))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2000))
def test_whatever_a_stranger_sends_ends_in_nothing_or_a_refusal(data):
    door = DoorChannel({KEY: SECRET}.get)
    try:
        assert door.feed(data) == []
    except ChannelError:
        pass
    assert not door.proved


def test_options_of_ssh_are_passed_over():
    assert parse(["n2", "ls"]) == ("n2", ["ls"], False)
    words = ["-x", "-q", "-o", "BatchMode=yes", "-oPort=3", "-l", "me", "-Tn", "you@n2", "-T", "ls", "-l", "a b"]
    assert parse(words) == ("n2", ["ls", "-l", "a b"], True)
    assert parse(["n2", "--", "-strange", "word"]) == ("n2", ["-strange", "word"], False)
    for words in ([], ["n2"], ["-x"], ["-l", "n2"]):
        with pytest.raises(RshError):
            parse(words)

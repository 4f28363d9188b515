"""Frames: any split of any stream gives the same payloads, and bad lengths give ProtocolError."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.model.errors import ProtocolError
from rota.wire.frames import MAX_FRAME, Decoder, check_depth, encode


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=20), st.data())
def test_any_split_of_a_stream_gives_the_same_payloads(payloads, data):
    stream = b"".join(map(encode, payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    decoder, got = Decoder(), []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.feed(stream[start:stop])
    assert got == payloads
    assert decoder.waiting == 0


@given(st.binary(max_size=400), st.integers(1, 50))
def test_garbage_gives_frames_or_protocol_error_and_never_buffers_more_than_a_frame(garbage, step):
    decoder = Decoder(limit=100)
    try:
        for start in range(0, len(garbage), step):
            assert all(0 < len(frame) <= 100 for frame in decoder.feed(garbage[start : start + step]))
            assert decoder.waiting < 104 + step
    except ProtocolError:
        assert decoder.broken


@pytest.mark.parametrize("header", [b"\0\0\0\0", b"\0\x40\0\x01", b"\xff\xff\xff\xff", b"GET "])
def test_a_bad_length_is_refused_at_once_and_for_good(header):
    decoder = Decoder()
    with pytest.raises(ProtocolError):
        decoder.feed(header)
    with pytest.raises(ProtocolError):
        decoder.feed(encode(b"{}"))


def test_what_was_said_before_a_bad_length_is_heard():
    decoder = Decoder()
    assert decoder.feed(encode(b"{}") + b"\0\0\0\0") == [b"{}"]
    assert decoder.broken
    with pytest.raises(ProtocolError):
        decoder.feed(b"")


def test_limits_of_a_frame():
    largest = b"x" * MAX_FRAME
    assert Decoder().feed(encode(largest)) == [largest]
    for payload in (b"", largest + b"x"):
        with pytest.raises(ProtocolError):
            encode(payload)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[]{}"\\/nu0,: é'),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text('[]{}"\\'), inner, max_size=5),
    max_leaves=60,
)


def depth(value):
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(JSON, st.integers(0, 6), st.booleans())
def test_depth_is_judged_exactly(value, limit, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    if depth(value) > limit:
        with pytest.raises(ProtocolError):
            check_depth(text, limit)
    else:
        check_depth(text, limit)


def test_depth_of_hostile_text():
    check_depth(b"[" * 32 + b"]" * 32)
    check_depth(json.dumps(["[" * 10_000, {"{": "\\" * 999 + '"[['}]).encode())
    check_depth(b"[" + b",".join([b"[[],{}]"] * 100_000) + b"]")
    for text in (b"[" * 33 + b"]" * 33, b"[" * 10_000, b'{"a":' * 10_000, b"]" * 40 + b"[" * 40):
        with pytest.raises(ProtocolError):
            check_depth(text)

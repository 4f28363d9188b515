"""Messages: what docs/protocol.md shows is understood, and whatever else comes gives ProtocolError and nothing else."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.model.errors import ProtocolError
from rota.wire import messages
from rota.wire.messages import OPS, Bye, Greet, Hello, Report, Touch

DOCUMENT = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()

HELLO = {"t": "hello", "version": 1}
GREET = {
    "t": "greet", "version": 1, "runner": "r1", "allocation": None, "connect": 3, "clock": 812.5, "host": "n1",
    "pid": 99, "cores": 2000,
    "memory": 8000000000, "disk": 0, "gpus": 0, "tags": [], "until_s": None, "output": "/h/output/r1",
    "held": [[7, 12, 1]], "proof": "ab12",
}  # fmt: skip
ENDED = [
    7,
    11,
    1,
    0,
    None,
    None,
    1731600000.0,
    1731600000.1,
    0.01,
    1900000,
    ["0.seg", 0, 10, 0, "0.err", 0, 0, 0],
    None,
]
REPORT = {
    "t": "report", "session": 5, "seq": 9, "got": 17, "clock": 813.1,
    "started": [[7, 12, 1, 1731600000.1, 4711, "lane-99-1"]], "ended": [ENDED],
    "disclaimed": [[7, 13, 1, "start-by passed"]],
}  # fmt: skip
TOUCH = {
    "t": "touch", "session": 5, "got": 17, "clock": 828.0, "held": [[7, 12, 1]],
    "live": [[7, 12, 1, 0.5, 1900000, 4711, "lane-99-1"]],
}  # fmt: skip
BYE = {"t": "bye", "session": 5, "reason": "idle"}
DECODERS = [messages.decode_greeting, messages.decode_client, messages.decode_runner]


def dump(message):
    return json.dumps(message).encode()


def test_a_runner_on_a_host_with_the_longest_name_may_greet():
    runner = f"0123456789ab.99999.{'n' * 63}.01234567"
    greet = messages.decode_greeting(dump(GREET | {"runner": runner, "replaces": runner}))
    assert isinstance(greet, Greet) and greet.runner == greet.replaces == runner
    with pytest.raises(ProtocolError):
        messages.decode_greeting(dump(GREET | {"runner": "r" * 129}))


def test_the_examples_of_the_document():
    assert isinstance(messages.decode_greeting(dump(HELLO)), Hello)
    greet = messages.decode_greeting(dump(GREET))
    assert isinstance(greet, Greet)
    assert greet.held == [(7, 12, 1)]
    report = messages.decode_runner(dump(REPORT))
    assert isinstance(report, Report)
    assert report.ended[0][:4] == (7, 11, 1, 0)
    assert report.ended[0][10] == ("0.seg", 0, 10, 0, "0.err", 0, 0, 0)
    assert isinstance(messages.decode_runner(dump(TOUCH)), Touch)
    assert isinstance(messages.decode_runner(dump(BYE)), Bye)


def test_every_op_of_the_document_is_known_and_no_other():
    section = DOCUMENT.split("| op | arguments | result |")[1].split("**JobRow**")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {name for cell in rows for name in re.findall(r"`([a-z]+)`", cell)}
    assert named <= set(OPS)
    assert set(OPS) == named


def test_every_argument_of_the_document_is_a_field():
    section = DOCUMENT.split("| op | arguments | result |")[1].split("**JobRow**")[0]
    for line in section.splitlines():
        if not line.startswith("| `"):
            continue
        _, ops, arguments, *_ = line.replace("\\|", " ").split("|")
        outside = re.sub(r"\([^)]*\)", "", arguments)
        wanted = set(re.findall(r"`([a-z_]+)`", outside))
        for op in re.findall(r"`([a-z]+)`", ops):
            fields = {field.encode_name for field in msgspec.structs.fields(OPS[op])}
            assert wanted == fields, op


def test_rows_may_lack_what_an_older_runner_does_not_measure():
    row = [7, 11, 1, 0, None, None, 1.0, 2.0, 0.5, 1900, None, None]
    for more, disk in (([], None), ([None], None), ([4096], 4096)):
        report = {"t": "report", "session": 1, "seq": 1, "got": 1, "clock": 1.0, "ended": [[*row, *more]]}
        decoded = messages.decode_runner(messages.encode(report))
        assert decoded.ended[0].peak_disk == disk and decoded.ended[0][:12] == tuple(row)
        live = [[7, 1, 1, 0.5, 9, 4, None, *more]]
        touch = {"t": "touch", "session": 1, "got": 1, "clock": 1.0, "held": [], "live": live}
        assert messages.decode_runner(messages.encode(touch)).live[0].disk == disk
    for wrong in (row[:11], [*row, 1, 2], [*row, -1], [*row, "x"]):
        with pytest.raises(ProtocolError):
            messages.decode_runner(messages.encode({**report, "ended": [wrong]}))


def test_a_request_is_decoded_in_two_steps_and_leaves_the_batch_raw():
    body = dump({"t": "ask", "id": 4, "op": "submit", "key": "ab", "batch": {"name": "x"}, "values": ["a"], "new": 1})
    ask = messages.decode_client(body)
    assert (ask.id, ask.op) == (4, "submit")
    submit = messages.decode_ask("submit", body)
    assert (bytes(submit.batch), bytes(submit.values)) == (b'{"name": "x"}', b'["a"]')
    assert bytes(messages.decode_ask("submit", b'{"key":"a","batch":{}}').values) == b"null"


def test_unknown_extra_fields_are_ignored():
    for message, decode in ((HELLO, DECODERS[0]), (GREET, DECODERS[0]), (REPORT, DECODERS[2]), (BYE, DECODERS[2])):
        decode(dump({**message, "more": {"a": [1]}}))


def test_what_is_wrong_is_named():
    with pytest.raises(ProtocolError, match=r"ended\[0\]\[8\]"):
        messages.decode_runner(dump({**REPORT, "ended": [[*ENDED[:8], -1, *ENDED[9:]]]}))
    with pytest.raises(ProtocolError, match=r"'status'.*sel\[1\]"):
        messages.decode_ask("status", b'{"sel":["7",7]}')
    with pytest.raises(ProtocolError, match="unknown op"):
        messages.decode_ask("rm -rf", b"{}")


HOSTILE = [
    (0, -1), (0, 2**63), (0, 1.5), (0, "7"), (0, True), (1, -1), (2, -1), (2, 2**40), (3, 256), (3, -1), (4, 0),
    (4, 9000), (5, "x" * 65), (5, "<b>"), (6, -1.0), (6, 1e300), (8, -0.1), (8, 1e30), (8, None), (9, -1),
    (9, 2**60), (9, 1.5),
    (10, []), (10, ["0.seg", 0, 10, 0]), (10, ["../x", 0, 0, 0, "e", 0, 0, 0]),
    (10, ["/etc/passwd", 0, 0, 0, "e", 0, 0, 0]),
    (10, ["a/../b", 0, 0, 0, "e", 0, 0, 0]), (10, ["a\n", 0, 0, 0, "e", 0, 0, 0]), (10, ["a", -1, 0, 0, "e", 0, 0, 0]),
    (10, [".ssh/id", 0, 0, 0, "e", 0, 0, 0]), (11, "x" * 20_000),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value"), HOSTILE)
def test_absurd_figures_of_a_runner_are_refused(place, value):
    row = list(ENDED)
    row[place] = value
    with pytest.raises(ProtocolError):
        messages.decode_runner(dump({**REPORT, "ended": [row]}))


@pytest.mark.parametrize("field", ["held", "cores", "memory", "runner", "connect", "output", "version"])
def test_a_greeting_lacks_nothing_that_matters(field):
    with pytest.raises(ProtocolError):
        messages.decode_greeting(dump({key: value for key, value in GREET.items() if key != field}))


@pytest.mark.parametrize(
    "field",
    [("runner", "../x"), ("runner", ""), ("host", "a\nb"), ("cores", -1), ("memory", 2**63), ("allocation", "a/b")],
)
def test_a_greeting_is_bounded(field):
    with pytest.raises(ProtocolError):
        messages.decode_greeting(dump({**GREET, field[0]: field[1]}))


def only_protocol_error(payload):
    for decode in DECODERS:
        try:
            decode(payload)
        except ProtocolError:
            pass
    for op in OPS:
        try:
            messages.decode_ask(op, payload)
        except ProtocolError:
            pass


@given(st.binary(max_size=200))
def test_bytes_give_protocol_error_only(payload):
    only_protocol_error(payload)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(st.sampled_from([HELLO, GREET, REPORT, TOUCH, BYE]), st.data())
def test_a_message_with_anything_in_any_field_gives_protocol_error_only(message, data):
    changed = dict(message)
    changed[data.draw(st.sampled_from(sorted(message)))] = data.draw(ANY)
    only_protocol_error(dump(changed))


@given(st.sampled_from([GREET, REPORT, TOUCH]), st.data())
def test_damaged_bytes_give_protocol_error_only(message, data):
    text = bytearray(dump(message))
    for place in data.draw(st.lists(st.integers(0, len(text) - 1), min_size=1, max_size=4)):
        text[place] = data.draw(st.integers(0, 255))
    only_protocol_error(bytes(text[: data.draw(st.integers(0, len(text)))]))


def test_deep_text_gives_protocol_error_only():
    for text in (b"[" * 10_000, b'{"t":"ask","id":1,"op":"ping","x":' + b"[" * 100_000, b'{"a":' * 100_000):
        only_protocol_error(text)

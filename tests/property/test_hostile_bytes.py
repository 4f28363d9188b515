"""Whatever the bytes: frames before and after the proof, files from outside, answers of batch systems, tokens.

Each example of hypothesis is a seed from which many cases are made, by breaking what is right; `make test` runs over a
hundred thousand of them, `make soak` many more (`ROTA_FUZZ=20`).
"""

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorded import recorded
from rota.drivers import native
from rota.drivers.dialect import Answer, Listing, Options
from rota.drivers.dialects import BUILT_IN, load_dialect
from rota.model.errors import ProtocolError, RotaError
from rota.runner.lease import ProtocolError as RunnerProtocolError
from rota.runner.lease import read_gangs, read_holds, read_leases
from rota.runner.spool import _sound
from rota.wire import auth, messages
from rota.wire.files import BadFileError, decode_left, decode_started
from rota.wire.frames import MAX_FRAME, Decoder, check_depth
from rota.wire.tokens import allows

MANY = int(os.environ.get("ROTA_FUZZ", "1"))
EXAMPLES = settings(max_examples=25 * MANY, deadline=None)
SEEDS = st.integers(min_value=0, max_value=1 << 62)

ROW = [7, 12, 1, 0, None, None, 1.7e9, 1.7e9, 0.5, 4096, ["0.seg", 0, 9, 0, None, 0, 0, 0], "a note", None]
GREETINGS = [
    {"t": "hello", "version": 1, "proof": "ab", "name": "ci"},
    {"t": "prove", "version": 1, "allocation": "a3", "proof": "ab"},
    {
        "t": "greet", "version": 1, "runner": "r1", "connect": 1, "clock": 1.0, "host": "n1", "pid": 9, "cores": 1000,
        "memory": 1 << 30, "output": "/o", "held": [[7, 12, 1]], "tags": ["big"], "allocation": "a3", "until_s": 60.0,
    },
]  # fmt: skip
RUNNER = [
    {"t": "report", "session": 1, "seq": 1, "got": 1, "clock": 1.0, "started": [[7, 12, 1, 1.7e9, 99, "s/7.12"]],
     "ended": [ROW], "disclaimed": [[7, 13, 1, "full"]]},
    {"t": "touch", "session": 1, "got": 1, "clock": 1.0, "held": [[7, 12, 1]],
     "live": [[7, 12, 1, 0.5, 4096, 9, None]]},
    {"t": "held", "session": 1, "holds": [[7, 12, 1, "n1:99"]]},
    {"t": "released", "session": 1, "jobs": [[7, 12, 1]]},
    {"t": "tail", "session": 1, "ask": 1, "data": "YQ==", "next": 1},
    {"t": "bye", "session": 1, "reason": "idle"},
]  # fmt: skip
ASK = {
    "t": "ask", "id": 1, "sel": ["7"], "key": "ab", "batch": {}, "stage": "ab", "first": 0, "values": [1], "job": "7.1",
    "action": "list", "set": {"x": 1}, "path": "/x", "timeout_s": 1.0, "as": "me", "all": True,
}  # fmt: skip
ASKS = [{**ASK, "op": op} for op in messages.OPS]
LEASE = {
    "specs": {"s": {"cwd": "/", "env": "e"}}, "envs": {"e": {"A": "1"}},
    "jobs": [["slot", "s", 7, 12, 1, "true", None], ["slot", "s", 7, 13, 1, ["a", "b"], {"env": "e"}]],
    "gangs": {"7.12.1": {"secret": "x" * 32, "nodes": [{"host": "n1", "address": "n1:9"}]}},
}  # fmt: skip
STARTED = {"job": [7, 12, 1], "host": "n1", "pid": 9, "started": 1.7e9, "scratch": "s/7.12", "boot": "x"}
LEFT = {"version": 1, "runner": "r1", "connect": 1, "seq": 1, "ended": [ROW], "disclaimed": [[7, 13, 1, "x"]]}
NASTY: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 31, 1 << 53, 1 << 64, 1 << 200, 0.5, 1e308, "", "x" * 5000, "\x00", "\x1b[2J", "\u202e",
    "../../etc/passwd", "a/../b", [], {}, [[]], [None], {"t": "greet"}, "é", "\ud800",
)  # fmt: skip


def changed(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """A copy of a JSON value with something in it that does not belong there."""
    if depth > 4 or rng.random() < 0.15:
        return rng.choice(NASTY)
    if isinstance(value, dict) and value:
        out = dict(value)
        key = rng.choice(list(out))
        how = rng.random()
        if how < 0.15:
            del out[key]
        elif how < 0.25:
            out[rng.choice(("t", "x", "op", "proof"))] = rng.choice(NASTY)
        else:
            out[key] = changed(rng, out[key], depth + 1)
        return out
    if isinstance(value, list) and value:
        at, how = rng.randrange(len(value)), rng.random()
        if how < 0.1:
            return value * rng.choice((2, 50))
        if how < 0.2:
            return value[:at]
        return [*value[:at], changed(rng, value[at], depth + 1), *value[at + 1 :]]
    return rng.choice(NASTY)


def broken(rng: random.Random, samples: list[Any], count: int) -> Iterator[bytes]:
    """Payloads: JSON with wrong things in it, and bytes that are none."""
    for _ in range(count):
        text = json.dumps(changed(rng, rng.choice(samples))).encode()
        how = rng.random()
        if how < 0.1:
            text = text[: rng.randrange(len(text) + 1)]
        elif how < 0.2 and text:
            at = rng.randrange(len(text))
            text = text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]
        elif how < 0.23:
            text = rng.randbytes(rng.randrange(200))
        elif how < 0.25:
            text = rng.choice((b"[", b'{"t":')) * rng.randrange(1, 5000)
        yield text


def fits(read: Callable[[bytes], Any], payload: bytes, *refusals: type[Exception]) -> Any:
    """What a reader makes of it; None: it refuses, as it should, and nothing else comes out."""
    try:
        check_depth(payload)
        return read(payload)
    except refusals:
        return None


@EXAMPLES
@given(SEEDS)
def test_frames_before_the_proof(seed: int) -> None:
    rng = random.Random(seed)
    for payload in broken(rng, GREETINGS, 600):
        made = fits(messages.decode_greeting, payload, ProtocolError)
        if isinstance(made, messages.Greet):
            assert 0 <= made.cores <= 1_000_000_000
            assert len(made.runner) <= 64
            assert "\x1b" not in made.host
            assert "\n" not in made.output


@EXAMPLES
@given(SEEDS)
def test_frames_of_runners(seed: int) -> None:
    for payload in broken(random.Random(seed), RUNNER, 900):
        made = fits(messages.decode_runner, payload, ProtocolError)
        if isinstance(made, messages.Report):
            for row in made.ended:
                assert row.exit_code is None or 0 <= row.exit_code <= 255
                assert row.output is None or ".." not in str(row.output[0])
                assert 0 <= row.peak_memory <= 1 << 50


@EXAMPLES
@given(SEEDS)
def test_frames_of_clients(seed: int) -> None:
    for payload in broken(random.Random(seed), ASKS, 600):
        ask = fits(messages.decode_client, payload, ProtocolError)
        if ask is not None:
            fits(lambda data, op=ask.op: messages.decode_ask(op, data), payload, ProtocolError)
            assert allows("admin", ask.op)
            assert not allows("read", ask.op) or ask.op not in ("submit", "kill", "token", "down", "prune")


@EXAMPLES
@given(SEEDS)
def test_streams_of_frames(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(150):
        decoder = Decoder(rng.choice((65_536, MAX_FRAME)))
        decoder.one_by_one = rng.random() < 0.5
        try:
            for _ in range(rng.randrange(6)):
                size = rng.choice((0, 1, 5, 70_000, 1 << 31)).to_bytes(4, "big")
                data = rng.choice((size, b"\0\0\0\5hello", rng.randbytes(rng.randrange(40))))
                for frame in decoder.feed(data):
                    assert 0 < len(frame) <= decoder.limit
        except ProtocolError:
            assert decoder.broken
        assert decoder.waiting <= 70_100


@EXAMPLES
@given(SEEDS)
def test_files_from_outside(seed: int) -> None:
    rng = random.Random(seed)
    for payload in broken(rng, [LEFT], 500):
        left = fits(decode_left, payload, BadFileError, ProtocolError)
        for row in left.ended if left is not None else ():
            assert row.signal is None or 1 <= row.signal <= 127
        try:
            sound = _sound(json.loads(payload))
        except (ValueError, KeyError, TypeError, RecursionError, UnicodeDecodeError):
            continue
        assert isinstance(sound, dict)
    for payload in broken(rng, [STARTED], 300):
        started = fits(decode_started, payload, BadFileError, ProtocolError)
        assert started is None or ".." not in (started.scratch or "")


@EXAMPLES
@given(SEEDS)
def test_leases_of_runners(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        lease = changed(rng, LEASE)
        if not isinstance(lease, dict):
            continue
        specs, envs = lease.get("specs"), lease.get("envs")
        try:
            leases = read_leases(lease.get("jobs"), specs or {}, envs or {}, 0.0)
            read_gangs(lease.get("gangs"), leases)
            read_holds(lease.get("jobs"))
        except RunnerProtocolError:
            continue


@EXAMPLES
@given(SEEDS)
def test_proofs(seed: int) -> None:
    rng = random.Random(seed)
    secret, nonce = rng.randbytes(32).hex(), rng.randbytes(32).hex()
    kept, right = auth.verifier(secret), auth.client_proof(secret, nonce, "f")
    assert auth.client_proof_fits(right, kept, nonce, "f")
    for _ in range(100):
        at = rng.randrange(len(right))
        wrong = rng.choice((right[:at], right[:at] + rng.choice("0123456789abcdef-_x") + right[at + 1 :], kept, secret))
        if wrong != right:
            assert not auth.client_proof_fits(wrong, kept, nonce, "f")
        assert not auth.client_proof_fits(right, kept, nonce + "0", "f")
        assert not auth.proof_fits(wrong, None, nonce, "f")


JUNK = ("", "\x00", "\n", "|", "[0-99999]", "_[0-4294967295]", "<a>", "{", "\u202e", "9" * 300, "-", "1e999", "NaN")


def answers(rng: random.Random, samples: list[Answer], count: int) -> Iterator[Answer]:
    """Answers like the recorded ones, broken."""
    for _ in range(count):
        answer = rng.choice(samples)
        out = answer.stdout
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(out) + 1)
            junk = rng.choice(
                ("", "\x00", "\n", "|", "[0-99999]", "_[0-4294967295]", "<a>", "{", "\u202e", "9" * 300, "-")
            )
            out = out[:at] + junk + out[at + rng.randrange(30) :]
        yield Answer(
            rng.choice((0, 0, 1, 255, None)), out, rng.choice(("", answer.stderr, "x" * 100)), rng.random() < 0.1
        )


@cache
def samples(system: str) -> list[Answer]:
    """What real systems of this kind have said."""
    place = Path(__file__).parents[1] / "fixtures" / system
    if (place / "recorded.jsonl").exists():
        found = [case.answer for case in recorded(system).values()]
    else:
        texts = [path.read_text(errors="replace") for path in sorted(place.rglob("*")) if path.is_file()]
        found = [Answer(0, "".join(re.findall(r"(?m)^(?!# ).*\n", text)), "") for text in texts]
    return [answer for answer in found if len(answer.stdout) < 20_000]


SYSTEMS = {"slurm": "slurm", "lsf": "lsf", "openlava": "lsf", "pbs": "openpbs", "torque": "torque", "sge": "gridengine"}


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@settings(max_examples=8 * MANY, deadline=None)
@given(seed=SEEDS)
def test_answers_of_batch_systems(name: str, seed: int) -> None:
    rng, dialect = random.Random(seed), load_dialect(name)
    for answer in answers(rng, samples(SYSTEMS[name]), 150):
        for read in (
            lambda a: dialect.read_listing(a, Options()),
            lambda a: dialect.read_history(a, Options()),
            lambda a: dialect.read_find("0123456789ab", a),
            dialect.read_kill,
            dialect.read_queues,
            dialect.is_mine,
        ):
            try:
                with native.Room():
                    made = read(answer)
            except RotaError:
                continue
            if isinstance(made, Listing):
                assert len(made.seen) <= native.EXPANDED_MOST + 1000

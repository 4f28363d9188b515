"""Coverage-guided hostile bytes, for `make soak`: atheris drives every reader of what comes from outside.

`python tests/soak.py SECONDS`. atheris is no dependency of rota: `make soak` installs it beside the rest, and says so
where it cannot be had. What ends this with a trace is a defect; the bytes that showed it are left as `crash-…`.
"""

import sys

import atheris

with atheris.instrument_imports(include=["rota"]):
    from rota.drivers.dialect import Answer, Options
    from rota.drivers.dialects import BUILT_IN, load_dialect
    from rota.model.errors import ProtocolError, RotaError
    from rota.wire import messages
    from rota.wire.files import BadFileError, decode_left, decode_started
    from rota.wire.frames import MAX_FRAME, Decoder, check_depth

DIALECTS = [load_dialect(name) for name in sorted(BUILT_IN)]
READERS = [messages.decode_greeting, messages.decode_runner, messages.decode_client, decode_left, decode_started]


def one(data: bytes) -> None:
    """Give some bytes to one reader, which the first of them chooses."""
    if not data:
        return
    kind, rest = data[0] % (len(READERS) + 1 + len(DIALECTS)), data[1:]
    try:
        if kind < len(READERS):
            check_depth(rest)
            READERS[kind](rest)
        elif kind == len(READERS):
            for frame in Decoder(MAX_FRAME).feed(rest):
                check_depth(frame)
        else:
            dialect, text = DIALECTS[kind - len(READERS) - 1], rest.decode(errors="replace")
            answer = Answer(0, text, "")
            dialect.read_listing(answer, Options())
            dialect.read_find("0123456789ab", answer)
            dialect.read_queues(answer)
    except (RotaError, ProtocolError, BadFileError):
        pass


if __name__ == "__main__":
    atheris.Setup([sys.argv[0], f"-max_total_time={sys.argv[1]}", "-rss_limit_mb=4096", "-max_len=65536"], one)
    atheris.Fuzz()

"""`rota log`: what a job printed, byte for byte."""

import os
import sys
import time
from binascii import a2b_base64

from rota.cli.link import look
from rota.cli.show import print_json
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from rota.cli.link import Looker
    from rota.cli.parser import Parser

__all__ = ["Output", "write_all"]

LIMIT = 1 << 20


def configure(parser: "Parser", command: str) -> None:
    """The options of `log`."""
    parser.add_argument("job", metavar="JOB", help="a job, as in 7.12")
    parser.add_argument("-a", "--attempt", type=int, metavar="N", help="of this attempt (default: the newest)")
    parser.add_argument("-e", "--stderr", action="store_true", help="standard error instead of standard output")
    parser.add_argument("-b", "--both", action="store_true", help="both, each to where it belongs")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the attempt has ended")
    parser.json('{"job": …, "stdout": {"text": …, "truncated": …, "path": …}}')
    parser.examples("rota log 7.12", "rota log 7.12 --stderr", "rota log 7.12 -f", "rota log 7.12 --attempt 1 --both")


def execute(args: "argparse.Namespace") -> int:
    """Print the output of a job."""
    if args.stderr and args.both:
        raise UsageError("--stderr and --both: give one of them")
    streams = ["stdout", "stderr"] if args.both else ["stderr" if args.stderr else "stdout"]
    with look(args) as connection:
        outputs = [Output(connection, args.job, stream, args.attempt) for stream in streams]
        if args.json:
            print_json({"job": args.job} | {output.stream: output.as_json() for output in outputs})
            return 0
        targets = [2 if args.both and output.stream == "stderr" else 1 for output in outputs]
        copy(outputs, targets, args.follow)
    for output in outputs:
        if output.truncated:
            print(
                f"rota: {output.truncated:,} bytes in the middle of {output.stream} were not kept (--output-cap)",
                file=sys.stderr,
            )
    return 0


def copy(outputs: "list[Output]", targets: "list[int]", follow: bool) -> None:
    """Write all output that there is; with `follow`, go on until the attempt has ended."""
    sys.stdout.flush()
    pause = 0.05
    while True:
        got = False
        for output, target in zip(outputs, targets, strict=True):
            for data in output.pieces():
                got = True
                write_all(target, data)
        if not follow or all(output.end for output in outputs):
            return
        pause = 0.05 if got else min(pause * 1.5, 1.0)
        time.sleep(pause)


def write_all(fd: int, data: bytes) -> None:
    """Write all of these bytes, unbuffered."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Output:
    """One stream of one attempt, read piece by piece."""

    def __init__(self, connection: "Looker", job: str, stream: str, attempt: "int | None" = None) -> None:
        self.stream = stream
        self.end = False
        """Whether the attempt has ended and all was read."""
        self.truncated = 0
        self.path: str | None = None
        self._connection = connection
        self._job = job
        self._attempt = attempt
        self._offset = 0

    def pieces(self) -> "Iterator[bytes]":
        """The pieces of the stream that were not read yet."""
        while not self.end:
            answer = self._connection.ask(
                "log", job=self._job, attempt=self._attempt, stream=self.stream, offset=self._offset, limit=LIMIT
            )
            self.end = bool(answer["end"])
            self.truncated = int(answer.get("truncated") or 0)
            self.path = answer.get("path")
            self._offset = answer["next"]
            data = a2b_base64(answer["data"])
            if not data:
                return
            yield data

    def as_json(self) -> "dict[str, object]":
        """The stream for --json: bytes that are not UTF-8 are shown as U+FFFD."""
        text = b"".join(self.pieces()).decode(errors="replace")
        return {"text": text, "truncated": self.truncated, "path": self.path}

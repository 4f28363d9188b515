"""`rota log`: what jobs printed, byte for byte, or the lines of it that are wanted."""

import os
import re
import sys
import time
from binascii import a2b_base64
from collections import deque

from rota.cli.link import look, pages
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
JOB = re.compile(r"[0-9]+\.[0-9]+")


def configure(parser: "Parser", command: str) -> None:
    """The options of `log`."""
    parser.selectors()
    parser.add_argument("-a", "--attempt", type=int, metavar="N", help="of this attempt (default: the newest)")
    parser.add_argument("-e", "--stderr", action="store_true", help="standard error instead of standard output")
    parser.add_argument("-b", "--both", action="store_true", help="both, each to where it belongs")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the attempt has ended")
    parser.add_argument("-t", "--tail", type=int, metavar="N", help="only the last N lines of each job")
    parser.add_argument("-g", "--grep", metavar="PATTERN", help="only lines that match this regular expression")
    parser.json('{"job": …, "stdout": {"text": …, "truncated": …, "path": …}}, one object per line for each job')
    parser.examples(
        "rota log 7.12", "rota log 7.12 --stderr", "rota log 7.12 -f", "rota log 7.12 --attempt 1 --both",
        "rota log 7 :failed --stderr --tail 5", "rota log @align --grep 'error|warning'",
    )  # fmt: skip


def execute(args: "argparse.Namespace") -> int:
    """Print the output of one job, or of each of several under a title."""
    if args.stderr and args.both:
        raise UsageError("--stderr and --both: give one of them")
    if not args.selector:
        raise UsageError("log of what? Name a job, as in rota log 7.12, or several, as in rota log 7 :failed")
    if args.tail is not None and args.tail < 1:
        raise UsageError(f"--tail {args.tail}: give 1 or more")
    pattern = matcher(args.grep)
    streams = ["stdout", "stderr"] if args.both else ["stderr" if args.stderr else "stdout"]
    with look(args) as connection:
        for job, is_one in chosen(connection, args.selector):
            if args.follow and not is_one:
                raise UsageError("--follow: name one job")
            outputs = [Output(connection, job, stream, args.attempt) for stream in streams]
            if args.json:
                down = {"manager": "down"} if connection.down else {}
                print_json(
                    {"job": job} | down | {output.stream: as_json(output, args.tail, pattern) for output in outputs}
                )
            elif is_one and args.tail is None and pattern is None:
                targets = [2 if args.both and output.stream == "stderr" else 1 for output in outputs]
                copy(outputs, targets, args.follow)
                say_truncated(outputs)
            else:
                print_lines(job, outputs, args.tail, pattern, titled=not is_one)
    return 0


def chosen(connection: "Looker", words: "list[str]") -> "Iterator[tuple[str, bool]]":
    """(job, whether it is the only one) of the selected jobs that have run; a job that was named, in any case."""
    if len(words) == 1 and JOB.fullmatch(words[0]):
        yield words[0], True
        return
    ran = (row["id"] for rows in pages(connection, "jobs", "jobs", sel=words) for row in rows if row.get("attempt"))
    first = next(ran, None)
    second = next(ran, None) if first is not None else None
    if first is not None:
        yield first, second is None
    if second is not None:
        yield second, False
        yield from ((job, False) for job in ran)


def matcher(text: "str | None") -> "re.Pattern[str] | None":
    """The regular expression of --grep."""
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise UsageError(f"--grep {text}: not a regular expression: {error}") from None


def kept(output: "Output", tail: "int | None", pattern: "re.Pattern[str] | None") -> "list[str]":
    """The lines of a stream that are wanted."""
    lines: deque[str] = deque(maxlen=tail)
    rest = b""
    for data in output.pieces():
        *whole, rest = (rest + data).split(b"\n")
        lines.extend(text for line in whole if fits(text := line.decode(errors="replace"), pattern))
    if rest and fits(text := rest.decode(errors="replace"), pattern):
        lines.append(text)
    return list(lines)


def fits(line: str, pattern: "re.Pattern[str] | None") -> bool:
    """Whether a line is wanted."""
    return pattern is None or pattern.search(line) is not None


def print_lines(
    job: str, outputs: "list[Output]", tail: "int | None", pattern: "re.Pattern[str] | None", titled: bool
) -> None:
    """Print the lines of a job that are wanted, under a title if there are several jobs; nothing if there are none."""
    for output in outputs:
        lines = kept(output, tail, pattern)
        if lines and titled:
            print(f"==> {job} {output.stream} <==")
        for line in lines:
            print(line)
    sys.stdout.flush()
    say_truncated(outputs)


def as_json(output: "Output", tail: "int | None", pattern: "re.Pattern[str] | None") -> "dict[str, object]":
    """A stream for --json."""
    if tail is None and pattern is None:
        return output.as_json()
    text = "".join(f"{line}\n" for line in kept(output, tail, pattern))
    return {"text": text, "truncated": output.truncated, "path": output.path}


def say_truncated(outputs: "list[Output]") -> None:
    """Say what of the streams was not kept."""
    for output in outputs:
        if output.truncated:
            print(
                f"rota: {output.truncated:,} bytes in the middle of {output.stream} were not kept (--output-cap)",
                file=sys.stderr,
            )


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

"""`rota run`: run commands to the end, in the foreground."""

import argparse
import os
import signal
import sys
import time

from rota.cli.link import connect_or_start, take_down
from rota.cli.parser import Parser
from rota.cli.show import jobs_word
from rota.cli.submitting import configure_submission, print_dry_run, say_about, submission_of
from rota.cli.summary import print_summary
from rota.cli.wait import all_well
from rota.manager.paths import Paths
from rota.model.amounts import parse_cores
from rota.model.errors import NotFoundError, RotaError, UsageError
from rota.wire.client import Connection, LostError, job_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from rota.submission import Submission

LAST_RUN = "last-run"
SETTLE_S = 15.0
"""How long an interrupted run waits for its jobs to end."""


def configure(parser: Parser, command: str) -> None:
    """The options of `run`."""
    add = parser.add_argument
    add("-j", "--jobs", type=int, metavar="N", help="use at most N cores at once")
    add("--show", dest="show", action="store_const", const="ended", help="print each job's output as it ends")
    add("--show=ordered", dest="show", action="store_const", const="ordered", help="print the jobs' output in order")
    add("--resume", nargs="?", const="", metavar="BATCH", help="go on with an interrupted run (default: the last)")
    add("--exit-code", action="store_true", help="of a single job: end with its exit code (128 + N: by signal N)")
    add("--keep-going", action="store_true", help="go on after a failure (that is the default)")
    add("--dry-run", action="store_true", help="show what would be run")
    add("-q", "--quiet", action="store_true", help="no progress, and a summary only of what failed")
    parser.json("the summary")
    configure_submission(parser)
    parser.examples(
        "rota run -- make",
        "rota run -j 4 -f commands.txt",
        "rota run --values-from files.txt -- gzip {}",
        "rota run --show=ordered --array 1-10 -- 'echo {index}'",
        "rota run gzip ::: a.txt b.txt    # as with GNU parallel",
        "rota run --resume                # after Ctrl-C",
    )


def execute(args: argparse.Namespace) -> int:
    """Submit to the manager that is up, or to one of our own; follow to the end; sum up."""
    submission = None
    if args.remove_on:
        raise UsageError("--remove-on: a run follows its jobs to their end and needs them on the books; use rota add")
    if args.resume is None:
        submission = submission_of(args, most_at_once(args))
        if args.exit_code and submission.spec.count > 1:
            raise UsageError(f"--exit-code: that of which of {submission.spec.count:,} jobs? It is for a single one")
        if args.dry_run:
            print_dry_run(args, submission)
            return 0
    elif args.words or args.file:
        raise UsageError("--resume goes on with a batch that exists: it takes no command")
    return Run(args).execute(submission)


def most_at_once(args: argparse.Namespace) -> int | None:
    """How many jobs may run at once for -j N cores."""
    most: int | None = args.jobs
    if most is None:
        return None
    if most < 1:
        raise UsageError(f"-j {most}: give 1 or more")
    cores = parse_cores(args.cores)[0] if args.cores else 1000
    return max(1, most * 1000 // max(cores, 1))


class Interrupts:
    """Turns INT, TERM, HUP and what else is named into KeyboardInterrupt, but not while `armed` is false.

    A second one always counts.
    """

    def __init__(self, *more: signal.Signals) -> None:
        self._numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *more)
        self.armed = True
        self.seen = 0
        self._before: list[tuple[signal.Signals, Any]] = []

    def __enter__(self) -> "Interrupts":
        for number in self._numbers:
            handler = signal.getsignal(number)
            if handler is not signal.SIG_IGN:  # as under nohup
                self._before.append((number, handler))
                signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)

    def _take(self, number: int, frame: "FrameType | None") -> None:
        again, self.seen = self.seen, number
        if self.armed or again:
            raise KeyboardInterrupt

    def disarm(self) -> None:
        """Put off interrupts: what follows should not be cut in two."""
        self.armed = False

    def arm(self) -> None:
        """Take interrupts again; one that came meanwhile counts now."""
        self.armed = True
        if self.seen:
            raise KeyboardInterrupt


class Run:
    """One `rota run`."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.home = Paths(args.home).home
        self.batch: int | None = None
        self.end: int | None = None
        """The batch that runs at the end of `batch`, if there is one."""
        self.embedded = False
        self.began = time.monotonic()

    def execute(self, submission: "Submission | None") -> int:
        """Run to the end; the exit status."""
        with Interrupts() as interrupts:
            try:
                return self._to_the_end(submission, interrupts)
            except KeyboardInterrupt:
                self._interrupted()
                return 128 + interrupts.seen if interrupts.seen else 130
            finally:
                if self.embedded:
                    self._take_down()

    def _to_the_end(self, submission: "Submission | None", interrupts: Interrupts) -> int:
        from rota.cli.following import Follower

        if submission is None:
            self._to_resume()
        try:
            connection = self._begin(submission, interrupts)
        except LostError:  # the manager was another run's, which has just ended
            connection = self._begin(submission, interrupts)
        assert self.batch is not None
        with connection:
            follower = Follower(self.args, self.args.home, self.batch, submission.spec if submission else None)
            counts = follower.follow(connection)
        ended_well = self._await_end(counts)
        with Connection.connect(self.args.home) as connection:
            elapsed_s = time.monotonic() - self.began
            print_summary(self.args, connection, self.batch, counts, elapsed_s, self.embedded)
        if counts.get("HOLDING"):
            print(f"rota: {counts['HOLDING']:,} jobs are held; rota run --resume {self.batch} goes on", file=sys.stderr)
        else:
            self._forget(self.batch)
        if self.args.exit_code:
            return self._exit_code()
        return 0 if all_well(counts) and ended_well else 1

    def _exit_code(self) -> int:
        """The exit code of the one job, as a shell would give it; 1 if it has none."""
        with Connection.connect(self.args.home) as connection:
            (row,) = connection.ask("jobs", sel=[str(self.batch)], limit=1)["jobs"]
        if row["signal"] is not None:
            return 128 + int(row["signal"])
        return 1 if row["exit_code"] is None else int(row["exit_code"])

    def _await_end(self, counts: "dict[str, int]") -> bool:
        """Wait for what runs at the end; False if it did not succeed."""
        if self.end is None or counts.get("HOLDING"):
            return True
        with Connection.connect(self.args.home) as connection:
            answer = connection.ask("wait", sel=[str(self.end)], held=True, timeout_s=None)
        if all_well(answer["counts"]):
            return True
        print(f"rota: the command for the end of the batch did not succeed: rota log {self.end}.1", file=sys.stderr)
        return False

    def _begin(self, submission: "Submission | None", interrupts: Interrupts) -> Connection:
        """Find or start a manager, and submit or release; the connection."""
        from rota.submission import send

        interrupts.disarm()
        connection, self.embedded = connect_or_start(self.args.home, ["--embedded"], say=False)
        interrupts.arm()
        if submission is None:
            self.batch = self._release(connection)
            return connection
        answer = send(connection, submission, interrupts.disarm)
        self.batch = int(answer["batch"])
        self.end = answer.get("end")
        self._remember(self.batch)
        interrupts.arm()
        say_about(self.args, submission, answer)
        self._say_cores(connection)
        return connection

    def _say_cores(self, connection: Connection) -> None:
        """Say so if -j asks for more cores than there are."""
        if self.args.jobs is None or self.args.quiet:
            return
        sites = connection.ask("sites")["sites"]
        if any(row["driver"] != "local" for row in sites):
            return
        there = sum(row["cores"] or 0 for row in sites)
        if there and self.args.jobs > there:
            most = f"{there:g} core{'' if there == 1 else 's'}"
            print(
                f"rota: -j {self.args.jobs} allows more than this machine has: at most {most} are used at once; "
                f"for more jobs side by side let each need less: -c {there / self.args.jobs:.2g}",
                file=sys.stderr,
            )

    # An interrupted run

    def _release(self, connection: Connection) -> int:
        batch = self._to_resume()
        try:
            rows = connection.ask("status", sel=[], after=batch)["batches"]
            self.end = next((row["id"] for row in rows if row.get("ends") == batch), None)
            connection.ask("release", sel=self._words(batch), all=False, dry_run=False)
        except NotFoundError:
            raise UsageError(f"--resume {batch}: there is no such batch in {self.home}") from None
        self._remember(batch)
        return batch

    def _words(self, batch: "int | None") -> "list[str]":
        """The batch, and what runs at its end."""
        return [str(number) for number in (batch, self.end) if number is not None]

    def _to_resume(self) -> int:
        text = self.args.resume or self._last()
        if not (text.isascii() and text.isdigit()):
            raise UsageError(f"--resume {text}: give the number of a batch")
        return int(text)

    def _interrupted(self) -> None:
        """Hold what is left, and say how to go on."""
        if self.batch is None:
            print("\nrota: interrupted; nothing was added", file=sys.stderr)
            return
        where = f" --home {self.home}" if self.args.home else ""
        try:
            with Connection.connect(self.args.home) as connection:
                connection.ask("hold", sel=self._words(self.batch), all=False, dry_run=False, stop=True)
                self._settle(connection)
                counts = connection.ask("count", sel=[str(self.batch)])["counts"]
        except (RotaError, KeyboardInterrupt) as error:
            why = str(error) or "interrupted again"
            print(f"\nrota: interrupted, and the rest could not be held: {why}", file=sys.stderr)
            print(f"rota: look with: rota status{where} {self.batch}", file=sys.stderr)
            return
        held = jobs_word(counts.get("HOLDING", 0))
        print(f"\nrota: interrupted; {held} of batch {self.batch} held", file=sys.stderr)
        print(f"rota: go on with: rota run{where} --resume {self.batch}", file=sys.stderr)

    def _settle(self, connection: Connection) -> None:
        """With a manager of our own: let the jobs end before it does."""
        deadline = time.monotonic() + (SETTLE_S if self.embedded else 0.0)
        while time.monotonic() < deadline:
            if not connection.ask("count", sel=[str(self.batch), ":active"])["jobs"]:
                return
            time.sleep(0.05)

    # The manager of our own

    def _take_down(self) -> None:
        """End the manager of our own, unless it has other work: then it ends by itself, when that is done."""
        try:
            with Connection.connect(self.args.home) as connection:
                others = connection.ask("count", sel=[":waiting", ":pending", ":active"])["jobs"]
                if not others:
                    take_down(connection, kill=True)
                elif not self.args.quiet:
                    print(f"rota: the manager stays up for {jobs_word(others)} of other batches", file=sys.stderr)
        except KeyboardInterrupt:
            print("rota: the manager was told to end; this did not wait for it", file=sys.stderr)
        except RotaError as error:
            print(f"rota: the manager of this run: {error}", file=sys.stderr)

    # The last run, for --resume

    def _last(self) -> str:
        try:
            with open(os.path.join(self.home, LAST_RUN), encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            raise UsageError("there is no interrupted run here: give its batch, as in --resume 7") from None

    def _remember(self, batch: int) -> None:
        if self.args.home is None and job_address() is not None:
            return  # the manager's home is not ours to write to
        path = os.path.join(self.home, LAST_RUN)
        with open(f"{path}.new", "w", encoding="ascii") as file:
            file.write(f"{batch}\n")
        os.replace(f"{path}.new", path)

    def _forget(self, batch: int) -> None:
        try:
            if self._last() == str(batch):
                os.unlink(os.path.join(self.home, LAST_RUN))
        except (UsageError, OSError):
            pass

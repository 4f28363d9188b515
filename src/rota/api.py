"""The Python client: submit commands, wait for them, read what they printed.

    import rota

    with rota.local() as client:
        batch = client.submit("sort {} | uniq -c", values=["a.txt", "b.txt"], cores=1)
        for job in batch.as_completed():
            print(job.id, job.state, job.log())

`Client` talks to the manager of a home, as the command line does; `local()` starts one for the length of the program.
"""

import os
import threading
import time
import weakref
from binascii import a2b_base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from rota.model.amounts import parse_duration
from rota.model.errors import BusyError, RotaError
from rota.model.limits import limit_settings
from rota.submission import Changes, JobOptions, Submission, build, make_patch, send
from rota.wire.client import Connection, LostError, NoManagerError

__all__ = ["Batch", "Client", "Job", "JobFields", "local"]

SETTLED = frozenset(("COMPLETED", "FAILED", "ABORTED", "OMITTED"))
AWAY_S = 30.0
"""How long a manager that went away may take to come back."""
NOT_REPEATED = frozenset(("modify", "retry", "stage", "submit", "down", "backup"))
"""Ops that are not simply asked again when the connection was lost before the answer."""
PAGE = 1_000
PIECE = 1 << 20

Selection = str | int | Sequence[str | int]
"""`7`, `"7.12"`, `"@align"`, or several: `["7", ":failed"]`."""


class Search(TypedDict, total=False):
    """What jobs and attempts can be searched by; times are seconds since 1970."""

    command: str
    """A part of it."""
    host: str
    exit_code: int
    reason: str
    since: float
    until: float


def words_of(selection: Selection) -> list[str]:
    """Selector words from whatever was given."""
    if isinstance(selection, str):
        return selection.split()
    return [str(selection)] if isinstance(selection, int) else [str(word) for word in selection]


def absolute(path: str | None) -> str | None:
    """A path that means the same to the manager, which has another working directory."""
    return None if path is None else os.path.abspath(os.path.expanduser(path))


class JobFields:
    """One job as the manager last said it. Times are seconds since 1970; None: not known, or not yet."""

    id: str
    state: str
    attempt: int
    exit_code: int | None
    signal: int | None
    reason: str | None
    site: str | None
    host: str | None
    native_id: str | None
    command: str | list[str]
    values: Any
    cwd: str | None
    stdout: str | None
    """The file that it writes to; None: rota keeps it, see `log()`."""
    stderr: str | None
    wall_s: float | None
    cpu_s: float | None
    peak_memory_bytes: int | None
    started: float | None
    ended: float | None
    batch: int
    name: str | None
    priority: int
    peak_disk_bytes: int | None

    def __init__(self, row: Mapping[str, Any]) -> None:
        for name in JobFields.__annotations__:
            setattr(self, name, row.get(name))

    @property
    def ok(self) -> bool:
        """True if it has COMPLETED."""
        return self.state == "COMPLETED"

    @property
    def settled(self) -> bool:
        """True if nothing more will happen to it by itself."""
        return self.state in SETTLED

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.state}>"


class Job(JobFields):
    """One job, with a way to its output."""

    def __init__(self, client: "Client", row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self._client = client

    def log(self, stderr: bool = False, attempt: int | None = None) -> str:
        """What it printed."""
        return self._client.log(self.id, stderr=stderr, attempt=attempt)

    def explain(self) -> dict[str, Any]:
        """Why it does not run, or how it ended."""
        return self._client.explain(self.id)


class Batch:
    """What one submission made."""

    def __init__(self, client: "Client", id: int, name: str = "", size: int = 0, warnings: Sequence[str] = ()) -> None:
        self._client = client
        self.id = id
        """Its number; 0 if nothing was added, since all was there already (`once`)."""
        self.name = name
        self.size = size
        """How many jobs it has."""
        self.warnings = list(warnings)
        self.duplicates = 0
        """How many jobs were there already (`once`)."""

    def __repr__(self) -> str:
        return f"<Batch {self.id}{f' {self.name}' if self.name else ''}, {self.size:,} jobs>"

    def __len__(self) -> int:
        return self.size

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all is settled: True if all have COMPLETED. TimeoutError when the time (seconds) is up."""
        return self._client.wait(self.id, timeout)

    def counts(self) -> dict[str, int]:
        """How many jobs are in which state."""
        return dict(self._client.ask("count", sel=[str(self.id)])["counts"])

    def status(self) -> dict[str, Any]:
        """Its line of `rota status --json`."""
        answer = self._client.ask("status", sel=[str(self.id)])
        return dict(answer["batches"][0])

    def jobs(self, *states: str) -> Iterator[Job]:
        """Its jobs, in order; those in certain states: `batch.jobs("failed")`."""
        return self._client.jobs([str(self.id), *(f":{state.lower()}" for state in states)])

    def job(self, index: int) -> Job:
        """The job with this number."""
        return next(self._client.jobs(f"{self.id}.{index}"))

    def as_completed(self) -> Iterator[Job]:
        """Every job once, as it becomes settled."""
        return self._client.as_completed(self.id)

    def summary(self, failures: int = 10, slowest: int = 3) -> dict[str, Any]:
        """Counts, the first failures with the end of their standard error, the slowest jobs."""
        return self._client.ask("summary", batch=self.id, failures=failures, slowest=slowest)

    def kill(self) -> int:
        """End what is not settled; how many jobs that was."""
        return self._client.kill(self.id)

    def retry(self, **changes: Unpack[Changes]) -> int:
        """Run again what is settled and did not complete, with these changes (`memory="x2"`)."""
        return self._client.retry([self.id, ":unsuccessful"], **changes)

    def modify(self, **changes: Unpack[Changes]) -> int:
        """Change those of its jobs that do not run, and what belongs to all of it (`name`, `after`, `at_once` …)."""
        count = self._client.modify(self.id, **changes)
        if "name" in changes:
            self.name = changes["name"] or ""
        return count

    def hold(self, stop: bool = False) -> int:
        """Keep what waits from starting; with `stop`, end and hold what runs too."""
        return self._client.hold(self.id, stop=stop)

    def release(self) -> int:
        """Let go what is held."""
        return self._client.release(self.id)

    def remove(self) -> int:
        """Forget what is settled."""
        return self._client.remove(self.id)


class Client:
    """A connection to the manager of a home (default: `$ROTA_HOME` or `~/.rota`). It may be used by several threads.

    If no manager is up, one is started, as `rota add` does; with `start=False` NoManagerError is raised instead.
    """

    def __init__(self, home: str | None = None, *, start: bool = True) -> None:
        self.home = home
        self._own = threading.local()
        self._open: list[Connection] = []
        self._closed = False
        try:
            self._connection()
        except NoManagerError:
            if not start:
                raise
            from rota.manager.daemon import start as start_manager

            start_manager(home)
            self._connection()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The manager, and what it runs, goes on."""
        self._closed = True
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._own = threading.local()

    @property
    def manager(self) -> dict[str, Any]:
        """What the manager says of itself: host, pid, version, home, started."""
        return self._connection().manager

    # Submitting

    def submit(
        self,
        command: str | Sequence[str] | None = None,
        *,
        lines: Iterable[str | Mapping[str, Any]] | None = None,
        values: Iterable[str] | None = None,
        params: Mapping[str, Iterable[str]] | None = None,
        zipped: bool = False,
        array: str | range | Iterable[int] | None = None,
        once: bool | Literal["cwd", "command"] = False,
        rerun: bool = False,
        **options: Unpack[JobOptions],
    ) -> Batch:
        """Queue a batch; when this returns it is on disk.

        A command that is a string is a command line (run by a shell if it needs one); a list is executed as it is. One
        job, or one per number of `array`, per value (`{}`), per combination of `params` (`{name}`; `zipped` pairs
        them), or per line of `lines` (commands, or mappings as in a JSON line).

        `once` leaves out jobs whose command and working directory (`once="command"`: whose command) are queued or done
        already, and `rerun` adds them nevertheless; the batch's `duplicates` says how many. If nothing is left, no
        batch is made: its `id` is 0.
        """
        submission = build(command, options, lines=lines, values=values, params=params, zipped=zipped, array=array)
        if once:
            submission.once = "cwd" if once is True else once
            submission.rerun = rerun
        return self.send(submission)

    def send(self, submission: Submission) -> Batch:
        """Send what was built; asked again, under the same key, if the connection is lost."""
        try:
            answer = send(self._connection(), submission)
        except LostError:
            self._drop()
            answer = send(self._reconnect(), submission)
        warnings = answer.get("warnings") or ()
        batch = Batch(self, answer["batch"] or 0, submission.spec.name, answer["jobs"], warnings)
        batch.duplicates = answer.get("duplicates", 0)
        return batch

    def batch(self, id: int) -> Batch:
        """A batch that exists."""
        row = self.ask("status", sel=[str(id)])["batches"][0]
        return Batch(self, row["id"], row.get("name") or "", row["jobs"])

    # Looking

    def status(self, selection: Selection = ()) -> dict[str, Any]:
        """`rota status --json`."""
        return self.ask("status", sel=words_of(selection))

    def wait(self, selection: Selection = (), timeout: float | None = None) -> bool:
        """Wait until all is settled: True if all have COMPLETED. TimeoutError when the time (seconds) is up."""
        answer = self.ask("wait", sel=words_of(selection), timeout_s=timeout)
        if not answer["settled"]:
            raise TimeoutError(f"not all are settled after {timeout:g} s: {answer['counts']}")
        return not any(count for state, count in answer["counts"].items() if state != "COMPLETED")

    def jobs(self, selection: Selection = (), *, newest: bool = False, **search: Unpack[Search]) -> Iterator[Job]:
        """The jobs that are selected and fit the search, asked for page by page."""
        after = None
        while True:
            answer = self.ask("jobs", sel=words_of(selection), after=after, limit=PAGE, newest=newest, **search)
            for row in answer["jobs"]:
                yield Job(self, row)
            after = answer.get("next")
            if after is None:
                return

    def as_completed(self, selection: Selection = ()) -> Iterator[Job]:
        """Every selected job once, as it becomes settled."""
        seen: set[str] = set()
        while True:
            try:
                with Connection.connect(self.home) as connection:
                    for note in connection.notes("follow", sel=words_of(selection)):
                        for row in note.get("ended", ()):
                            if row["state"] in SETTLED and row["id"] not in seen:
                                seen.add(row["id"])
                                yield Job(self, row)
                    return
            except LostError:
                self._reconnect()

    def log(self, job: str, *, stderr: bool = False, attempt: int | None = None) -> str:
        """What a job printed; bytes that are not UTF-8 become U+FFFD."""
        return self.log_bytes(job, stderr=stderr, attempt=attempt).decode(errors="replace")

    def log_bytes(self, job: str, *, stderr: bool = False, attempt: int | None = None) -> bytes:
        """What a job printed, byte for byte."""
        stream = "stderr" if stderr else "stdout"
        out, offset = [], 0
        while True:
            answer = self.ask("log", job=str(job), attempt=attempt, stream=stream, offset=offset, limit=PIECE)
            data = a2b_base64(answer["data"])
            out.append(data)
            offset = answer["next"]
            if answer["end"] or not data:
                return b"".join(out)

    def explain(self, job: str) -> dict[str, Any]:
        """Why a job does not run, or how it ended: state, reason, verdicts, attempts."""
        return self.ask("explain", job=str(job))

    def history(self, selection: Selection = (), **search: Unpack[Search]) -> Iterator[dict[str, Any]]:
        """Every attempt, the newest first, as `rota history --json` prints them."""
        after = None
        while True:
            answer = self.ask("history", sel=words_of(selection), after=after, limit=PAGE, **search)
            yield from answer["attempts"]
            after = answer.get("next")
            if after is None:
                return

    def learned(self) -> list[dict[str, Any]]:
        """What was learned of each group, as `rota report learning --json` prints it."""
        return list(self.ask("learning")["groups"])

    # Changing

    def kill(self, selection: Selection, *, confirm_dead: bool = False) -> int:
        """End jobs; how many."""
        return self._change("kill", selection, confirm_dead=confirm_dead)

    def retry(self, selection: Selection, **changes: Unpack[Changes]) -> int:
        """Run settled jobs again, with these changes (`memory="x2"`, `time="+1h"`); how many."""
        return self._change("retry", selection, changes=make_patch(changes))

    def modify(self, selection: Selection, **changes: Unpack[Changes]) -> int:
        """Change jobs that do not run, or whole batches; what is not named stays as it is. How many were changed."""
        return self._change("modify", selection, changes=make_patch(changes))

    def hold(self, selection: Selection, *, stop: bool = False) -> int:
        """Keep jobs from starting; with `stop`, end and hold what runs too."""
        return self._change("hold", selection, stop=stop)

    def release(self, selection: Selection) -> int:
        """Let go what is held."""
        return self._change("release", selection)

    def remove(self, selection: Selection) -> int:
        """Forget settled jobs."""
        return self._change("remove", selection)

    def limits(self) -> list[dict[str, Any]]:
        """The limits that are set or in use, as `rota limit --json` lists them."""
        return list(self.ask("limit")["limits"])

    def set_limits(self, *limits: str) -> list[dict[str, Any]]:
        """Set limits, all or none: `"irods:10"`, `"api:100/min"`, `"night:22:00-06:00"`; returns all that are set."""
        return list(self.ask("limit", set=limit_settings(limits, all_set=True))["limits"])

    def remove_limits(self, *names: str) -> list[dict[str, Any]]:
        """Take limits away; returns those that are left."""
        return list(self.ask("limit", set=dict.fromkeys(names))["limits"])

    # The manager

    def pause(self, holder: str = "user", reason: str = "") -> dict[str, Any]:
        """Start no more jobs until this holder resumes; `rota pause --json`."""
        return self.ask("pause", **{"as": holder, "reason": reason})

    def resume(self, holder: str = "user", *, everybody: bool = False) -> dict[str, Any]:
        """End this holder's pause (or everybody's); `rota resume --json`."""
        return self.ask("resume", **{"as": holder, "all": everybody})

    def backup(self, path: str | None = None) -> str:
        """Copy the queue to a file on the manager's host; its path."""
        return str(self.ask("backup", path=absolute(path))["path"])

    def prune(self, selection: Selection = (), *, older_than: str | int = 0, keep: int = 0) -> int:
        """Forget settled batches, whole ones; without a selection all that fit. How many were forgotten."""
        words = words_of(selection)
        age_s = parse_duration(older_than) if isinstance(older_than, str) else older_than
        total = 0
        while True:
            answer = self.ask("prune", sel=words, all=not words, older_than_s=age_s, keep=keep, dry_run=False)
            total += int(answer["batches"])
            if not answer.get("more"):
                return total

    def _change(self, op: str, selection: Selection, **extra: Any) -> int:
        return int(self.ask(op, sel=words_of(selection), all=False, dry_run=False, **extra)["jobs"])

    # Asking

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Anything of docs/protocol.md. If the connection is lost it is asked again, where that is safe."""
        try:
            return self._connection().ask(op, **arguments)
        except LostError:
            self._drop()
            if op in NOT_REPEATED or self._closed:
                raise
        return self._reconnect().ask(op, **arguments)

    def _connection(self) -> Connection:
        """This thread's connection (and this process's: one is not shared with a fork)."""
        if self._closed:
            raise RotaError("this client is closed")
        mine: tuple[int, Connection] | None = getattr(self._own, "connection", None)
        if mine is None or mine[0] != os.getpid():
            connection = Connection.connect(self.home)
            mine = self._own.connection = (os.getpid(), connection)
            self._open.append(connection)
        return mine[1]

    def _drop(self) -> None:
        mine: tuple[int, Connection] | None = getattr(self._own, "connection", None)
        if mine is not None:
            del self._own.connection
            mine[1].close()
            if mine[1] in self._open:
                self._open.remove(mine[1])

    def _reconnect(self) -> Connection:
        deadline = time.monotonic() + AWAY_S
        self._drop()
        while True:
            try:
                return self._connection()
            except (NoManagerError, BusyError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


class LocalClient(Client):
    """A Client with a manager of its own, which ends with it."""

    def __init__(self, home: str | None = None) -> None:
        temporary = None
        if home is None:
            import tempfile

            home = temporary = tempfile.mkdtemp(prefix="rota-")
        from rota.manager.daemon import start

        try:
            Connection.connect(home).close()
            started = False
        except NoManagerError:
            start(home, ["--embedded"])
            started = True
        self._end = weakref.finalize(self, end_local, home if started else None, temporary, os.getpid())
        super().__init__(home, start=False)

    def __enter__(self) -> "LocalClient":
        return self

    def close(self) -> None:
        """End the manager and what it runs; a temporary home is removed."""
        super().close()
        self._end()


def end_local(home: str | None, temporary: str | None, owner: int) -> None:
    """Take the manager of a LocalClient down, in the process that started it."""
    if os.getpid() != owner:
        return
    if home is not None:
        pid = 0
        try:
            with Connection.connect(home) as connection:
                pid = int(connection.manager["pid"])
                connection.ask("down", kill=True)
                while True:
                    connection.ask("ping")
                    time.sleep(0.01)
        except RotaError:
            pass
        deadline = time.monotonic() + AWAY_S
        while pid and os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
            time.sleep(0.005)
    if temporary is not None:
        import shutil

        shutil.rmtree(temporary, ignore_errors=True)


def local(home: str | None = None) -> LocalClient:
    """A Client with a manager of its own, for a notebook or a script.

    Without `home` everything is kept in a temporary directory, which is removed when the client is closed or the
    program ends.
    """
    return LocalClient(home)

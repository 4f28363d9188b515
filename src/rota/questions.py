"""The questions of the Python clients, and what is made of the answers; written once, as coroutines.

`rota.aio` is this with connections of asyncio. `rota.api` runs the same coroutines without a loop: there every request
blocks until it is answered, so that none of them ever waits.
"""

import os
from binascii import a2b_base64
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from rota.model.amounts import parse_duration
from rota.model.limits import limit_settings
from rota.submission import Changes, JobOptions, Submission, build, make_patch

__all__ = ["Batch", "BatchFields", "Client", "Job", "JobFields"]

SETTLED = frozenset(("COMPLETED", "FAILED", "ABORTED", "OMITTED"))
AWAY_S = 30.0
"""How long a manager that went away may take to come back."""
NOT_REPEATED = frozenset(("modify", "retry", "stage", "submit", "down", "backup"))
"""Ops that are not simply asked again when the connection was lost before the answer."""
PAGE = 1_000
PIECE = 1 << 20


class Search(TypedDict, total=False):
    """What jobs and attempts can be searched by; times are seconds since 1970."""

    command: str
    """A part of the command."""
    host: str
    exit_code: int
    reason: str
    since: float
    until: float


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
    """The file that standard output goes to; None: rota keeps the output, see `log()`."""
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
    asked_cores: float
    asked_memory_bytes: int | None
    """What it asks for, with what was learned; None: nothing is known."""
    asked_time_s: int | None
    cores: list[float]
    """What it has, or had, on each of its hosts."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        for name in JobFields.__annotations__:
            setattr(self, name, row.get(name))

    @property
    def ok(self) -> bool:
        """True if the job has COMPLETED."""
        return self.state == "COMPLETED"

    @property
    def settled(self) -> bool:
        """True if nothing more will happen to the job by itself."""
        return self.state in SETTLED

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.state}>"


class Job(JobFields):
    """One job, with a way to its output."""

    def __init__(self, client: "Client", row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self._client = client

    async def log(self, stderr: bool = False, attempt: int | None = None) -> str:
        """What the job printed."""
        return await self._client.log(self.id, stderr=stderr, attempt=attempt)

    async def explain(self) -> dict[str, Any]:
        """Why the job does not run, or how it ended."""
        return await self._client.explain(self.id)


class BatchFields:
    """The fields of a batch, as they were when it was asked for."""

    def __init__(self, id: int, name: str, size: int, warnings: Sequence[str]) -> None:
        self.id = id
        """The batch's number; 0 if nothing was added, since all was there already (`once`)."""
        self.name = name
        self.size = size
        """How many jobs the batch has."""
        self.warnings = list(warnings)
        self.duplicates = 0
        """How many jobs were there already (`once`)."""

    def __repr__(self) -> str:
        return f"<Batch {self.id}{f' {self.name}' if self.name else ''}, {self.size:,} jobs>"

    def __len__(self) -> int:
        return self.size


Item = str | int | BatchFields | JobFields
Selection = Item | Sequence[Item]
"""`7`, `"7.12"`, `"@align"`, a batch or a job, or several: `["7", ":failed"]`, `[first, second]`."""


def words_of(selection: Selection) -> list[str]:
    """Selector words from whatever was given."""
    if isinstance(selection, str):
        return selection.split()
    items = [selection] if isinstance(selection, int | BatchFields | JobFields) else selection
    return [str(item.id if isinstance(item, BatchFields | JobFields) else item) for item in items]


class Batch(BatchFields):
    """A batch: the jobs that one submission made."""

    def __init__(self, client: "Client", id: int, name: str = "", size: int = 0, warnings: Sequence[str] = ()) -> None:
        super().__init__(id, name, size, warnings)
        self._client = client

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until all is settled: True if all have COMPLETED. TimeoutError when the time (seconds) is up."""
        return await self._client.wait(self.id, timeout)

    async def counts(self) -> dict[str, int]:
        """How many jobs are in which state."""
        return dict((await self._client.ask("count", sel=[str(self.id)]))["counts"])

    async def status(self) -> dict[str, Any]:
        """The batch's line of `rota status --json`."""
        return dict((await self._client.ask("status", sel=[str(self.id)]))["batches"][0])

    def jobs(self, *states: str) -> AsyncIterator[Job]:
        """The jobs of the batch, in order; only those in certain states: `batch.jobs("failed")`."""
        return self._client.jobs([str(self.id), *(f":{state.lower()}" for state in states)])

    async def job(self, index: int) -> Job:
        """The job with this index."""
        return await anext(self._client.jobs(f"{self.id}.{index}"))

    def as_completed(self) -> AsyncIterator[Job]:
        """Every job once, as it becomes settled."""
        return self._client.as_completed(self.id)

    async def summary(self, failures: int = 10, slowest: int = 3) -> dict[str, Any]:
        """Counts, the first failures with the end of their standard error, the slowest jobs."""
        return await self._client.ask("summary", batch=self.id, failures=failures, slowest=slowest)

    async def kill(self) -> int:
        """End the jobs that are not settled; how many there were."""
        return await self._client.kill(self.id)

    async def retry(self, **changes: Unpack[Changes]) -> int:
        """Run jobs again that are settled and did not complete, with these changes (`memory="x2"`); how many."""
        return await self._client.retry([self.id, ":unsuccessful"], **changes)

    async def modify(self, **changes: Unpack[Changes]) -> int:
        """Change the jobs that do not run, and what belongs to the whole batch (`name`, `after`, `at_once` …)."""
        count = await self._client.modify(self.id, **changes)
        if "name" in changes:
            self.name = changes["name"] or ""
        return count

    async def hold(self, stop: bool = False) -> int:
        """Keep jobs from starting; with `stop`, end and hold those that run too. How many."""
        return await self._client.hold(self.id, stop=stop)

    async def release(self) -> int:
        """Let jobs go that are held; how many."""
        return await self._client.release(self.id)

    async def remove(self) -> int:
        """Forget the settled jobs; how many."""
        return await self._client.remove(self.id)


class Client:
    """All that can be asked of a manager."""

    async def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Send a request of docs/protocol.md; its answer. After a lost connection it is sent again if that is safe."""
        raise NotImplementedError

    async def _deliver(self, submission: Submission) -> dict[str, Any]:
        """Send a submission, again if the connection is lost; the answer to its last request."""
        raise NotImplementedError

    def _make_job(self, row: Mapping[str, Any]) -> Any:
        return Job(self, row)

    def _make_batch(self, id: int, name: str, size: int, warnings: Sequence[str] = ()) -> Any:
        return Batch(self, id, name, size, warnings)

    # Submitting

    async def submit(
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
        return await self.send(submission)

    async def send(self, submission: Submission) -> Batch:
        """Queue a Submission; it is sent again, under the same key, if the connection is lost."""
        answer = await self._deliver(submission)
        warnings = answer.get("warnings") or ()
        batch: Batch = self._make_batch(answer["batch"] or 0, submission.spec.name, answer["jobs"], warnings)
        batch.duplicates = answer.get("duplicates", 0)
        return batch

    async def batch(self, id: int) -> Batch:
        """A batch that exists."""
        row = (await self.ask("status", sel=[str(id)]))["batches"][0]
        batch: Batch = self._make_batch(row["id"], row.get("name") or "", row["jobs"])
        return batch

    # Looking

    async def status(self, selection: Selection = ()) -> dict[str, Any]:
        """Counts per batch, and why jobs wait: `rota status --json`."""
        answer = page = await self.ask("status", sel=words_of(selection))
        while page.get("next") is not None:
            page = await self.ask("status", sel=words_of(selection), after=page["next"])
            answer["batches"] += page["batches"]
            answer["why"] += page["why"]
        answer.pop("next", None)
        return answer

    async def wait(self, selection: Selection = (), timeout: float | None = None) -> bool:
        """Wait until all is settled: True if all have COMPLETED. TimeoutError when the time (seconds) is up."""
        answer = await self.ask("wait", sel=words_of(selection), timeout_s=timeout)
        if not answer["settled"]:
            raise TimeoutError(f"not all are settled after {timeout:g} s: {answer['counts']}")
        return not any(count for state, count in answer["counts"].items() if state != "COMPLETED")

    async def jobs(
        self, selection: Selection = (), *, newest: bool = False, **search: Unpack[Search]
    ) -> AsyncIterator[Job]:
        """The jobs that are selected and fit the search, asked for page by page."""
        after = None
        while True:
            answer = await self.ask("jobs", sel=words_of(selection), after=after, limit=PAGE, newest=newest, **search)
            for row in answer["jobs"]:
                yield self._make_job(row)
            after = answer.get("next")
            if after is None:
                return

    def as_completed(self, selection: Selection = ()) -> AsyncIterator[Job]:
        """Every selected job once, as it becomes settled."""
        raise NotImplementedError

    def _newly_settled(self, note: Mapping[str, Any], seen: set[str]) -> Iterator[Any]:
        """The jobs of a note of `follow` that are settled and were not seen."""
        for row in note.get("ended", ()):
            if row["state"] in SETTLED and row["id"] not in seen:
                seen.add(row["id"])
                yield self._make_job(row)

    async def log(self, job: str, *, stderr: bool = False, attempt: int | None = None) -> str:
        """What a job printed; bytes that are not UTF-8 become U+FFFD."""
        return (await self.log_bytes(job, stderr=stderr, attempt=attempt)).decode(errors="replace")

    async def log_bytes(self, job: str, *, stderr: bool = False, attempt: int | None = None) -> bytes:
        """What a job printed, byte for byte."""
        stream = "stderr" if stderr else "stdout"
        out, offset = [], 0
        while True:
            answer = await self.ask("log", job=str(job), attempt=attempt, stream=stream, offset=offset, limit=PIECE)
            data = a2b_base64(answer["data"])
            out.append(data)
            offset = answer["next"]
            if answer["end"] or not data:
                return b"".join(out)

    async def explain(self, job: str) -> dict[str, Any]:
        """Why a job does not run, or how it ended: state, reason, verdicts, attempts."""
        return await self.ask("explain", job=str(job))

    async def failures(self, selection: Selection = ()) -> list[dict[str, Any]]:
        """What failed, those together that look alike, the most first, as `rota failures --json` prints them."""
        groups: list[dict[str, Any]] = (await self.ask("failures", sel=words_of(selection)))["groups"]
        return groups

    async def show(self, job: str) -> dict[str, Any]:
        """Everything of a job's specification, as `rota show --json` prints it."""
        return await self.ask("show", job=str(job))

    async def totals(self, selection: Selection = ()) -> list[dict[str, Any]]:
        """What the jobs of each name used, as `rota report totals --json` prints it."""
        names: list[dict[str, Any]] = (await self.ask("totals", sel=words_of(selection)))["names"]
        return names

    async def history(self, selection: Selection = (), **search: Unpack[Search]) -> AsyncIterator[dict[str, Any]]:
        """Every attempt, the newest first, as `rota history --json` prints them."""
        after = None
        while True:
            answer = await self.ask("history", sel=words_of(selection), after=after, limit=PAGE, **search)
            for row in answer["attempts"]:
                yield row
            after = answer.get("next")
            if after is None:
                return

    async def learned(self) -> list[dict[str, Any]]:
        """What was learned of each group, as `rota report learning --json` prints it."""
        return list((await self.ask("learning"))["groups"])

    async def plugins(self) -> dict[str, Any]:
        """What policies can be made of, and the policies that there are, as `rota plugins --json` prints it."""
        return await self.ask("plugins")

    # Changing

    async def kill(self, selection: Selection, *, confirm_dead: bool = False) -> int:
        """End jobs; how many there were."""
        return await self._change("kill", selection, confirm_dead=confirm_dead)

    async def retry(self, selection: Selection, **changes: Unpack[Changes]) -> int:
        """Run settled jobs again, with these changes (`memory="x2"`, `time="+1h"`); how many."""
        return await self._change("retry", selection, changes=make_patch(changes))

    async def modify(self, selection: Selection, **changes: Unpack[Changes]) -> int:
        """Change jobs that do not run, or whole batches; what is not named stays as it is. How many were changed."""
        return await self._change("modify", selection, changes=make_patch(changes))

    async def hold(self, selection: Selection, *, stop: bool = False) -> int:
        """Keep jobs from starting; with `stop`, end and hold those that run too. How many."""
        return await self._change("hold", selection, stop=stop)

    async def release(self, selection: Selection) -> int:
        """Let jobs go that are held; how many."""
        return await self._change("release", selection)

    async def remove(self, selection: Selection) -> int:
        """Forget settled jobs; how many."""
        return await self._change("remove", selection)

    async def limits(self) -> list[dict[str, Any]]:
        """The limits that are set or in use, as `rota limit --json` lists them."""
        return list((await self.ask("limit"))["limits"])

    async def set_limits(self, *limits: str) -> list[dict[str, Any]]:
        """Set limits, all or none: `"irods:10"`, `"api:100/min"`, `"night:22:00-06:00"`; returns all that are set."""
        return list((await self.ask("limit", set=limit_settings(limits, all_set=True)))["limits"])

    async def remove_limits(self, *names: str) -> list[dict[str, Any]]:
        """Take limits away; returns those that are left."""
        return list((await self.ask("limit", set=dict.fromkeys(names)))["limits"])

    # The manager

    async def pause(self, holder: str = "user", reason: str = "") -> dict[str, Any]:
        """Start no more jobs until this holder resumes; `rota pause --json`."""
        return await self.ask("pause", **{"as": holder, "reason": reason})

    async def resume(self, holder: str = "user", *, everybody: bool = False) -> dict[str, Any]:
        """End this holder's pause (or everybody's); `rota resume --json`."""
        return await self.ask("resume", **{"as": holder, "all": everybody})

    async def backup(self, path: str | None = None) -> str:
        """Copy the queue to a file on the manager's host; its path."""
        return str((await self.ask("backup", path=absolute(path)))["path"])

    async def prune(self, selection: Selection = (), *, older_than: str | int = 0, keep: int = 0) -> int:
        """Forget settled batches, whole ones; without a selection all that fit. How many were forgotten."""
        words = words_of(selection)
        age_s = parse_duration(older_than) if isinstance(older_than, str) else older_than
        answer = await self.ask("prune", sel=words, all=not words, older_than_s=age_s, keep=keep, dry_run=False)
        return int(answer["batches"])

    async def _change(self, op: str, selection: Selection, **extra: Any) -> int:
        answer = await self.ask(op, sel=words_of(selection), all=False, dry_run=False, **extra)
        return int(answer["jobs"])

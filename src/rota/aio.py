"""The Python client for asyncio: the same as `rota.api`, with coroutines.

async with rota.aio.Client() as client:
    batch = await client.submit("gzip {}", values=files)
    async for job in batch.as_completed():
        print(job.id, job.state)
"""

import asyncio
from binascii import a2b_base64
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Literal, Unpack

from rota.api import AWAY_S, NOT_REPEATED, PAGE, PIECE, SETTLED, JobFields, Search, Selection, absolute, words_of
from rota.model.amounts import parse_duration
from rota.model.errors import BusyError, RotaError
from rota.model.limits import limit_settings
from rota.submission import Changes, JobOptions, Submission, build, make_patch
from rota.submission.sending import IN_FLIGHT
from rota.wire.aclient import AsyncConnection, LostError, NoManagerError

__all__ = ["Batch", "Client", "Job"]


class Job(JobFields):
    """One job, with a way to its output."""

    def __init__(self, client: "Client", row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self._client = client

    async def log(self, stderr: bool = False, attempt: int | None = None) -> str:
        """What it printed."""
        return await self._client.log(self.id, stderr=stderr, attempt=attempt)

    async def explain(self) -> dict[str, Any]:
        """Why it does not run, or how it ended."""
        return await self._client.explain(self.id)


class Batch:
    """What one submission made."""

    def __init__(self, client: "Client", id: int, name: str = "", size: int = 0, warnings: Sequence[str] = ()) -> None:
        self._client = client
        self.id = id
        self.name = name
        self.size = size
        self.warnings = list(warnings)
        self.duplicates = 0

    def __repr__(self) -> str:
        return f"<Batch {self.id}{f' {self.name}' if self.name else ''}, {self.size:,} jobs>"

    def __len__(self) -> int:
        return self.size

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until all is settled: True if all have COMPLETED. TimeoutError when the time (seconds) is up."""
        return await self._client.wait(self.id, timeout)

    async def counts(self) -> dict[str, int]:
        """How many jobs are in which state."""
        return dict((await self._client.ask("count", sel=[str(self.id)]))["counts"])

    async def status(self) -> dict[str, Any]:
        """Its line of `rota status --json`."""
        return dict((await self._client.ask("status", sel=[str(self.id)]))["batches"][0])

    def jobs(self, *states: str) -> AsyncIterator[Job]:
        """Its jobs, in order; those in certain states: `batch.jobs("failed")`."""
        return self._client.jobs([str(self.id), *(f":{state.lower()}" for state in states)])

    async def job(self, index: int) -> Job:
        """The job with this number."""
        return await anext(self._client.jobs(f"{self.id}.{index}"))

    def as_completed(self) -> AsyncIterator[Job]:
        """Every job once, as it becomes settled."""
        return self._client.as_completed(self.id)

    async def summary(self, failures: int = 10, slowest: int = 3) -> dict[str, Any]:
        """Counts, the first failures with the end of their standard error, the slowest jobs."""
        return await self._client.ask("summary", batch=self.id, failures=failures, slowest=slowest)

    async def kill(self) -> int:
        """End what is not settled; how many jobs that was."""
        return await self._client.kill(self.id)

    async def retry(self, **changes: Unpack[Changes]) -> int:
        """Run again what is settled and did not complete, with these changes (`memory="x2"`)."""
        return await self._client.retry([self.id, ":unsuccessful"], **changes)

    async def modify(self, **changes: Unpack[Changes]) -> int:
        """Change those of its jobs that do not run, and what belongs to all of it (`name`, `after`, `at_once` …)."""
        count = await self._client.modify(self.id, **changes)
        if "name" in changes:
            self.name = changes["name"] or ""
        return count

    async def hold(self, stop: bool = False) -> int:
        """Keep what waits from starting; with `stop`, end and hold what runs too."""
        return await self._client.hold(self.id, stop=stop)

    async def release(self) -> int:
        """Let go what is held."""
        return await self._client.release(self.id)

    async def remove(self) -> int:
        """Forget what is settled."""
        return await self._client.remove(self.id)


class Client:
    """A connection to the manager of a home, for one event loop. It is opened by `async with`, or by the first request.

    If no manager is up, one is started, as `rota add` does; with `start=False` NoManagerError is raised instead.
    """

    def __init__(self, home: str | None = None, *, start: bool = True) -> None:
        self.home = home
        self._start = start
        self._held: AsyncConnection | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> "Client":
        await self._connection()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. The manager, and what it runs, goes on."""
        self._closed = True
        await self._drop(self._held)

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
        """Queue a batch, as `rota.api.Client.submit` does."""
        submission = build(command, options, lines=lines, values=values, params=params, zipped=zipped, array=array)
        if once:
            submission.once = "cwd" if once is True else once
            submission.rerun = rerun
        return await self.send(submission)

    async def send(self, submission: Submission) -> Batch:
        """Send what was built; asked again, under the same key, if the connection is lost."""
        connection = await self._connection()
        try:
            answer = await self._send(connection, submission)
        except LostError:
            answer = await self._send(await self._reconnect(connection), submission)
        warnings = answer.get("warnings") or ()
        batch = Batch(self, answer["batch"] or 0, submission.spec.name, answer["jobs"], warnings)
        batch.duplicates = answer.get("duplicates", 0)
        return batch

    async def _send(self, connection: AsyncConnection, submission: Submission) -> dict[str, Any]:
        flying: list[asyncio.Task[dict[str, Any]]] = []
        try:
            for request in submission.requests():
                op = request.pop("op")
                if op == "submit":
                    await asyncio.gather(*flying)
                    return await connection.ask(op, **request)
                flying.append(asyncio.create_task(connection.ask(op, **request)))
                if len(flying) > IN_FLIGHT:
                    await flying.pop(0)
            raise AssertionError("a submission ends with a submit")
        finally:
            for waiting in flying:
                waiting.cancel()

    async def batch(self, id: int) -> Batch:
        """A batch that exists."""
        row = (await self.ask("status", sel=[str(id)]))["batches"][0]
        return Batch(self, row["id"], row.get("name") or "", row["jobs"])

    # Looking

    async def status(self, selection: Selection = ()) -> dict[str, Any]:
        """`rota status --json`."""
        return await self.ask("status", sel=words_of(selection))

    async def wait(self, selection: Selection = (), timeout: float | None = None) -> bool:
        """Wait until all is settled: True if all have COMPLETED. TimeoutError when the time (seconds) is up."""
        answer = await self.ask("wait", sel=words_of(selection), timeout_s=timeout)
        if not answer["settled"]:
            raise TimeoutError(f"not all are settled after {timeout:g} s: {answer['counts']}")
        return not any(count for state, count in answer["counts"].items() if state != "COMPLETED")

    async def jobs(
        self, selection: Selection = (), *, newest: bool = False, **search: Unpack[Search]
    ) -> AsyncIterator[Job]:
        """The jobs that are selected, asked for page by page."""
        after = None
        while True:
            answer = await self.ask("jobs", sel=words_of(selection), after=after, limit=PAGE, newest=newest, **search)
            for row in answer["jobs"]:
                yield Job(self, row)
            after = answer.get("next")
            if after is None:
                return

    async def as_completed(self, selection: Selection = ()) -> AsyncIterator[Job]:
        """Every selected job once, as it becomes settled."""
        seen: set[str] = set()
        while True:
            shared = await self._connection()
            try:
                async with await AsyncConnection.connect(self.home) as connection:
                    async for note in connection.notes("follow", sel=words_of(selection)):
                        for row in note.get("ended", ()):
                            if row["state"] in SETTLED and row["id"] not in seen:
                                seen.add(row["id"])
                                yield Job(self, row)
                return
            except LostError:
                await self._reconnect(shared)

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

    # Changing

    async def kill(self, selection: Selection, *, confirm_dead: bool = False) -> int:
        """End jobs; how many."""
        return await self._change("kill", selection, confirm_dead=confirm_dead)

    async def retry(self, selection: Selection, **changes: Unpack[Changes]) -> int:
        """Run settled jobs again, with these changes (`memory="x2"`, `time="+1h"`); how many."""
        return await self._change("retry", selection, changes=make_patch(changes))

    async def modify(self, selection: Selection, **changes: Unpack[Changes]) -> int:
        """Change jobs that do not run; what is not named stays as it is. How many were changed."""
        return await self._change("modify", selection, changes=make_patch(changes))

    async def hold(self, selection: Selection, *, stop: bool = False) -> int:
        """Keep jobs from starting; with `stop`, end and hold what runs too."""
        return await self._change("hold", selection, stop=stop)

    async def release(self, selection: Selection) -> int:
        """Let go what is held."""
        return await self._change("release", selection)

    async def remove(self, selection: Selection) -> int:
        """Forget settled jobs."""
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
        total = 0
        while True:
            answer = await self.ask("prune", sel=words, all=not words, older_than_s=age_s, keep=keep, dry_run=False)
            total += int(answer["batches"])
            if not answer.get("more"):
                return total

    async def _change(self, op: str, selection: Selection, **extra: Any) -> int:
        answer = await self.ask(op, sel=words_of(selection), all=False, dry_run=False, **extra)
        return int(answer["jobs"])

    # Asking

    async def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Anything of docs/protocol.md. If the connection is lost it is asked again, where that is safe."""
        connection = await self._connection()
        try:
            return await connection.ask(op, **arguments)
        except LostError:
            await self._drop(connection)
            if op in NOT_REPEATED or self._closed:
                raise
        return await (await self._reconnect(connection)).ask(op, **arguments)

    async def _connection(self) -> AsyncConnection:
        if self._closed:
            raise RotaError("this client is closed")
        async with self._opening:
            if self._held is None:
                try:
                    self._held = await AsyncConnection.connect(self.home)
                except NoManagerError:
                    if not self._start:
                        raise
                    from rota.manager.daemon import start

                    await asyncio.to_thread(start, self.home)
                    self._held = await AsyncConnection.connect(self.home)
                self._start = False
            return self._held

    async def _drop(self, broken: AsyncConnection | None) -> None:
        """Close a connection; one that another request has opened meanwhile is kept."""
        if self._held is broken:
            self._held = None
        if broken is not None:
            await broken.close()

    async def _reconnect(self, broken: AsyncConnection) -> AsyncConnection:
        deadline = asyncio.get_running_loop().time() + AWAY_S
        await self._drop(broken)
        while True:
            try:
                return await self._connection()
            except (NoManagerError, BusyError):
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.1)

"""The Python client: submit commands, wait for them, read what they printed.

    import rota

    with rota.local() as client:
        batch = client.submit("sort {} | uniq -c", values=["a.txt", "b.txt"], cores=1)
        for job in batch.as_completed():
            print(job.id, job.state, job.log())

`Client` talks to the manager of a home, as the command line does; `local()` starts one for the length of the program.
"""

import inspect
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from itertools import islice
from types import GenericAlias
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from rota import questions
from rota.model.errors import BusyError, RotaError
from rota.questions import AWAY_S, NOT_REPEATED, BatchFields, JobFields, Search, Selection, words_of
from rota.submission import Submission, send
from rota.wire.client import Connection, LostError, NoManagerError, job_address

__all__ = ["Batch", "Client", "Job", "JobFields", "Pilot", "Search", "Selection", "local"]

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Method = Callable[Concatenate[Any, P], T]


def blocking(question: Method[P, Coroutine[Any, Any, T]]) -> Method[P, T]:
    """A method that asks a question, waits for the answer, and returns what the question makes of it."""
    return making(question.__annotations__["return"], question)


def making(made: type[T], question: Method[P, Coroutine[Any, Any, Any]]) -> Method[P, T]:
    """A blocking method that returns another class than the question does in `rota.aio`."""

    def method(self: Any, /, *args: P.args, **named: P.kwargs) -> T:
        result: T = run(question(asker(self), *args, **named))
        return result

    return described(method, question, made)


class Found(Iterator[T]):
    """What a question finds, one after the other as it is iterated over; `found[0]` and `found[:5]` ask again."""

    def __init__(self, rows: Callable[[], Iterator[T]]) -> None:
        self._rows = rows
        self._own: Iterator[T] | None = None

    def __next__(self) -> T:
        if self._own is None:
            self._own = self._rows()
        return next(self._own)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> list[T]: ...
    def __getitem__(self, at: int | slice) -> T | list[T]:
        if isinstance(at, int) and at >= 0:
            for row in islice(self._rows(), at, None):
                return row
            raise IndexError(f"there are not {at + 1}")
        if isinstance(at, slice) and all(each is None or each >= 0 for each in (at.start, at.stop, at.step)):
            return list(islice(self._rows(), at.start, at.stop, at.step))
        return list(self._rows())[at]


def each(made: type[T], question: Method[P, AsyncIterator[Any]]) -> Method[P, Found[T]]:
    """A method that asks a question page by page, as far as its result is iterated over."""

    def rows_of(self: Any, *args: P.args, **named: P.kwargs) -> Iterator[T]:
        rows = question(asker(self), *args, **named)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)  # an event loop of this thread must not end it with its own generators
        row = rows.__anext__()
        sys.set_asyncgen_hooks(*hooks)
        try:
            while True:
                yield run(row)
                row = rows.__anext__()
        except StopAsyncIteration:
            return

    def method(self: Any, /, *args: P.args, **named: P.kwargs) -> Found[T]:
        return Found(lambda: rows_of(self, *args, **named))

    return described(method, question, GenericAlias(Found, made))


def run(question: Awaitable[T]) -> T:
    """Run a coroutine that never waits, to its end."""
    steps = question.__await__()
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a question waited for something else than its answer")


def described(method: F, question: Callable[..., Any], returned: Any) -> F:
    """Give a method the name, text and signature of its question, for `help`, `inspect` and editors."""
    method.__name__, method.__qualname__, method.__doc__ = question.__name__, question.__qualname__, question.__doc__
    method.__annotations__ = {**question.__annotations__, "return": returned}
    vars(method)["__signature__"] = inspect.signature(question).replace(return_annotation=returned)
    return method


class Asker(questions.Client):
    """Puts the questions of a Client: every request blocks until it is answered."""

    def __init__(self, client: "Client") -> None:
        self.client = client

    async def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        return self.client.ask(op, **arguments)

    async def _deliver(self, submission: Submission) -> dict[str, Any]:
        return self.client._deliver(submission)

    def _make_job(self, row: Mapping[str, Any]) -> "Job":
        return Job(self.client, row)

    def _make_batch(self, id: int, name: str, size: int, warnings: Sequence[str] = ()) -> "Batch":
        return Batch(self.client, id, name, size, warnings)


def asker(of: Any) -> Any:
    """The `self` of a question: an Asker for a Client; a Job or Batch has one, and the fields that a question uses."""
    return Asker(of) if isinstance(of, Client) else of


class Job(JobFields):
    """One job, with a way to its output."""

    def __init__(self, client: "Client", row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self._client = Asker(client)

    log = blocking(questions.Job.log)
    explain = blocking(questions.Job.explain)


class Batch(BatchFields):
    """A batch: the jobs that one submission made."""

    def __init__(self, client: "Client", id: int, name: str = "", size: int = 0, warnings: Sequence[str] = ()) -> None:
        super().__init__(id, name, size, warnings)
        self._client = Asker(client)

    wait = blocking(questions.Batch.wait)
    counts = blocking(questions.Batch.counts)
    status = blocking(questions.Batch.status)
    jobs = each(Job, questions.Batch.jobs)

    def job(self, index: int) -> Job:
        """The job with this index."""
        return next(self._client.client.jobs(f"{self.id}.{index}"))

    def as_completed(self) -> Iterator[Job]:
        """Every job once, as it becomes settled."""
        return self._client.client.as_completed(self.id)

    summary = blocking(questions.Batch.summary)
    kill = blocking(questions.Batch.kill)
    retry = blocking(questions.Batch.retry)
    modify = blocking(questions.Batch.modify)
    hold = blocking(questions.Batch.hold)
    release = blocking(questions.Batch.release)
    remove = blocking(questions.Batch.remove)


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
            self._greeted()
        except NoManagerError:
            if not start or (home is None and job_address() is not None):
                raise
            from rota.manager.daemon import start as start_manager

            start_manager(home)
            self._greeted()

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

    # What is asked, with all parameters and texts, is in rota.questions.

    submit = making(Batch, questions.Client.submit)
    send = making(Batch, questions.Client.send)
    batch = making(Batch, questions.Client.batch)

    status = blocking(questions.Client.status)
    wait = blocking(questions.Client.wait)
    jobs = each(Job, questions.Client.jobs)
    history = each(dict[str, Any], questions.Client.history)
    log = blocking(questions.Client.log)
    log_bytes = blocking(questions.Client.log_bytes)
    explain = blocking(questions.Client.explain)
    failures = blocking(questions.Client.failures)
    show = blocking(questions.Client.show)
    totals = blocking(questions.Client.totals)
    learned = blocking(questions.Client.learned)
    plugins = blocking(questions.Client.plugins)

    kill = blocking(questions.Client.kill)
    retry = blocking(questions.Client.retry)
    modify = blocking(questions.Client.modify)
    hold = blocking(questions.Client.hold)
    release = blocking(questions.Client.release)
    remove = blocking(questions.Client.remove)

    limits = blocking(questions.Client.limits)
    set_limits = blocking(questions.Client.set_limits)
    remove_limits = blocking(questions.Client.remove_limits)

    pause = blocking(questions.Client.pause)
    resume = blocking(questions.Client.resume)
    backup = blocking(questions.Client.backup)
    prune = blocking(questions.Client.prune)

    def as_completed(self, selection: Selection = ()) -> Iterator[Job]:
        """Every selected job once, as it becomes settled."""
        seen: set[str] = set()
        while True:
            try:
                with Connection.connect(self.home) as connection:
                    for note in connection.notes("follow", sel=words_of(selection)):
                        yield from Asker(self)._newly_settled(note, seen)
                    return
            except LostError:
                self._reconnect()

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Send a request of docs/protocol.md; its answer. After a lost connection it is sent again if that is safe."""
        try:
            return self._connection().ask(op, **arguments)
        except LostError:
            self._drop()
            if op in NOT_REPEATED or self._closed:
                raise
        return self._reconnect().ask(op, **arguments)

    def _deliver(self, submission: Submission) -> dict[str, Any]:
        try:
            return send(self._connection(), submission)
        except LostError:
            self._drop()
            return send(self._reconnect(), submission)

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

    def _greeted(self) -> Connection:
        """The connection, to a manager that has answered: one that is being killed still has a socket."""
        connection = self._connection()
        try:
            _ = connection.manager
        except (NoManagerError, LostError):
            self._drop()
            raise
        return connection

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
                return self._greeted()
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
            with Connection.connect(home) as connection:
                _ = connection.manager
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


class Pilot(LocalClient):
    """A Client with a manager inside the allocation that this program runs in, on all its nodes, as `rota pilot` has.

    What an earlier one left in this home, by default `.rota-pilot` in this directory, is gone on with. `nodes`
    ("node1:8,node2:8"), `reserve_core`, `ends_in` and `margin` (seconds, or texts such as "2h") are as on the command
    line. It ends in time before its allocation does: then calls raise LostError, and the rest is there for the next.
    """

    def __init__(
        self,
        home: str | None = None,
        *,
        nodes: str | None = None,
        reserve_core: bool = False,
        ends_in: int | str | None = None,
        margin: int | str | None = None,
        node_resources: Mapping[str, int] | None = None,
        resources: Mapping[str, int] | None = None,
    ) -> None:
        from rota.manager.offline.piloting import launch, make_pilot, pilot_home
        from rota.model.amounts import parse_duration

        ends_in_s, margin_s = (None if each is None else parse_duration(str(each)) for each in (ends_in, margin))
        pilot = make_pilot(
            os.environ,
            nodes=nodes,
            reserve=reserve_core,
            ends_in_s=ends_in_s,
            margin_s=margin_s,
            node_resources=node_resources,
            resources=resources,
        )
        for line in pilot.away:
            warnings.warn(f"{line}; the others go on", stacklevel=2)
        self.nodes = tuple(node.cores for node in pilot.given.used)
        """Cores of each node that it uses."""
        home = pilot_home(home)
        launch(home, pilot)
        self._end = weakref.finalize(self, end_local, home, None, os.getpid())
        Client.__init__(self, home, start=False)

    def __enter__(self) -> "Pilot":
        return self


def end_local(home: str | None, temporary: str | None, owner: int) -> None:
    """Take the manager of a LocalClient down, in the process that started it."""
    if os.getpid() != owner:
        return
    if home is not None:
        from rota.manager.daemon import runs

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
        while pid and runs(pid) and time.monotonic() < deadline:
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

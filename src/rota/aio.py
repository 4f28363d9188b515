"""The Python client for asyncio: the same as `rota.api`, with coroutines.

async with rota.aio.Client() as client:
    batch = await client.submit("gzip {}", values=files)
    async for job in batch.as_completed():
        print(job.id, job.state)
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from rota import questions
from rota.model.errors import BusyError, RotaError
from rota.questions import AWAY_S, NOT_REPEATED, Batch, Job, Selection, words_of
from rota.submission import Submission
from rota.submission.sending import IN_FLIGHT
from rota.wire.aclient import AsyncConnection, LostError, NoManagerError

__all__ = ["Batch", "Client", "Job"]


class Client(questions.Client):
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

    async def as_completed(self, selection: Selection = ()) -> AsyncIterator[Job]:
        """Every selected job once, as it becomes settled."""
        seen: set[str] = set()
        while True:
            shared = await self._connection()
            try:
                async with await AsyncConnection.connect(self.home) as connection:
                    async for note in connection.notes("follow", sel=words_of(selection)):
                        for job in self._newly_settled(note, seen):
                            yield job
                return
            except LostError:
                await self._reconnect(shared)

    async def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Send a request of docs/protocol.md; its answer. After a lost connection it is sent again if that is safe."""
        connection = await self._connection()
        try:
            return await connection.ask(op, **arguments)
        except LostError:
            await self._drop(connection)
            if op in NOT_REPEATED or self._closed:
                raise
        return await (await self._reconnect(connection)).ask(op, **arguments)

    async def _deliver(self, submission: Submission) -> dict[str, Any]:
        connection = await self._connection()
        try:
            return await send(connection, submission)
        except LostError:
            return await send(await self._reconnect(connection), submission)

    async def _connection(self) -> AsyncConnection:
        if self._closed:
            raise RotaError("this client is closed")
        async with self._opening:
            if self._held is None:
                try:
                    self._held = await self._greeted()
                except NoManagerError:
                    if not self._start:
                        raise
                    from rota.manager.daemon import start

                    await asyncio.to_thread(start, self.home)
                    self._held = await self._greeted()
                self._start = False
            return self._held

    async def _greeted(self) -> AsyncConnection:
        """A connection to a manager that has answered: one that is being killed still has a socket."""
        connection = await AsyncConnection.connect(self.home)
        try:
            await connection.manager()
        except BaseException:
            await connection.close()
            raise
        return connection

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


async def send(connection: AsyncConnection, submission: Submission) -> dict[str, Any]:
    """Send all requests, as `rota.submission.send` does."""
    encoded = submission.encoded()
    if encoded is not None:
        return await connection.submit(submission.key, encoded)
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

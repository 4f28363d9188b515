"""The client for asyncio: the same as `client`, with any number of requests under way at once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from rota.model.errors import ProtocolError, RotaError
from rota.wire import client
from rota.wire.client import CONNECT_S, PATIENCE_S, UNKNOWN, LostError, NoManagerError
from rota.wire.frames import MAX_FRAME
from rota.wire.home import SocketPath

__all__ = ["AsyncConnection", "LostError", "NoManagerError"]

_END = object()


class AsyncConnection:
    """One connection to the manager, shared by the tasks of one loop."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, home: str, patience_s: float | None
    ) -> None:
        self.home = home
        self.patience_s = patience_s
        self._reader = reader
        self._writer = writer
        self._last = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._notes: dict[int, asyncio.Queue[Any]] = {}
        self._welcome: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._over: RotaError | None = None

    @classmethod
    async def connect(cls, home: str | None = None, patience_s: float | None = PATIENCE_S) -> "AsyncConnection":
        """Find the manager of this home, as `Connection.connect` does."""
        home, notice = client.found_at(home)
        if notice is not None:
            return await cls._connect_tls(home, notice, patience_s)
        try:
            with SocketPath(home) as path:
                streams = await asyncio.wait_for(asyncio.open_unix_connection(path, limit=MAX_FRAME + 4), CONNECT_S)
        except OSError as error:
            return await cls._connect_tls(home, client.not_here(home, error), patience_s)
        self = cls(*streams, home, patience_s)
        try:
            client.check_server(self._writer.get_extra_info("socket"), home)
        except RotaError:
            self._writer.close()
            raise
        return self._greet(client.hello_here(home))

    @classmethod
    async def _connect_tls(cls, home: str, notice: dict[str, Any], patience_s: float | None) -> "AsyncConnection":
        context, token = client.tls_setup(home, notice)
        address = str(notice.get("address") or notice.get("host"))
        try:
            opening = asyncio.open_connection(
                address, int(notice["port"]), ssl=context, server_hostname="", limit=MAX_FRAME + 4
            )
            streams = await asyncio.wait_for(opening, CONNECT_S)
        except (OSError, ValueError) as error:
            raise client.unreachable(notice, error) from error
        self = cls(*streams, home, patience_s)
        try:
            certificate = self._writer.get_extra_info("ssl_object").getpeercert(True)
            message = await asyncio.wait_for(self._read(), CONNECT_S)
            return self._greet(client.prove(message, certificate, token))
        except (OSError, asyncio.IncompleteReadError) as error:
            self._writer.close()
            raise client.unreachable(notice, error) from error
        except RotaError:
            self._writer.close()
            raise

    async def manager(self) -> dict[str, Any]:
        """What the manager said of itself: host, pid, version, home, started. NoManagerError if it has gone."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._welcome), CONNECT_S)
        except TimeoutError:
            raise LostError(f"no answer from the manager of {self.home} in time; {UNKNOWN}") from None

    async def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Ask one thing; the result, or the error that the manager answered with."""
        return await self._ask(op, arguments)

    async def submit(self, key: str, encoded: dict[str, bytes]) -> dict[str, Any]:
        """Ask for a submission under its key, the rest of which is JSON already."""
        return await self._ask("submit", {"key": key}, encoded)

    async def _ask(self, op: str, arguments: dict[str, Any], encoded: dict[str, bytes] | None = None) -> dict[str, Any]:
        number, answer = await self._post(op, arguments, encoded)
        try:
            return await asyncio.wait_for(answer, client.patience_for(op, self.patience_s))
        except TimeoutError:
            raise LostError(f"no answer from the manager of {self.home} in time; {UNKNOWN}") from None
        finally:
            self._waiting.pop(number, None)

    async def notes(self, op: str, **arguments: Any) -> AsyncIterator[dict[str, Any]]:
        """Ask what is answered in parts (`follow`): yields each note, and last the answer, with "t" as "answer"."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._notes[self._last + 1] = queue
        number, answer = await self._post(op, arguments)
        answer.add_done_callback(lambda _: queue.put_nowait(_END))
        try:
            while (note := await queue.get()) is not _END:
                yield note
            yield {"t": "answer", **await answer}
        finally:
            self._notes.pop(number, None)
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """Close the connection; what still waits gets a LostError."""
        if self._task is not None:
            self._task.cancel()
        self._end(LostError("the connection was closed"))
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass

    async def __aenter__(self) -> "AsyncConnection":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Inside

    def _greet(self, greeting: bytes) -> "AsyncConnection":
        self._writer.write(greeting)
        self._task = asyncio.get_running_loop().create_task(self._listen())
        return self

    async def _post(
        self, op: str, arguments: dict[str, Any], encoded: dict[str, bytes] | None = None
    ) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        if self._over is not None:
            raise self._over
        self._last += 1
        number = self._last
        data = client.frame({"t": "ask", "id": number, "op": op, **arguments}, encoded)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError:
            pass  # `_listen` learns why, and tells who waits
        return number, answer

    async def _read(self) -> dict[str, Any]:
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        if not 0 < size <= MAX_FRAME:
            raise ProtocolError(f"the manager announced a frame of {size} bytes")
        return client.parse(await self._reader.readexactly(size))

    async def _listen(self) -> None:
        try:
            while True:
                self._sort(await self._read())
        except (OSError, asyncio.IncompleteReadError) as error:
            why = "closed" if isinstance(error, asyncio.IncompleteReadError) else str(error)
            if self._last or self._welcome.done():
                self._end(LostError(f"the connection to the manager of {self.home} was lost ({why}); {UNKNOWN}"))
            else:
                self._end(client.gone(self.home, why))
        except RotaError as error:
            self._end(error)
        finally:
            self._writer.close()

    def _end(self, error: RotaError) -> None:
        self._over = self._over or error
        for future in (self._welcome, *self._waiting.values()):
            if not future.done():
                future.set_exception(error)
                future.exception()  # it may be that nobody waits for it

    def _sort(self, message: dict[str, Any]) -> None:
        kind, number, content = client.sort(message)
        future = self._welcome if kind == "welcome" else self._waiting.get(number) if kind == "answer" else None
        if kind == "note" and number in self._notes:
            self._notes[number].put_nowait(content)
        elif future is not None and not future.done():
            if isinstance(content, RotaError):
                future.set_exception(content)
            else:
                future.set_result(content)

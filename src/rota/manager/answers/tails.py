"""What jobs on other hosts have written so far: their runners are asked for it."""

import asyncio
from collections.abc import Callable

from rota.core.state import State
from rota.manager.answers.running import Ref
from rota.manager.outbound import Performer
from rota.wire.messages import Tail

__all__ = ["Tails"]

ANSWER_S = 3.0
"""A runner that is busy or away: then nothing is shown, as if nothing had been written."""


class Tails:
    """Questions to runners, and their answers."""

    def __init__(self, performer: Performer, state: Callable[[], State]) -> None:
        self._performer = performer
        self._state = state
        self._number = 0
        self._asked: dict[int, tuple[str, asyncio.Future[bytes | None]]] = {}

    async def ask(self, job: Ref, runner: str, stream: str, offset: int, limit: int) -> bytes:
        """A stretch of what a running job has written; a negative offset counts from the end."""
        peer, known = self._performer.peers.get(runner), self._state().runners.get(runner)
        if peer is None or known is None:
            return b""
        self._number += 1
        number = self._number
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._asked[number] = (runner, future)
        what = {"job": job, "stream": stream, "offset": offset, "limit": limit}
        try:
            peer.send({"t": "tail", "session": known.session, "ask": number, **what})
            return await asyncio.wait_for(future, ANSWER_S) or b""
        except TimeoutError:
            return b""
        finally:
            self._asked.pop(number, None)

    def told(self, runner: str, message: Tail) -> None:
        """A runner answers."""
        asked = self._asked.get(message.ask)
        if asked is not None and asked[0] == runner and not asked[1].done():
            asked[1].set_result(message.data)

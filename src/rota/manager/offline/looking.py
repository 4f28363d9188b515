"""Looking without a manager: the same answers, read from the store that the last one left.

Nothing is written or started. What only a manager knows (runners that are connected, what running jobs use, the words
of batch systems) is not there, and every answer says so: `"manager": "down"`.
"""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec

from rota.core.notes import restarted
from rota.core.state import Settings
from rota.core.stimuli import At
from rota.manager.answers.attempts import Attempts
from rota.manager.answers.explaining import Explaining
from rota.manager.answers.failures import Failures
from rota.manager.answers.jobs import Jobs
from rota.manager.answers.output import Output
from rota.manager.answers.running import Running
from rota.manager.answers.search import Search
from rota.manager.answers.showing import batches_of, show, totals
from rota.manager.answers.status import count_jobs, status
from rota.manager.answers.usage import ENTRIES, usage_page
from rota.manager.checkpoints import state_of
from rota.manager.filesystem import warning_for
from rota.manager.jobbook import JobBook
from rota.manager.paths import Paths
from rota.model.errors import UsageError
from rota.store.connection import connect_read_only
from rota.store.sqlite import SqliteStore
from rota.wire.messages import OPS

__all__ = ["Reader"]


class Reader:
    """Answers questions from the store of a home; used in place of a connection."""

    down = True
    """That no manager is up."""

    def __init__(self, home: str | None) -> None:
        paths = Paths(home)
        self._store = store = SqliteStore(
            paths.database, exclusive=warning_for(paths.home) is not None, connect=connect_read_only
        )
        self.state = state_of(store.load_to_read(), Settings(), 1)
        wall, mono = time.time(), time.monotonic()
        self._at = At(wall, mono, time.localtime(wall).tm_gmtoff)
        restarted(self.state, self._at)
        self._book = book = JobBook(store, {}, paths.home)
        running = Running()
        self._jobs = Jobs(store, book, running)
        self._output = Output(store, book, running, None, directory=paths.output)
        self._attempts = Attempts(store, self._jobs, self._output)
        self._explaining = Explaining(store, book, self._output, lambda _: None, lambda _: None, down=True)
        self._failures = Failures(store, self._output, lambda: self.state)
        self._search = Search(store, self._jobs, lambda: self.state)

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one question."""
        answer = _ANSWERS.get(op)
        if answer is None:
            raise UsageError(f"{op} needs a manager: start one with rota up")
        try:
            args = msgspec.convert(arguments, OPS[op])
        except msgspec.ValidationError as error:
            raise UsageError(f"{op}: {error}") from None
        found = {**answer(self, args), "manager": "down"}
        for field in ("jobs", "attempts"):
            for row in found[field] if isinstance(found.get(field), list) else ():
                row["manager"] = "down"
        return found

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._store.close()

    def _status(self, args: Any) -> dict[str, Any]:
        return status(self.state, args, self._at, self._explaining.records(self.state))

    def _page(self, args: Any) -> dict[str, Any]:
        if args.searches:
            return asyncio.run(self._search.jobs(args))
        return self._jobs.page(self.state, args.sel, args.after, args.limit, args.newest)

    def _history(self, args: Any) -> dict[str, Any]:
        if args.searches or args.sel or args.states:
            return asyncio.run(self._search.attempts(args))
        return self._attempts.history(self.state, args.after, args.limit)

    def _explain(self, args: Any) -> dict[str, Any]:
        return self._explaining.answer(self.state, args, self._at)

    def _log(self, args: Any) -> dict[str, Any]:
        return asyncio.run(self._output.log(self.state, args))

    def _failed(self, args: Any) -> dict[str, Any]:
        return asyncio.run(self._failures.answer(args.sel))

    def _show(self, args: Any) -> dict[str, Any]:
        return show(self.state, self._store, self._book, args.job)

    def _totals(self, args: Any) -> dict[str, Any]:
        return totals(self.state, args.sel, self._store.sums(batches_of(self.state, args.sel)))

    def _usage(self, args: Any) -> dict[str, Any]:
        return usage_page(self.state, self._store.entries(args.after, ENTRIES), False)

    def _count(self, args: Any) -> dict[str, Any]:
        return count_jobs(self.state, args.sel)


_ANSWERS: dict[str, Callable[[Reader, Any], dict[str, Any]]] = {
    "status": Reader._status,
    "jobs": Reader._page,
    "history": Reader._history,
    "explain": Reader._explain,
    "log": Reader._log,
    "count": Reader._count,
    "failures": Reader._failed,
    "show": Reader._show,
    "totals": Reader._totals,
    "usage": Reader._usage,
}
"""Op → its answer."""

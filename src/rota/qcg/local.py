"""QCG's LocalManager in process: the same methods, on a pilot of rota, without ZeroMQ."""

import argparse
import os
import select
import time
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from rota.api import Pilot
from rota.model.errors import RotaError, UsageError
from rota.qcg.desk import Desk
from rota.qcg.feed import Feed
from rota.qcg.jobs import Jobs
from rota.qcg.registry import ENDED, Registry
from rota.qcg.translating import Room

__all__ = ["LocalManager", "TimeoutElapsed"]

HOME = ".rota-pilot"


class TimeoutElapsed(RotaError):  # noqa: N818
    """What was waited for did not happen in time; so it is called in QCG's client."""


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    """What QCG's service takes on its command line, as far as it has a meaning here; all else is refused by name."""
    parser = argparse.ArgumentParser("LocalManager", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--wd", default=".")
    parser.add_argument("--nodes")
    parser.add_argument("--system-core", action="store_true")
    for word in ("--net", "--disable-nl", "--show-progress", "--disable-pub"):
        parser.add_argument(word, action="store_true")
    for word in ("--log", "--report-format", "--report-file", "--envschema", "--resources", "--id", "--tags"):
        parser.add_argument(word)
    try:
        args, rest = parser.parse_known_args([str(word) for word in words])
    except argparse.ArgumentError as error:
        raise UsageError(f"server_args: {error}") from None
    if rest:
        raise UsageError(f"server_args: {rest[0]} has no meaning here")
    return args


class LocalManager:
    """A pilot in this allocation, or on this machine, that is used as QCG's own LocalManager is.

    `server_args` are those of QCG's service: `--wd`, `--nodes` (`[HOST:]CORES,…`), `--system-core`; what concerns its
    network and log files is not needed and let pass. `home` is where rota keeps the jobs.
    """

    def __init__(
        self, server_args: Sequence[str] | None = None, cfg: dict[str, Any] | None = None, home: str | None = None
    ) -> None:
        args = _arguments(server_args or ())
        self._root = os.path.abspath(args.wd)
        os.makedirs(self._root, exist_ok=True)
        self._pilot = Pilot(
            home or os.path.join(self._root, HOME),
            nodes=None if args.nodes is None else _hosts(args.nodes),
            reserve_core=args.system_core,
        )
        assert self._pilot.home is not None
        self._feed = Feed(self._pilot.home)
        registry = Registry(os.path.join(self._pilot.home, "qcg.jobs"))
        self._desk = Desk(self._pilot, registry, Room(self._pilot.nodes, self._root, "qcg"), self._feed.follow)
        self._ended: deque[tuple[str, str]] = deque()
        """Jobs and iterations that have ended, and of which nobody was told yet."""
        self._finished = False

    def __enter__(self) -> "LocalManager":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.finish()

    # ---- what QCG's client has ---------------------------------------------------------------------------------------

    def send_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask anything that the protocol has; its response."""
        self._look()
        response = self._desk.answer(request)
        if response["code"]:
            raise UsageError(f"Request failed - {response['message']}")
        return response

    def _data(self, name: str, **more: Any) -> dict[str, Any]:
        data: dict[str, Any] = self.send_request({"request": name, **more})["data"]
        return data

    def resources(self) -> dict[str, Any]:
        """How many nodes and cores there are, and how many of them are free."""
        return self._data("resourcesInfo")

    def submit(self, jobs: Jobs | Any) -> list[str]:
        """Submit a group of jobs, all or none; their names."""
        return list(self._data("submit", jobs=jobs.ordered_jobs())["jobs"])

    def list(self) -> dict[str, Any]:
        """All jobs by name, with their states."""
        return dict(self._data("listJobs")["jobs"])

    def status(self, names: str | Iterable[str]) -> dict[str, Any]:
        """The states of jobs."""
        return self._data("jobStatus", jobNames=_names(names))

    def info(self, names: str | Iterable[str], **params: Any) -> dict[str, Any]:
        """All about jobs; `withChilds=True` also about their iterations."""
        return self._data("jobInfo", jobNames=_names(names), params=params)

    def cancel(self, names: str | Iterable[str]) -> None:
        """End jobs or iterations, with all that they have started."""
        self._data("cancelJob", jobNames=_names(names))

    def remove(self, names: str | Iterable[str]) -> None:
        """Forget jobs that have ended; their names are free."""
        self._data("removeJob", jobNames=_names(names))

    def system_status(self) -> dict[str, Any]:
        """What is known of the pilot as a whole."""
        return self._data("status")

    def wait4(self, names: str | Iterable[str], timeout: float | None = None) -> dict[str, str]:
        """Wait until these have ended; how each did. TimeoutElapsed when the time (seconds) is up."""
        left = dict.fromkeys(_names(names))
        out: dict[str, str] = {}
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            for name, row in self.status(list(left))["jobs"].items():
                if row["data"]["status"] in ENDED:
                    out[name] = row["data"]["status"]
                    del left[name]
            if not left:
                return out
            self._wait(until)

    def wait4all(self, timeout_secs: float | None = None) -> None:
        """Wait until everything has ended."""
        until = None if timeout_secs is None else time.monotonic() + timeout_secs
        while not self._data("status", options={"allJobsFinished": True})["AllJobsFinished"]:
            self._wait(until)

    def wait4_any_job_finish(self, timeout_secs: float | None = None) -> tuple[str, str]:
        """Wait for the next job or iteration that ends, each once; its name and how it did."""
        until = None if timeout_secs is None else time.monotonic() + timeout_secs
        self._look()
        while not self._ended:
            self._wait(until)
        return self._ended.popleft()

    def finish(self) -> None:
        """End the pilot, with all that runs."""
        if not self._finished:
            self._finished = True
            self._feed.close()
            self._pilot.close()

    cleanup = kill_manager_process = finish

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._finished:
            raise UsageError("this manager is finished")
        self._desk.take(self._feed.rows(), self._tell)

    def _tell(self, topic: str, what: dict[str, Any]) -> None:
        if topic in ("JFI", "IFI"):
            name = what["job"] if topic == "JFI" else f"{what['job']}:{what['it']}"
            self._ended.append((name, what["state"]))

    def _wait(self, until: float | None) -> None:
        """Wait for news."""
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutElapsed("not all has ended in time")
        select.select([self._feed.wake], [], [], 1.0 if left is None else min(1.0, left))
        self._look()


def _names(names: str | Iterable[str]) -> "list[str]":
    return [names] if isinstance(names, str) else [*names]


def _hosts(text: str) -> str:
    """QCG's `[HOST:]CORES,…` as the nodes of a pilot: without a host it is this machine."""
    return ",".join(word if ":" in word else f"localhost:{word}" for word in text.split(","))

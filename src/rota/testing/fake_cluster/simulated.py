"""A fake cluster without processes and with a clock of the caller's: for simulations and fast tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rota.testing.fake_cluster.personality import perform
from rota.testing.fake_cluster.world import Caller, End, Job, Submission, World

__all__ = ["SimulatedCluster", "Span"]

RSS_KB = 4096
"""What a simulated job is said to have used."""
Span = tuple[float, int | None, int | None]
"""How long a job takes, and the exit code or signal that it ends with."""


class SimulatedCluster:
    """Commands in, answers out: `run(argv, stdin, now)`; what jobs do is a function of their submission and element."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        lasts: Callable[[Submission, Job], Span],
        faults: Sequence[Mapping[str, Any]] = (),
        user: str = "tester",
        directory: str = "/home/tester/work",
    ) -> None:
        self.world = World(settings)
        self.faults = list(faults)
        self._lasts = lasts
        self._user = user
        self._directory = directory
        self._spans: dict[str, Span] = {}
        self._killed: dict[str, float] = {}
        self._stopped: dict[str, float] = {}

    def run(
        self, argv: Sequence[str], stdin: str | None = None, now: float = 0.0, timeout: float | None = None
    ) -> tuple[int | None, str, str]:
        """Exit code, stdout, stderr; None as code: it had not answered after the timeout and was ended."""
        caller = Caller(self._user, 1001, self._directory, {"HOME": f"/home/{self._user}"}, stdin)
        self.advance(now)
        reply = perform(self.world, self, list(argv), caller, self.faults, timeout)
        if timeout is not None and reply.wait_s >= timeout:
            return None, "", ""
        return reply.code, reply.out, reply.err

    def advance(self, now: float) -> None:
        """Let time pass without a command."""
        self.world.advance(self, now)

    # ---- executor --------------------------------------------------------------------------------------------------

    def start(self, world: World, job: Job, now: float) -> str | None:
        handle = f"{job.serial}-{job.index}-{job.restarts}"
        self._spans[handle] = self._lasts(world.of(job), job)
        return handle

    def due(self, world: World, job: Job) -> float | None:
        if job.handle is None or job.handle in self._stopped:
            return None
        assert job.started is not None
        if job.handle in self._killed:
            return self._killed[job.handle]
        limit = world.of(job).time_s
        end = job.started + self._spans[job.handle][0]
        return end if limit is None else min(end, job.started + limit)

    def look(self, world: World, job: Job, now: float) -> End | None:
        due = self.due(world, job)
        if due is None or due > now or job.handle is None:
            return None
        span, killed = self._spans.pop(job.handle), self._killed.pop(job.handle, None)
        if killed is not None:
            return End(due, None, 15, "exit", 0.01, RSS_KB)
        assert job.started is not None
        if due < job.started + span[0]:
            return End(due, None, 15, "time", 0.01, RSS_KB)
        return End(due, span[1], span[2], "exit", 0.01, RSS_KB)

    def signal(self, world: World, job: Job, name: str, now: float) -> None:
        if job.handle is None:
            return
        if name == "STOP":
            self._stopped[job.handle] = now
        elif name == "CONT" and (since := self._stopped.pop(job.handle, None)) is not None:
            span = self._spans[job.handle]
            self._spans[job.handle] = (span[0] + now - since, span[1], span[2])
        elif name in ("TERM", "URG"):
            self._killed[job.handle] = now
        elif name == "KILL":
            for table in (self._spans, self._killed, self._stopped):
                table.pop(job.handle, None)

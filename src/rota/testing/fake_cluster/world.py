"""The world of a fake cluster: nodes, jobs, time. It prints nothing and starts nothing.

Whoever shows it in the words of a batch system is a personality; whoever makes jobs happen is an executor: real
processes, or a function that says how long a job takes. Imports are few: every fake command loads this file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

__all__ = ["Caller", "Command", "End", "Executor", "Job", "Reply", "Submission", "World"]

DEFAULTS: dict[str, Any] = {
    "personality": "slurm",
    "nodes": 1,
    "cores": 4,
    "memory_mb": 8000,
    "latency_s": 0.0,
    "requeue_delay_s": 1.0,
    "purge_s": 300.0,
    "history": True,
    "accounting": True,
    "accounting_lag_s": 0.0,
    "max_array": 1001,
    "max_jobs": 10000,
    "enforce_limits": True,
    "enforce_memory": False,
    "kill_wait_s": 2.0,
    "cluster": None,
    "queues": None,
    "accounts": None,
    "first_id": 1,
    "refuse_root": False,
    "held_at_first_s": 0.0,
    "idle_slots": 300,
    "tells_limits": True,
}
"""What a cluster is like unless told otherwise; `queues` is a list of {name, default, time_s, usual_s, up}.

Elements of an array are shown as held for their first `held_at_first_s`, as TORQUE does, which also makes no more than
`idle_slots` of them before they can start: of the others nobody knows anything.
"""


class Reply:
    """What a command answers; no code: it hangs."""

    __slots__ = ("code", "err", "out", "wait_s")

    def __init__(self, out: str = "", err: str = "", code: int | None = 0, wait_s: float = 0.0) -> None:
        self.out, self.err, self.code, self.wait_s = out, err, code, wait_s


class Caller:
    """Who runs a command, and where."""

    __slots__ = ("cwd", "environ", "stdin", "uid", "user")

    def __init__(self, user: str, uid: int, cwd: str, environ: Mapping[str, str], stdin: str | None) -> None:
        self.user, self.uid, self.cwd, self.environ, self.stdin = user, uid, cwd, environ, stdin


class End:
    """How a job's process ended, as its executor knows it."""

    __slots__ = ("at", "code", "cpu_s", "rss_kb", "signal", "why")

    def __init__(
        self, at: float, code: int | None, signal: int | None, why: str = "exit", cpu_s: float = 0.0, rss_kb: int = 0
    ) -> None:
        self.at, self.code, self.signal, self.why, self.cpu_s, self.rss_kb = at, code, signal, why, cpu_s, rss_kb


class Record:
    """Keeps its slots in a list, for the state file."""

    __slots__: tuple[str, ...] = ()

    def row(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]

    def load(self, row: Iterable[Any]) -> None:
        for name, value in zip(self.__slots__, row, strict=True):
            setattr(self, name, value)


class Submission(Record):
    """What one submit command asked for: an array, or one job."""

    __slots__ = (
        "account",
        "array",
        "at",
        "comment",
        "cores",
        "cwd",
        "environ",
        "error",
        "gid",
        "host",
        "indices",
        "memory_mb",
        "name",
        "nodes",
        "number",
        "options",
        "output",
        "queue",
        "requeue",
        "script",
        "serial",
        "shown_array",
        "throttle",
        "time_s",
        "uid",
        "user",
        "wanted_nodes",
        "words",
    )

    def __init__(self) -> None:
        self.serial = self.number = 0
        self.name, self.user, self.uid, self.gid = "job", "root", 0, 0
        self.queue, self.account, self.comment = "", None, None
        self.cores, self.nodes, self.memory_mb, self.time_s = 1, 1, 0, None
        self.requeue = True
        self.script = ""
        self.cwd, self.output, self.error = "/", None, None
        self.environ: dict[str, str] = {}
        self.indices: list[int] = []
        self.array = False
        self.shown_array: str | None = None
        self.throttle: int | None = None
        self.wanted_nodes: list[str] = []
        self.host = "login1"
        self.words: list[str] = []
        self.options: dict[str, str] = {}
        self.at = 0.0

    account: str | None
    comment: str | None
    time_s: int | None
    output: str | None
    error: str | None


class Job(Record):
    """One job, or one element of an array."""

    __slots__ = (
        "by",
        "code",
        "cpu_s",
        "eligible",
        "ended",
        "forced",
        "handle",
        "hold",
        "index",
        "mark",
        "nodes",
        "number",
        "past",
        "restarts",
        "rss_kb",
        "serial",
        "signal",
        "started",
        "state",
        "suspended",
        "touched",
        "why",
    )

    def __init__(self, serial: int, number: int, index: int | None, eligible: float) -> None:
        self.serial, self.number, self.index, self.eligible = serial, number, index, eligible
        self.state = "pending"
        """pending, running, suspended, ending (its end was asked for), over."""
        self.why: str | None = None
        """How it ended: exit, cancelled, time, memory, node, preempt, launch; also while ending."""
        self.forced: str | None = None
        """A native state that a test wants shown whatever is true."""
        self.hold: str | None = None
        self.nodes: list[str] = []
        self.started: float | None = None
        self.ended: float | None = None
        self.suspended: float | None = None
        self.touched = eligible
        self.code: int | None = None
        self.signal: int | None = None
        self.by: str | None = None
        """Who deleted it."""
        self.restarts = 0
        self.handle: str | None = None
        self.past: list[list[Any]] = []
        """Attempts that the cluster itself began anew: why, started, ended, nodes."""
        self.cpu_s, self.rss_kb = 0.0, 0
        self.mark: str | None = None
        """A word for the personality: why it is pending, or was marked."""

    @property
    def live(self) -> bool:
        """Whether the job uses a node."""
        return self.state in ("running", "suspended", "ending")


class Executor(Protocol):
    """Makes jobs happen."""

    def start(self, world: "World", job: Job, now: float) -> str | None:
        """Begin a job; a handle to know it by, or None: it cannot be started."""
        ...

    def look(self, world: "World", job: Job, now: float) -> End | None:
        """How a job ended, if it has by now."""
        ...

    def due(self, world: "World", job: Job) -> float | None:
        """When a job will end, if that is known."""
        ...

    def signal(self, world: "World", job: Job, name: str, now: float) -> None:
        """Send TERM (which becomes KILL after a while), KILL, STOP, CONT or another signal to all of its processes."""
        ...


Command = Callable[["World", Executor, list[str], Caller], Reply]


class World:
    """Everything that is true in a fake cluster."""

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        unknown = set(settings or ()) - set(DEFAULTS)
        if unknown:
            raise ValueError(f"a fake cluster has no settings {sorted(unknown)}; it has {sorted(DEFAULTS)}")
        self.settings: dict[str, Any] = {**DEFAULTS, **(settings or {})}
        count = int(self.settings["nodes"])
        self.nodes: dict[str, list[Any]] = {f"n{number}": [True, ""] for number in range(1, count + 1)}
        """Whether it is up, and if not why."""
        self.now = 0.0
        self.calls: dict[str, int] = {}
        self.next_serial, self.next_number = 1, int(self.settings["first_id"])
        self.submissions: dict[int, Submission] = {}
        self.jobs: list[Job] = []
        self.down: str | None = None
        """None; or `refused` or `hung`: what the cluster's daemon is."""

    # ---- kept in a file --------------------------------------------------------------------------------------------

    def data(self) -> dict[str, Any]:
        """The world as JSON has it."""
        return {
            "settings": self.settings,
            "nodes": self.nodes,
            "now": self.now,
            "calls": self.calls,
            "next": [self.next_serial, self.next_number],
            "down": self.down,
            "submissions": [each.row() for each in self.submissions.values()],
            "jobs": [job.row() for job in self.jobs],
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "World":
        world = cls(data["settings"])
        world.nodes, world.now, world.calls = data["nodes"], data["now"], data["calls"]
        world.next_serial, world.next_number = data["next"]
        world.down = data["down"]
        for row in data["submissions"]:
            submission = Submission()
            submission.load(row)
            world.submissions[submission.serial] = submission
        for row in data["jobs"]:
            job = Job(0, 0, None, 0.0)
            job.load(row)
            world.jobs.append(job)
        return world

    # ---- asking ----------------------------------------------------------------------------------------------------

    def of(self, job: Job) -> Submission:
        """The submission of a job."""
        return self.submissions[job.serial]

    def find(self, number: int, index: int | None = None) -> list[Job]:
        """The newest submission with that number, or one element; a raw number of a started element finds that one."""
        chosen = [each for each in self.submissions.values() if each.number == number]
        if chosen:
            serial = chosen[-1].serial
            return [job for job in self.jobs if job.serial == serial and (index is None or job.index == index)]
        return [job for job in self.jobs if job.number == number and index is None][-1:]

    def listed(self) -> Iterator[Job]:
        """Jobs that are not forgotten yet."""
        return (job for job in self.jobs if not self.purged(job))

    def purged(self, job: Job) -> bool:
        """Whether listings have forgotten the job."""
        if job.state != "over" or job.ended is None or job.forced is not None:
            return False
        return self.now - job.ended >= float(self.settings["purge_s"])

    def accounted(self, job: Job) -> bool:
        """Whether the accounting knows what last happened to the job."""
        return bool(self.settings["accounting"]) and self.now - job.touched >= float(self.settings["accounting_lag_s"])

    def queue(self, name: str | None) -> dict[str, Any] | None:
        """A queue by name; None as name: the default."""
        for queue in self.queues():
            if queue["name"] == name or (name is None and queue.get("default")):
                return queue
        return None

    def queues(self) -> list[dict[str, Any]]:
        named = self.settings["queues"]
        if named is None:
            name = {"slurm": "main", "lsf": "normal", "pbs": "workq", "torque": "batch", "sge": "all.q"}
            return [{"name": name[self.settings["personality"]], "default": True, "time_s": None, "up": True}]
        return list(named)

    def free(self) -> dict[str, tuple[int, int]]:
        """Cores and MB that are free on nodes that are up."""
        cores, memory = int(self.settings["cores"]), int(self.settings["memory_mb"])
        out = {name: (cores, memory) for name, (up, _) in self.nodes.items() if up}
        for job in self.jobs:
            if job.live:
                submission = self.of(job)
                for name in job.nodes:
                    if name in out:
                        had = out[name]
                        out[name] = (had[0] - submission.cores, had[1] - submission.memory_mb)
        return out

    # ---- what happens ----------------------------------------------------------------------------------------------

    def submit(self, submission: Submission, now: float) -> Submission:
        """Take a submission into the queue."""
        submission.serial, submission.number, submission.at = self.next_serial, self.next_number, now
        self.next_serial += 1
        self.next_number += 1
        self.submissions[submission.serial] = submission
        held_s = float(self.settings["held_at_first_s"]) if submission.array else 0.0
        eligible = now + max(held_s, float(self.settings["latency_s"]))
        for index in submission.indices if submission.array else [None]:
            job = Job(submission.serial, submission.number, index, eligible)
            job.touched = now
            job.mark = "fresh" if held_s else None
            if "hold" in submission.options:
                job.hold = "user"
            self.jobs.append(job)
        return submission

    def advance(self, executor: Executor, now: float) -> None:
        """Let everything happen that is due until now, in its order."""
        while True:
            times = [due for job in self.jobs if job.live and (due := executor.due(self, job)) is not None]
            times += [job.eligible for job in self.jobs if job.state == "pending" and job.eligible > self.now]
            step = min((each for each in times if each > self.now), default=now)
            self.now = max(self.now, min(step, now))
            for job in self.jobs:
                if job.mark == "fresh" and self.now - job.touched >= float(self.settings["held_at_first_s"]):
                    job.mark = None
            for job in self.jobs:
                if job.live and (end := executor.look(self, job, self.now)) is not None:
                    self._over(job, end)
            self._start_due(executor)
            if self.now >= now:
                return

    def _over(self, job: Job, end: End) -> None:
        asked = job.why if job.state == "ending" else None
        job.state, job.ended, job.touched = "over", min(end.at, self.now), self.now
        job.code, job.signal = end.code, end.signal
        job.cpu_s, job.rss_kb = end.cpu_s, end.rss_kb
        job.why = asked or end.why
        job.handle = None
        if self.settings["personality"] == "sge" and asked is None:
            self._again_or_error(job)

    def _again_or_error(self, job: Job) -> None:
        """Grid Engine: exit status 99 begins a job anew; 100, or a start that failed, leaves it in an error state."""
        if (job.why, job.code) == ("exit", 99):
            job.past.append(["exit99", job.started, job.ended, job.nodes])
            job.restarts += 1
        elif (job.why, job.code) != ("exit", 100) and job.why != "launch":
            return
        else:
            job.mark, job.hold = "error", "error"
        job.state, job.why, job.nodes = "pending", None, []
        job.started = job.ended = job.code = None
        job.eligible = self.now + float(self.settings["requeue_delay_s"])

    def _start_due(self, executor: Executor) -> None:
        free: dict[str, tuple[int, int]] | None = None
        full: set[tuple[object, ...]] = set()
        running: dict[int, int] = {}
        for job in self.jobs:
            if job.live:
                running[job.serial] = running.get(job.serial, 0) + 1
        for job in self.jobs:
            if job.state != "pending" or job.hold or job.forced or job.eligible > self.now:
                continue
            submission = self.of(job)
            queue = self.queue(submission.queue)
            if queue is not None and not queue.get("up", True):
                job.mark = "queue"
                continue
            if submission.throttle and running.get(job.serial, 0) >= submission.throttle:
                job.mark = "throttle"
                continue
            if free is None:
                free = self.free()
            shape = (submission.cores, submission.memory_mb, submission.nodes, tuple(submission.wanted_nodes))
            fits = [] if shape in full else self._room(free, submission)
            if len(fits) < submission.nodes:
                full.add(shape)
                job.mark = "resources"
                continue
            self._start(executor, job, submission, fits)
            running[job.serial] = running.get(job.serial, 0) + 1
            for name in job.nodes:
                had = free[name]
                free[name] = (had[0] - submission.cores, had[1] - submission.memory_mb)

    def _room(self, free: Mapping[str, tuple[int, int]], submission: Submission) -> list[str]:
        """Nodes that have room for a job, in their order; not more than it needs."""
        fits: list[str] = []
        for name, (cores, memory) in free.items():
            if cores >= submission.cores and memory >= submission.memory_mb:
                if not submission.wanted_nodes or name in submission.wanted_nodes:
                    fits.append(name)
                if len(fits) == submission.nodes:
                    break
        return fits

    def _start(self, executor: Executor, job: Job, submission: Submission, nodes: list[str]) -> None:
        job.nodes, job.started, job.touched, job.mark = nodes, self.now, self.now, None
        if submission.array and job.number == submission.number and self.settings["personality"] == "slurm":
            job.number = self.next_number
            self.next_number += 1
        job.handle = executor.start(self, job, self.now)
        if job.handle is None:
            self._over(job, End(self.now, None, None, "launch"))
        else:
            job.state = "running"

    def cancel(self, executor: Executor, job: Job, by: str, why: str = "cancelled") -> bool:
        """End a job; false if it is over already."""
        if job.state == "over":
            return False
        job.by, job.touched = by, self.now
        if job.state == "pending":
            job.state, job.why, job.ended = "over", why, self.now
            return True
        if job.state == "suspended":
            executor.signal(self, job, "CONT", self.now)
        job.state, job.why = "ending", why
        executor.signal(self, job, "TERM", self.now)
        return True

    def suspend(self, executor: Executor, job: Job) -> bool:
        if job.state != "running":
            return False
        executor.signal(self, job, "STOP", self.now)
        job.state, job.suspended, job.touched = "suspended", self.now, self.now
        return True

    def resume(self, executor: Executor, job: Job) -> bool:
        if job.state != "suspended":
            return False
        executor.signal(self, job, "CONT", self.now)
        job.state, job.suspended, job.touched = "running", None, self.now
        return True

    def requeue(self, executor: Executor, job: Job, why: str = "requeue") -> bool:
        """End the job's attempt at once, and let it wait again under the same id."""
        if job.state == "pending":
            return False
        if job.live:
            executor.signal(self, job, "KILL", self.now)
        job.past.append([why, job.started, job.ended or self.now, job.nodes])
        job.state, job.why, job.nodes, job.handle = "pending", None, [], None
        job.started = job.ended = job.suspended = job.code = job.signal = None
        job.restarts += 1
        job.eligible, job.touched, job.mark = self.now + float(self.settings["requeue_delay_s"]), self.now, "requeued"
        return True

    def preempt(self, executor: Executor, job: Job) -> None:
        if self.of(job).requeue:
            self.requeue(executor, job, "preempt")
        else:
            self._kill_now(executor, job, "preempt")

    def fail_node(self, executor: Executor, name: str, reason: str = "Not responding") -> None:
        """Let a node lose its power: what ran there is lost, or begun anew where that is allowed."""
        self.nodes[name] = [False, reason]
        for job in self.jobs:
            if job.live and name in job.nodes:
                if self.of(job).requeue:
                    self.requeue(executor, job, "node")
                else:
                    self._kill_now(executor, job, "node")

    def restart_node(self, executor: Executor, name: str) -> None:
        """Let a node's daemon die and come back at once: what ran there is begun anew under its id, unseen waiting."""
        again = [job for job in self.jobs if job.live and name in job.nodes]
        for job in again:
            self.requeue(executor, job, "node")
            job.eligible, job.mark = self.now, None
        self._start_due(executor)

    def mend_node(self, name: str) -> None:
        self.nodes[name] = [True, ""]

    def _kill_now(self, executor: Executor, job: Job, why: str) -> None:
        executor.signal(self, job, "KILL", self.now)
        job.state, job.why, job.ended, job.touched, job.handle = "over", why, self.now, self.now, None
        job.code = job.signal = None

    def run_out_of_memory(self, executor: Executor, job: Job) -> None:
        """Kill the job for its use of memory."""
        self._kill_now(executor, job, "memory")

    def run_out_of_time(self, executor: Executor, job: Job) -> None:
        """Kill the job for its time limit."""
        self.cancel(executor, job, "limit", "time")

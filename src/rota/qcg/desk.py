"""Answers QCG's requests with what a manager of rota says: the same words in, the same shapes out."""

import datetime
import getpass
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from rota.model.errors import NotFoundError, RotaError
from rota.qcg.registry import BATCH, ENDED, STATES, Ended, Entry, Registry, qcg_state
from rota.qcg.requests import Description, Request, WrongRequestError, read_request, request_variables, substitute
from rota.qcg.translating import Room, make_submission, too_large, translate
from rota.submission import Submission
from rota.wire.client import LostError

__all__ = ["Asker", "Desk", "Publisher"]

Answer = dict[str, Any]
PAGE = 1_000
ONE_BY_ONE = 32
"""Jobs whose states are asked for one by one; of more, all that run are listed."""


class Asker(Protocol):
    """What is used of a client of the manager."""

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Ask one thing."""

    def send(self, submission: Submission) -> Any:
        """Queue a submission."""


Publisher = Callable[[str, dict[str, Any]], None]
"""Tells subscribers of an event: its topic, and what happened."""


class Desk:
    """Takes requests, one at a time, and turns what ends into events."""

    def __init__(self, client: Asker, registry: Registry, room: Room, follow: Callable[[list[int]], None]) -> None:
        self._client = client
        self.registry = registry
        self._room = room
        self._follow = follow
        self.instance = f"{socket.gethostname()}.{os.getpid()}"
        self.addresses: tuple[str, str | None] = ("", None)
        """Where requests are taken, and where events are published."""
        self.started = datetime.datetime.now()
        self.finishing = False
        """Whether `finish` was asked for."""
        self.finish_when_done = False
        self._never: list[Ended] = []
        """Jobs that ended when they were submitted, and of which nobody was told yet."""
        rows = self._pages("status", "batches", lambda row: row["name"].startswith(BATCH), sel=[])
        if found := registry.find_batches(rows):
            follow(found)

    @property
    def done(self) -> bool:
        """Whether nothing is left to serve for."""
        return self.finishing or (self.finish_when_done and not self.registry.left)

    def answer(self, data: Any) -> Answer:
        """The response to one request."""
        number = self.registry.requests + 1
        try:
            request = read_request(data, request_variables(number, datetime.datetime.now()))
            return {"code": 0, **self._answers[request.name](self, request)}
        except WrongRequestError as error:
            return {"code": 1, "message": f"Invalid request: {error}"}
        except RotaError as error:
            return {"code": 1, "message": str(error)}

    def take(self, rows: Iterable[Mapping[str, Any]], publish: Publisher) -> None:
        """Take rows of jobs that are settled, and tell of what is new."""
        left = self.registry.left or len(self._never)
        never, self._never = self._never, []
        for ended in (*never, *self.registry.take(rows)):
            self._tell(ended, publish)
        if left and not self.registry.left:
            publish("NOJ", {"manager": self.instance})

    def _tell(self, ended: Ended, publish: Publisher) -> None:
        what: dict[str, Any] = {"manager": self.instance, "job": ended.name, "state": ended.state}
        kind = "J"
        if ended.iteration is not None:
            what["it"] = ended.iteration
            kind = "I"
        publish(f"{kind}ST", what)
        publish(f"{kind}FI", what)

    # ---- submit ------------------------------------------------------------------------------------------------------

    def _submit(self, request: Request) -> Answer:
        jobs = request.jobs
        for job in jobs:
            if job.name in self.registry.entries:
                raise WrongRequestError(f"{job.path}.name", f"Job {job.name} already exist")
        failed = too_large(jobs, self._room)
        unsent = self._omitted(jobs, failed)
        entries, at = [], 0
        for job in jobs:
            entry = Entry(job.name, at, job.size, None if job.iteration is None else job.iteration.start)
            entry.why = unsent.get(job.name, "")
            entry.never = "FAILED" if job.name in failed else "OMITTED"
            at += 0 if entry.why else job.size
            entries.append(entry)
        name = BATCH + os.urandom(6).hex()
        sent = [job for job in jobs if job.name not in unsent]
        if sent:
            names = {job.name for job in sent}
            made = translate(sent, self._room, lambda word: self._target(word, names))
            submission = make_submission(name, made)
            _make_directories(made.directories)
        self.registry.announce(name, entries)
        batch = 0
        if sent:
            try:
                batch = int(self._client.send(submission).id)
            except LostError:
                raise  # it may have arrived: another pilot will see
            except RotaError:
                self.registry.forget(name)
                raise
        for entry in self.registry.arrived(name, batch):
            if entry.unsent:
                indices = () if entry.start is None else range(entry.start, entry.start + entry.count)
                self._never += [Ended(entry.name, index, entry.never) for index in (*indices, None)]
        if batch:
            self._follow([batch])
        data: Answer = {"submitted": len(jobs), "jobs": [job.name for job in jobs]}
        return {"message": f"{len(jobs)} jobs submitted", "data": data}

    def _omitted(self, jobs: Sequence[Description], failed: Mapping[str, str]) -> dict[str, str]:
        """Jobs that wait for what nobody submitted or can never run, with why; also these, and who waits for them."""
        named = {job.name: job for job in jobs}
        out = dict(failed)
        growing = True
        while growing:
            before = len(out)
            for job in jobs:
                if job.name not in out and (why := self._hopeless(job, named, out)):
                    out[job.name] = why
            growing = len(out) > before
        return out

    def _hopeless(self, job: Description, named: Mapping[str, Description], omitted: Mapping[str, str]) -> str:
        for at, given in enumerate(job.after):
            target, _, index = given.partition(":")
            where = f"{job.path}.dependencies.after[{at}]"
            entry, other = self.registry.entries.get(target), named.get(target)
            if other is None and entry is None:
                return f"it waits for '{target}', and no such job was submitted"
            if target in omitted or (entry is not None and entry.unsent):
                return f"it waits for '{target}', which will never run"
            if target == job.name and not index:
                raise WrongRequestError(where, f"{job.name} waits for itself and could never run")
            if not index:
                continue
            for known in _iterations(job, index):
                has = entry.has(known) if entry is not None else _has(other, known)
                if not has:
                    raise WrongRequestError(where, f"{target} has no iteration {known}")
        return ""

    def _target(self, word: str, own: set[str]) -> str | None:
        """The selector of what is waited for; None: it is of the same request."""
        name, _, index = word.partition(":")
        if name in own:
            return None
        return self.registry.entries[name].selector(int(index) if index else None)

    # ---- looking -----------------------------------------------------------------------------------------------------

    def _job_status(self, request: Request) -> Answer:
        wanted = [self._find(name) for name in request.names]
        states = self._states(wanted)
        rows = {
            name: {"status": 0, "data": {"jobName": name, "status": state}}
            for name, state in zip(request.names, states, strict=True)
        }
        return {"data": {"jobs": rows}}

    def _find(self, name: str) -> tuple[Entry, int | None]:
        """A job, or one iteration of one, by its name."""
        base, colon, index = name.partition(":")
        entry = self.registry.entries.get(base)
        if entry is None:
            raise NotFoundError(f"Job '{name}' doesn't exist")
        if not colon:
            return entry, None
        if not index.isascii() or not index.isdigit() or not entry.has(int(index[:18])):
            raise NotFoundError(f"Unknown iteration {index[:40]} for job {base}")
        return entry, int(index)

    def _states(self, wanted: Sequence[tuple[Entry, int | None]]) -> list[str]:
        """The states of jobs and iterations, in QCG's words."""
        known = [_known_state(entry, iteration) for entry, iteration in wanted]
        unknown = [at for at, state in enumerate(known) if state is None]
        running = self._running() if len(unknown) > ONE_BY_ONE else None
        for at in unknown:
            entry, iteration = wanted[at]
            if running is None:
                counts = self._client.ask("count", sel=[entry.selector(iteration)])["counts"]
                known[at] = qcg_state(counts, entry.cancelled and iteration is None)
            else:
                known[at] = _live_state(entry, iteration, running.get(entry.batch, {}))
        return [state or "QUEUED" for state in known]

    def _running(self) -> dict[int, dict[int, str]]:
        """Batch → position → QCG's state, of all that is starting or running."""
        out: dict[int, dict[int, str]] = {}
        for row in self._pages("jobs", "jobs", sel=[":active"], limit=PAGE):
            batch, _, index = row["id"].partition(".")
            out.setdefault(int(batch), {})[int(index) - 1] = STATES[row["state"]]
        return out

    def _pages(
        self, op: str, field: str, keep: Callable[[dict[str, Any]], bool] | None = None, **arguments: Any
    ) -> Iterator[dict[str, Any]]:
        after: Any = 0 if op == "status" else None
        while True:
            page = self._client.ask(op, after=after, **arguments)
            yield from (row for row in page[field] if keep is None or keep(row))
            after = page.get("next")
            if after is None:
                return

    def _list_jobs(self, request: Request) -> Answer:
        entries = list(self.registry.entries.values())
        jobs: dict[str, Any] = {}
        queued = 0
        for entry, state in zip(entries, self._states([(entry, None) for entry in entries]), strict=True):
            row: dict[str, Any] = {"status": state}
            if entry.why:
                row["messages"] = entry.why
            if state == "QUEUED":
                row["inQueue"] = queued
                queued += 1
            jobs[entry.name] = row
        return {"data": {"length": len(jobs), "jobs": jobs}}

    def _job_info(self, request: Request) -> Answer:
        wanted = [self._find(name) for name in request.names]
        states = self._states(wanted)
        rows = {}
        for name, (entry, iteration), state in zip(request.names, wanted, states, strict=True):
            data: dict[str, Any] = {"jobName": name, "status": state}
            if entry.start is not None and iteration is None:
                data |= self._children(entry, request.with_children)
            elif entry.unsent:
                data["messages"] = entry.why
            else:
                (row,) = self._client.ask("jobs", sel=[entry.selector(iteration)], limit=1)["jobs"] or [None]
                if row is not None:
                    data |= self._about(row)
            rows[name] = {"status": 0, "data": data}
        return {"data": {"jobs": rows}}

    def _children(self, entry: Entry, rows: bool) -> dict[str, Any]:
        """The iterations of a job: how many, and with `rows` each of them."""
        assert entry.start is not None
        failed = sum(1 for number in entry.states if number > 1)
        done = entry.count - entry.left
        iterations = {"start": entry.start, "stop": entry.start + entry.count, "total": entry.count}
        out: dict[str, Any] = {"iterations": {**iterations, "finished": done, "failed": failed}}
        if entry.why:
            out["messages"] = entry.why
        if rows and entry.unsent:
            out["childs"] = [{"iteration": entry.start + at, "state": entry.never} for at in range(entry.count)]
        elif rows:
            out["childs"] = children = []
            for row in self._pages("jobs", "jobs", sel=[entry.selector()], limit=PAGE):
                index = int(row["id"].partition(".")[2]) - 1 - entry.first + entry.start
                about = self._about(row)
                children.append({"iteration": index, "state": STATES[row["state"]], "runtime": about["runtime"]})
        return out

    def _about(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What `jobInfo` tells of one job of rota."""
        runtime: dict[str, Any] = {"wd": row["cwd"]}
        if row["host"] and row.get("cores"):
            hosts = zip(row["host"].split(","), row["cores"], strict=False)
            runtime["allocation"] = ",".join(f"{host}[{_places(cores)}]" for host, cores in hosts)
        if row["exit_code"] is not None or row["signal"] is not None:
            runtime["exit_code"] = row["exit_code"] if row["exit_code"] is not None else -row["signal"]
        elif row["state"] == "FAILED":
            runtime["exit_code"] = -1
        if row["wall_s"] is not None:
            runtime["rtime"] = _run_time(row["wall_s"])
        if row["state"] == "RUNNING" and (live := self._client.ask("live", sel=[row["id"]], limit=1)["jobs"]):
            runtime["pid"], runtime["pname"] = live[0]["pid"], os.path.basename(str(row["command"]).split(" ")[0])
        history = "".join(f"\n{_moment(at)}: {state}" for at, state in _history(row))
        out: dict[str, Any] = {"runtime": {**runtime, "history": history}, "history": history}
        if row["reason"]:
            out["messages"] = row["reason"]
        return out

    def _resources(self, request: Request) -> Answer:
        used = self._used()
        room = self._room
        return {
            "data": {
                "total_nodes": len(room.nodes),
                "total_cores": room.cores,
                "used_cores": used,
                "free_cores": max(0, room.cores - used),
            }
        }

    def _used(self) -> int:
        rows = self._pages("jobs", "jobs", sel=[":active"], limit=PAGE)
        return round(sum(sum(row.get("cores") or ()) for row in rows))

    def _status(self, request: Request) -> Answer:
        if request.all_finished:
            return {"data": {"AllJobsFinished": not self.registry.left}}
        resources = self._resources(request)["data"]
        now = datetime.datetime.now()
        address, publisher = self.addresses
        system = {
            "InstanceId": self.instance, "Started": str(self.started), "Generated": str(now),
            "Uptime": str(now - self.started), "Zmqaddress": address, "Ifaces": ["ZMQ"] if address else [],
            "StatusPublisher": publisher, "Host": socket.gethostname(), "Account": getpass.getuser(),
            "Wd": self._room.root, "PythonVersion": sys.version.replace("\n", " "), "Python": sys.executable,
            "Platform": sys.platform,
        }  # fmt: skip
        names = {"TotalNodes": "total_nodes", "TotalCores": "total_cores", "UsedCores": "used_cores"}
        names["FreeCores"] = "free_cores"
        jobs, iterations = self._statistics()
        return {
            "data": {
                "System": system,
                "Resources": {ours: resources[theirs] for ours, theirs in names.items()},
                "JobStats": _counted(jobs, "Jobs"),
                "IterationStats": _counted(iterations, "Iterations"),
            }
        }

    def _statistics(self) -> tuple[list[str], list[str]]:
        """The states of all jobs, and those of all iterations."""
        entries = list(self.registry.entries.values())
        jobs = self._states([(entry, None) for entry in entries])
        running = self._running()
        iterations = []
        for entry in entries:
            live = running.get(entry.batch, {})
            for at, number in enumerate(entry.states):
                iterations.append(ENDED[number - 1] if number else live.get(entry.first + at, "QUEUED"))
        return jobs, iterations

    # ---- changing ----------------------------------------------------------------------------------------------------

    def _cancel(self, request: Request) -> Answer:
        def cancel(entry: Entry, iteration: int | None) -> None:
            if _known_state(entry, iteration) is not None:
                raise NotFoundError(f"{entry.name} is already finished")
            self._change("kill", entry.selector(iteration))
            if iteration is None:
                self.registry.cancel([entry.name])

        done, errors = self._each(request.names, cancel)
        return {"data": {"canceled": done, **errors}}

    def _remove(self, request: Request) -> Answer:
        def remove(entry: Entry, iteration: int | None) -> None:
            if iteration is not None:
                raise NotFoundError("only whole jobs can be removed, not an iteration")
            if entry.left:
                raise NotFoundError(f"{entry.name} is not finished")
            if not entry.unsent:
                self._change("remove", entry.selector())
            self.registry.remove([entry.name])

        done, errors = self._each(request.names, remove)
        return {"data": {"removed": done, **errors}}

    def _change(self, op: str, selector: str) -> None:
        more = {"confirm_dead": False} if op == "kill" else {}
        answer = self._client.ask(op, sel=[selector], all=False, dry_run=False, **more)
        if not answer["jobs"] and answer["skipped"]:
            raise NotFoundError("; ".join(str(skipped["reason"]) for skipped in answer["skipped"]))

    def _each(
        self, names: Sequence[str], change: Callable[[Entry, int | None], None]
    ) -> tuple[int, dict[str, dict[str, str]]]:
        """Change jobs one by one; how many, and what was in the way of the others."""
        done, errors = 0, dict[str, str]()
        for name in names:
            try:
                change(*self._find(name))
                done += 1
            except LostError:
                raise
            except RotaError as error:
                errors[name] = str(error)
        return done, {"errors": errors} if errors else {}

    def _control(self, request: Request) -> Answer:
        if self.finish_when_done:
            raise NotFoundError("Finish request already requested")
        self.finish_when_done = True
        return {"message": "finishAfterAllTasksDone command accepted"}

    def _finish(self, request: Request) -> Answer:
        self.finishing = True
        return {"data": {"when": "0s"}}

    _answers: dict[str, Callable[["Desk", Request], Answer]] = {
        "submit": _submit,
        "listJobs": _list_jobs,
        "jobStatus": _job_status,
        "jobInfo": _job_info,
        "cancelJob": _cancel,
        "removeJob": _remove,
        "resourcesInfo": _resources,
        "status": _status,
        "control": _control,
        "finish": _finish,
    }


def _make_directories(paths: Iterable[str]) -> None:
    for path in sorted(paths):
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise WrongRequestError("execution.wd", f"{path} cannot be made: {error.strerror or error}") from None


def _iterations(job: Description, index: str) -> Iterator[int]:
    """The iterations of another job that this one's wait for, as `job:INDEX` says."""
    count = 1 if "$" not in index or job.iteration is None else job.size
    for at in range(count):
        iteration = job.iteration
        known = {} if iteration is None else {"it": str(iteration.start + at), "itval": iteration.value(at)}
        word = substitute(index, known)
        if not word.isascii() or not word.isdigit() or len(word) > 18:
            raise WrongRequestError(f"{job.path}.dependencies.after", f"'{word[:40]}' is no number of an iteration")
        yield int(word)


def _has(job: Description | None, iteration: int) -> bool:
    if job is None or job.iteration is None:
        return False
    return job.iteration.start <= iteration < job.iteration.start + job.iteration.size


def _known_state(entry: Entry, iteration: int | None) -> str | None:
    """The state of a job or iteration that has ended."""
    if iteration is None:
        return entry.state
    assert entry.start is not None
    number = entry.states[iteration - entry.start]
    return ENDED[number - 1] if number else None


def _live_state(entry: Entry, iteration: int | None, running: Mapping[int, str]) -> str:
    """The state of what has not ended, by what runs of its batch."""
    if iteration is not None and entry.start is not None:
        return running.get(entry.first + iteration - entry.start, "QUEUED")
    found = {running[pos] for pos in range(entry.first, entry.first + entry.count) if pos in running}
    if entry.left < entry.count:
        return "EXECUTING"
    return next((state for state in ("EXECUTING", "SCHEDULED") if state in found), "QUEUED")


def _counted(states: Sequence[str], what: str) -> dict[str, int]:
    def count(*wanted: str) -> int:
        return sum(states.count(state) for state in wanted)

    return {
        f"Total{what}": len(states),
        f"InSchedule{what}": count("QUEUED", "SCHEDULED"),
        f"Failed{what}": count("FAILED", "CANCELED", "OMITTED"),
        f"Finished{what}": count("SUCCEED"),
        f"Executing{what}": count("EXECUTING"),
    }


def _places(cores: float) -> str:
    """Places for cores, by number; which cores of the node these are is not told."""
    return ":".join(map(str, range(max(1, round(cores)))))


def _run_time(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02}:{rest:09.6f}"


def _moment(at: float) -> str:
    return datetime.datetime.fromtimestamp(at).isoformat(" ", "microseconds")


def _history(row: Mapping[str, Any]) -> Iterator[tuple[float, str]]:
    if row["started"] is not None:
        yield row["started"], "EXECUTING"
    if row["ended"] is not None:
        yield row["ended"], STATES[row["state"]]

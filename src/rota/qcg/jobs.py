"""A group of job descriptions, as QCG's client has it."""

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from rota.model.errors import UsageError

__all__ = ["Jobs"]

_EXECUTION = (
    "exec",
    "script",
    "args",
    "stdin",
    "stdout",
    "stderr",
    "wd",
    "modules",
    "venv",
    "model",
    "model_opts",
    "env",
)
_RESOURCES = ("numCores", "numNodes", "wt", "nodeCrs")


class Jobs:
    """Descriptions of jobs to be submitted together, by name and in order."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, Any]] = {}

    def add(self, attributes: Mapping[str, Any] | None = None, **more: Any) -> "Jobs":
        """Add a job in the flat form: `name`, `exec`, `args`, `numCores`, `iteration`, `after` …"""
        given = {**(attributes or {}), **more}
        job: dict[str, Any] = {"name": given.pop("name", None) or str(uuid.uuid4())}
        for part, keys in (("execution", _EXECUTION), ("resources", _RESOURCES)):
            if found := {key: given.pop(key) for key in keys if key in given}:
                job[part] = found
        args = job.get("execution", {}).get("args")
        if isinstance(args, str):
            job["execution"]["args"] = [args]
        if "iteration" in given:
            iteration = given.pop("iteration")
            if isinstance(iteration, list):
                iteration = {"values": iteration}
            job["iteration"] = {"start": 0, "stop": iteration} if isinstance(iteration, int) else iteration
        if "after" in given:
            after = given.pop("after")
            job["dependencies"] = {"after": [after] if isinstance(after, str) else list(after)}
        if given:
            raise UsageError(f"job {job['name']}: '{next(iter(given))}' is unknown")
        return self.add_std(job)

    def add_std(self, attributes: Mapping[str, Any] | None = None, **more: Any) -> "Jobs":
        """Add a job in the form of request files: `name`, `execution`, `resources`, `iteration`, `dependencies`."""
        job = {**(attributes or {}), **more}
        name = job.setdefault("name", str(uuid.uuid4()))
        execution = job.get("execution")
        if not isinstance(execution, dict) or not (execution.get("exec") or execution.get("script")):
            raise UsageError(f"job {name}: execution has neither exec nor script")
        if name in self._jobs:
            raise UsageError(f"job {name} is in the list already")
        self._jobs[name] = job
        return self

    def remove(self, name: str) -> None:
        """Take a job out."""
        if self._jobs.pop(name, None) is None:
            raise UsageError(f"job {name} is not in the list")

    def clear(self) -> int:
        """Take all out; how many there were."""
        count = len(self._jobs)
        self._jobs.clear()
        return count

    def job_names(self) -> list[str]:
        """The names, in order."""
        return list(self._jobs)

    def jobs(self) -> list[dict[str, Any]]:
        """The descriptions, in order, as a request has them."""
        return list(self._jobs.values())

    ordered_job_names, ordered_jobs = job_names, jobs

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    def load_from_file(self, path: str) -> None:
        """Add all jobs of a file: a JSON list of descriptions."""
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}: {error}") from None
        if not isinstance(found, list):
            raise UsageError(f"{path}: it must be a JSON list of jobs")
        for job in found:
            if not isinstance(job, dict):
                raise UsageError(f"{path}: a job must be an object")
            self.add_std(job)

    def save_to_file(self, path: str) -> None:
        """Write all jobs to a file."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.jobs(), file, indent=2)

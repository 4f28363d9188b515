"""What jobs write about themselves, and the accounting over it. Knows of rota `jobs --json` and `history --json`.

Each execution appends to a file of its job: `start JOB ATTEMPT PID TIME`, and `end …` if it got that far. It also takes
a lock that its children inherit: an execution that cannot have it overlaps with an earlier one (or with an orphan of
it), and writes `overlap`.

Also a script: `python support_witness.py DIRECTORY JOBS HISTORY`.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Supply", "Verdict", "check", "command"]


def command(directory: str, work: str) -> str:
    """A shell command that witnesses `work`."""
    where = f"{directory}/$ROTA_INDEX"
    said = '$ROTA_JOB $ROTA_ATTEMPT $$ $EPOCHREALTIME"'
    return (
        f'exec 9>>"{where}.lock"; flock -n 9 || echo "overlap {said} >>"{where}"; echo "start {said} >>"{where}"; '
        f'{work}; echo "end {said} >>"{where}"'
    )


class Supply:
    """Witnessed jobs that do not run out while a test goes on, however slow the machine is."""

    def __init__(self, add: Callable[..., str], directory: str, work: str, *options: str) -> None:
        self._add, self._words = add, (*options, "--", command(directory, work))
        self._directory = directory
        self.jobs = 0

    def done(self) -> int:
        """How many have come to their end, by their own word."""
        names = (name for name in os.listdir(self._directory) if not name.endswith(".lock"))
        return sum("end" in Path(self._directory, name).read_text() for name in names)

    def ensure(self, left: int) -> None:
        """Add some if fewer than so many are left."""
        if self.jobs - self.done() < left:
            self._add("--array", f"{self.jobs + 1}-{self.jobs + 2 * left}", *self._words)
            self.jobs += 2 * left


class Verdict(NamedTuple):
    """The sums, and everything that is wrong."""

    jobs: int
    executions: int
    attempts: int
    """As the manager counts them."""
    lost_attempts: int
    wrong: list[str]
    doubled: list[str] = []
    """Of what is wrong, executions that should not have been."""
    untold: list[str] = []
    """Of what is wrong, executions that the manager does not know of, and successes that were none."""


def check(directory: str, jobs: Iterable[dict[str, Any]], history: Iterable[dict[str, Any]]) -> Verdict:
    """Lost, doubled, overlapping, unrecorded executions: all of them, in words."""
    jobs = {row["id"]: row for row in jobs}
    attempts = {(row["id"], row["attempt"]): row for row in history}
    runs: dict[tuple[str, int], list[str]] = {}
    ended: dict[tuple[str, int], float] = {}
    wrong, doubled, untold = [], [], []
    for name in os.listdir(directory):
        if name.endswith(".lock"):
            continue
        with open(os.path.join(directory, name)) as file:
            for line in file:
                word, job, attempt, pid, at = line.split()
                key = (job, int(attempt))
                if word == "start":
                    runs.setdefault(key, []).append(pid)
                    for before in range(1, int(attempt)):
                        # Its runner died before it could tell: a new attempt, with the lost one on record.
                        state = attempts.get((job, before), {}).get("state")
                        if (job, before) in ended and state not in ("LOST", "RETRIED"):
                            doubled.append(f"{job} attempt {attempt} ran after attempt {before} had come to its end")
                elif word == "overlap":
                    doubled.append(f"{job} attempt {attempt} (pid {pid}) overlaps with an earlier execution")
                else:
                    ended[key] = float(at)
    for (job, attempt), pids in runs.items():
        if len(pids) > 1:
            doubled.append(f"{job} attempt {attempt} was executed {len(pids)} times: {pids}")
        if job not in jobs:
            untold.append(f"{job} was executed and is unknown")
        elif attempt > jobs[job]["attempt"]:
            untold.append(f"{job} attempt {attempt} was executed, the manager knows of {jobs[job]['attempt']}")
        elif (job, attempt) not in attempts:
            untold.append(f"{job} attempt {attempt} was executed and is not in the history")
    for name, row in jobs.items():
        if row["state"] == "COMPLETED":
            if (name, row["attempt"]) not in ended:
                untold.append(f"{name} is COMPLETED in attempt {row['attempt']}, which never came to its end")
        else:
            wrong.append(f"{name} is {row['state']} ({row['reason']})")
        for attempt in range(1, row["attempt"]):
            state = attempts.get((name, attempt), {}).get("state")
            # SUPERSEDED: it was given up, and its runner told of its end after that.
            if (name, attempt) in runs and state not in ("LOST", "RETRIED", "SUPERSEDED"):
                wrong.append(f"{name} attempt {attempt} was followed by another and stands in the history as {state}")
    lost = sum(row["state"] == "LOST" for row in attempts.values())
    executions = sum(len(pids) for pids in runs.values())
    attempted = sum(row["attempt"] for row in jobs.values())
    return Verdict(len(jobs), executions, attempted, lost, [*doubled, *untold, *wrong], doubled, untold)


if __name__ == "__main__":
    with open(sys.argv[2]) as jobs_file, open(sys.argv[3]) as history_file:
        found = check(sys.argv[1], map(json.loads, jobs_file), map(json.loads, history_file))
    print(found)
    sys.exit(bool(found.wrong))

"""Jobs and attempts as they are shown and stored; job ids."""

import re

from msgspec import Struct

from rota.model.errors import UsageError

__all__ = ["Result", "format_job", "parse_job"]

_JOB = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")


def format_job(batch: int, index: int) -> str:
    """The id of a job, as in `7.12`."""
    return f"{batch}.{index}"


def parse_job(text: str) -> tuple[int, int]:
    """(batch, index) from `7.12`."""
    match = _JOB.fullmatch(text)
    if match is None:
        raise UsageError(f"'{text}' is not a job: write BATCH.INDEX, as in 7.12")
    return int(match[1]), int(match[2])


class Result(Struct, array_like=True):
    """How one attempt ended. One row of the store's `results`; never needed to rebuild the core's state."""

    batch: int
    pos: int
    """Position in the batch, from 0 (the index that people see is the batch's to give)."""
    attempt: int
    state: str
    """COMPLETED, FAILED, ABORTED, RETRIED (requeued), LOST (given up) or SUPERSEDED (too late to count)."""
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    runner: str | None = None
    host: str | None = None
    started: float | None = None
    ended: float | None = None
    cpu_s: float | None = None
    peak_memory: int | None = None
    output: str | None = None
    """Where its output is: JSON as in the protocol's `output`, with the runner's directory in front."""
    note: str | None = None
    peak_disk: int | None = None
    """Bytes in the attempt's own directory, if it had one."""
    cores: tuple[int, ...] = ()
    """Millicores that it had on each of its hosts, in their order; empty: not known (older records)."""

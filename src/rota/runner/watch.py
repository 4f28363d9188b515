"""The watch over the jobs that run: what they use, and the limits of their time and memory."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, List

from rota.runner import measure
from rota.runner.running import Running

if TYPE_CHECKING:
    from rota.runner.jobs import Jobs

__all__ = ["Watch", "warn"]

SAMPLE_AFTER_S = 0.5
SAMPLE_EVERY_S = 1.0
SAMPLE_SHARE = 100.0  # sampling may take a hundredth of one core
DISK_SLICE_S = 0.005  # of each sample, for each directory
NEVER = float("inf")


class Watch:
    """Measures jobs, warns them, and has those ended that are over a limit."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._sample_at = NEVER

    def begun(self, running: Running, now: float) -> float:
        """Look after a job that has started; returns when there is something to do for it."""
        plan = running.plan
        due = NEVER if plan.time_s is None else now + plan.time_s
        if plan.warn is not None:
            due = min(due, self._warn_at(running))
        if self._sample_at == NEVER:
            self._sample_at = now + SAMPLE_AFTER_S
            due = min(due, self._sample_at)
        return due

    def tick(self, now: float) -> float:
        """Do what is due: limits, warnings, samples; returns when to come back."""
        times = [NEVER]
        for running in list(self._jobs.by_pid.values()):
            limit = running.plan.time_s
            if limit is not None and running.ending is None:
                if now >= running.since + limit:
                    self._jobs.kill(
                        running.lease, self._jobs.grace(running), "time", now, "over its time limit of %g s" % limit
                    )
                else:
                    times.append(running.since + limit)
            if running.plan.warn is not None and running.ending is None:
                if now >= self._warn_at(running):
                    warn(running)
                times.append(self._warn_at(running))
        if now >= self._sample_at:
            self._sample(now)
        times.append(self._sample_at)
        return min(times)

    def _warn_at(self, running: Running) -> float:
        """When to warn a job that its time, or ours, will be over."""
        warn, limit = running.plan.warn, running.plan.time_s
        if warn is None or running.warned:
            return NEVER
        end = self._jobs.until if limit is None else min(self._jobs.until, running.since + limit)
        return end - warn[1]

    def _sample(self, now: float) -> None:
        """Measure what runs for longer; the pause until the next time grows with the cost."""
        old = [running for running in self._jobs.by_pid.values() if now - running.since >= SAMPLE_AFTER_S]
        if not self._jobs.by_pid:
            self._sample_at = NEVER
            return
        if not old:
            self._sample_at = min(running.since for running in self._jobs.by_pid.values()) + SAMPLE_AFTER_S
            return
        began = time.thread_time()
        members = self._jobs.table.members({running.pid: running.mark for running in old})
        for running in old:
            self._measure(running, members[running.pid], now)
        self._sample_at = now + max(SAMPLE_EVERY_S, (time.thread_time() - began) * SAMPLE_SHARE)

    def _measure(self, running: Running, processes: List[measure.Process], now: float) -> None:
        memory = sum(measure.memory_of(process) for process in processes)
        running.peak = max(running.peak, memory)
        running.rss = max([running.rss, *(process.rss for process in processes)])
        running.cpu_s = max(running.cpu_s, sum(process.cpu_s for process in processes))
        running.lease.live = (round(running.cpu_s, 3), memory)
        if running.place is not None:
            running.place.measure(DISK_SLICE_S)
            running.lease.live += (running.place.disk,)
        try:
            self._jobs.segments.trim(running.lane, running.plan.cap)
        except OSError:
            pass  # told at the end, when what it wrote is collected
        limit = running.plan.memory
        if limit is not None and memory > limit and running.ending is None:
            note = "used %s of memory, over its limit of %s" % (measure.size_words(memory), measure.size_words(limit))
            self._jobs.kill(running.lease, self._jobs.grace(running), "memory", now, note)


def warn(running: Running) -> None:
    """Tell a job that its time will be over soon."""
    assert running.plan.warn is not None
    running.warned = True
    try:
        os.killpg(running.pid, running.plan.warn[0])
    except OSError:
        pass  # it has just ended

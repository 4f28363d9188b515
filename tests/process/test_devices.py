"""What there is only so much of on a real node: gpus, shares of them, cores, licences; who is told which."""

import os
import shlex
import sys
from collections import Counter
from pathlib import Path

from process.support_home import Home, home

__all__ = ["home"]

GPUS = "$ROTA_GPUS/$CUDA_VISIBLE_DEVICES/$ROCR_VISIBLE_DEVICES"
AFFINITY = shlex.join([sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)), sep=',')"])


def lines(path: Path, count: int, home: Home) -> list[str]:
    """What so many jobs have written to a file, each one line."""
    home.until(lambda: path.exists() and path.read_text().count("\n") >= count, what=f"{count} lines in {path.name}")
    return path.read_text().splitlines()


def restart(home: Home) -> None:
    home.kill_manager()
    home.rota("up")


def test_gpus_are_given_out_by_their_shares_also_after_the_manager_was_killed(home: Home) -> None:
    home.config('[site.local]\ncores = 8\noptions = {gpus = 2}\nlinger = "60s"\n')
    home.rota("up")
    book, first, second = home.work / "book", home.gate(), home.gate()

    def add(gpus: str, count: int, gate: str) -> str:
        begins, ends = f'echo "+{gpus} {GPUS}" >> {book}', f'echo "-{gpus} {GPUS}" >> {book}'
        return home.add("--gpus", gpus, "--array", f"1-{count}", "--", "sh", "-c", f"{begins}; {gate}; {ends}")

    halves = add("0.5", 4, first.wait)
    begun = Counter(lines(book, 4, home))
    assert begun == {"+0.5 0/0/0": 2, "+0.5 1/1/1": 2}
    whole = add("1", 2, second.wait)
    why = "asks for 1 gpu, 0 gpus free now"
    home.until(lambda: why in home.json("explain", f"{whole}.1")["reason"], what="why it waits")
    restart(home)
    home.until(lambda: home.counts(halves) == {"RUNNING": 4}, what="the halves are known again")
    late = add("0.5", 2, second.wait)
    why = "asks for 0.5 of a gpu, 0 of a gpu free now"
    home.until(lambda: why in home.json("explain", f"{late}.1")["reason"], what="why it waits")
    first.open()
    lines(book, 9, home)  # four begun and ended, and at least one of those that waited has begun
    restart(home)
    home.until(lambda: "RUNNING" in home.counts(), what="what runs is known again")
    second.open()
    assert home.settled() == {"COMPLETED": 8}
    used: Counter[str] = Counter()
    for line in lines(book, 16, home):
        word, told = line.split()
        assert told in ("0/0/0", "1/1/1")
        used[told] += round(float(word) * 1000)
        assert used[told] <= 1000, "a gpu was given to more than there is of it"


def test_a_job_that_asks_for_no_gpu_sees_none(home: Home) -> None:
    home.config("[site.local]\noptions = {gpus = 2}\n")
    home.rota("run", "--", "sh", "-c", f"echo {GPUS} >> told")
    home.rota("run", "--gpus", "2", "--", "sh", "-c", f"echo {GPUS} >> told")
    assert (home.work / "told").read_text().split() == ["//", "0,1/0,1/0,1"]


def test_no_two_bound_jobs_share_a_core(home: Home) -> None:
    ours = sorted(os.sched_getaffinity(0))
    home.config(f'[site.local]\ncores = {len(ours)}\nlinger = "60s"\n')
    home.rota("up")
    book, gate = home.work / "book", home.gate()
    command = f'echo "$ROTA_CORES $ROTA_CORE_IDS $({AFFINITY})" >> {book}; {gate.wait}'
    bound = home.add("--bind", "cores", "--array", f"1-{len(ours)}", "--", "sh", "-c", command)
    assert sorted(lines(book, len(ours), home)) == sorted(f"1 {core} {core}" for core in ours)
    restart(home)
    home.until(lambda: home.counts(bound) == {"RUNNING": len(ours)}, what="they are known again")
    gate.open()
    home.settled()
    home.add("--bind", "cores", "-c", str(len(ours)), "--", "sh", "-c", command)
    home.settled()
    home.add("--", "sh", "-c", command)
    home.settled()
    everything = ",".join(map(str, ours))
    whole, free = lines(book, len(ours) + 2, home)[len(ours) :]
    assert whole.split()[0] == str(len(ours)) and whole.split()[2] == everything
    assert free == f"1  {everything}", "a job that is not bound is told of no cores of its own, and may use all"


def test_a_licence_of_the_site_is_counted_and_the_wait_for_it_explained(home: Home) -> None:
    home.config("[site.local]\ncores = 8\nresources = {licence = 2}\n")
    home.rota("up")
    book, gate = home.work / "book", home.gate()
    command = f"echo + >> {book}; {gate.wait}; echo - >> {book}"
    batch = home.add("--resource", "licence=1", "--array", "1-5", "--", "sh", "-c", command)
    lines(book, 2, home)
    waiting = home.until(lambda: [row for row in home.rows("jobs", batch) if row["state"] == "PENDING"])
    assert len(waiting) == 3
    explained = home.json("explain", waiting[0]["id"])
    assert "asks for 1 licence, 0 licence free now" in explained["reason"], explained
    restart(home)
    home.until(lambda: home.counts(batch) == {"RUNNING": 2, "PENDING": 3}, what="two are known again")
    gate.open()
    assert home.settled() == {"COMPLETED": 5}
    most = level = 0
    for line in lines(book, 10, home):
        level += 1 if line == "+" else -1
        most = max(most, level)
    assert most == 2

"""A pilot in a real allocation: the Slurm of the tests, with nodes that are hosts of their own, from a batch script.

One run with jobs of a second, gangs and elastic jobs together, and how they used all cores by `rota report usage`;
then `true` jobs on one node beside the C loop, which is run before and after.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import Row
from bench.spawning import build, run_loop

TESTS = Path(__file__).parents[1] / "tests"
ROTA = os.path.join(os.path.dirname(sys.executable), "rota")
NODES, GANGS, ELASTIC = 3, 20, 20
MIXED = """\
#!/bin/sh
cd {work}
{rota} pilot -q --policy {policy} -f jobs
code=$?
{rota} report usage --home .rota-pilot --json >usage.json
{rota} report usage --home .rota-pilot --gantt usage.html
echo code $code
"""
TRUE = """\
#!/bin/sh
cd {work}
{rota} pilot -q --policy qcg --array 1-{count} -- true
echo code $?
{rota} report usage --home .rota-pilot --json >usage.json
"""


def mixed(jobs: int) -> str:
    """Jobs of a second on one core each, with gangs on two nodes and elastic jobs among them."""
    lines: list[dict[str, Any]] = [{"command": ["sleep", "1"]} for _ in range(jobs)]
    step = max(1, jobs // (GANGS + 1))
    for number in range(GANGS):
        lines.insert(number * step, {"command": ["sleep", "1"], "nodes": 2, "cores": 2})
    for number in range(ELASTIC):
        lines.insert(number * step, {"command": ["sleep", "1"], "cores": "1..3"})
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def run(slurm: Any, work: Path, script: str, nodes: int, cores: int) -> tuple[str, dict[str, Any]]:
    """Run a batch script to its end; what it said, and how the cores were used."""
    (work / "script.sh").write_text(script)
    options = (f"-N{nodes}", "--ntasks-per-node=1", f"-c{cores}", "--mem=0", "--chdir=/", f"--output={work}/out")
    job = slurm.run("sbatch", "--parsable", *options, str(work / "script.sh")).stdout.strip()
    slurm.wait_over(job, 600)
    said = (work / "out").read_text()
    if "\ncode 0" not in f"\n{said}":
        raise SystemExit(f"the pilot failed:\n{said}")
    return said, json.loads((work / "usage.json").read_text())


def in_an_allocation(jobs: int, trues: int, cores: int, policy: str) -> list[Row]:
    """What a pilot makes of three nodes and of one."""
    sys.path.insert(0, str(TESTS))
    from cluster.real_slurm import RealSlurm  # type: ignore[import-not-found]

    loop, width = build().bare, len(os.sched_getaffinity(0))
    slurm = RealSlurm(count=NODES, cpus=cores, hosts=True)
    directory = tempfile.mkdtemp(prefix="rota-bench-")
    rows = []
    try:
        slurm.start()
        work = Path(directory, "mixed")
        work.mkdir()
        (work / "jobs").write_text(mixed(jobs))
        said, usage = run(slurm, work, MIXED.format(work=work, rota=ROTA, policy=policy), NODES, cores)
        print(said, flush=True)
        rows.append(_used(usage, jobs))
        work = Path(directory, "true")
        work.mkdir()
        before = run_loop(loop, trues // 2, width).rate
        _, usage = run(slurm, work, TRUE.format(work=work, rota=ROTA, count=trues), 1, width)
        rate = (before + run_loop(loop, trues // 2, width).rate) / 2
        mine = usage["jobs"] / (usage["ended"] - usage["began"])
        figure = f"{mine:.0f}/s = {mine / rate:.2f} of the C loop's {rate:.0f}/s"
        rows.append(Row("`true` jobs/s on a node of an allocation", figure, "≥ 0.70", mine >= 0.70 * rate))
    finally:
        slurm.close()
        shutil.rmtree(directory, ignore_errors=True)
    return rows


def _used(usage: dict[str, Any], jobs: int) -> Row:
    """The share of core-seconds from the first start to the last end."""
    span_s = usage["cores"] * (usage["ended"] - usage["began"])
    part = usage["busy_s"] / span_s
    lost = ", ".join(f"{cause} {seconds:.0f}" for cause, seconds in usage["lost"].items())
    figure = f"{100 * part:.1f} % of {span_s:.0f} core-seconds (lost: {lost})"
    what = f"{jobs} jobs of 1 s, {GANGS} gangs, {ELASTIC} elastic, {usage['cores']:g} cores"
    return Row(what, figure, "≥ 95 %", part >= 0.95)

"""A pilot in a real allocation; and beside QCG-PilotJob and HyperQueue, on the same jobs and cores in one run.

`python -m bench.pilot [--only allocation|peers] [--jobs N] [--seconds N]`. For the first, by root, see
`bench/allocation.py`. The others are installed from their locks into environments
of their own (`bench/peers/`). Each service is up and has run a job before its clock starts; what counts
is from the submission until it says that all have ended.
"""

import argparse
import os
import sys

from bench import Row
from bench.allocation import in_an_allocation
from bench.peers.roster import ROSTER, Entry
from bench.peers.sampling import ready, sample
from bench.spawning import build, run_loop

PEERS = (
    Entry("rota pilot", "ours.Pilot", "all", "`rota.Pilot`"),
    *(one for one in ROSTER if one.name in ("QCG-PilotJob", "HyperQueue")),
)


def took(entry: Entry, count: int, width: int, *command: str) -> float | None:
    """Seconds from submission to the end of all; None: it failed."""
    job = {"kind": "A", "count": count, "width": width, "command": command}
    found = sample(ready(entry), entry, job, 600.0)
    if "failed" in found:
        print(f"failed: {found['failed']}", file=sys.stderr)
    return found.get("seconds")


def pilots(loop: str, jobs: int, each_s: int) -> list[Row]:
    """`true` jobs beside the C loop, and the share of core-seconds that jobs of a second get."""
    width = len(os.sched_getaffinity(0))
    rows = []
    for entry in PEERS:
        name, ours = entry.name, entry.name == "rota pilot"
        before = run_loop(loop, jobs // 2, width).rate
        true_s = took(entry, jobs, width, "/bin/true")
        rate = (before + run_loop(loop, jobs // 2, width).rate) / 2
        share = 0.0 if true_s is None else jobs / true_s / rate
        figure = "failed" if true_s is None else f"{jobs / true_s:.0f}/s = {share:.2f} of the C loop's {rate:.0f}/s"
        rows.append(Row(f"`true` jobs/s, {name}", figure, "≥ 0.70" if ours else "", share >= 0.70 or not ours))
        count = width * each_s
        sleep_s = took(entry, count, width, "/bin/sleep", "1")
        part = 0.0 if sleep_s is None else count / (width * sleep_s)
        figure = "failed" if sleep_s is None else f"{100 * part:.1f} % of core-seconds ({count} jobs, {width} cores)"
        rows.append(Row(f"jobs of 1 s, {name}", figure, "≥ 95 %" if ours else "", part >= 0.95 or not ours))
    return rows


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.pilot", description=__doc__)
    parser.add_argument("--jobs", type=int, default=5_000, help="`true` jobs")
    parser.add_argument("--seconds", type=int, default=30, help="jobs of a second on each core")
    parser.add_argument("--only", choices=("allocation", "peers"), help="one of the two parts")
    parser.add_argument("--mixed", type=int, default=2_000, help="jobs of a second in the allocation, beside others")
    parser.add_argument("--cores", type=int, default=8, help="of each of the three nodes of the allocation")
    parser.add_argument("--policy", default="qcg-reserve", help="of the jobs in the allocation")
    args = parser.parse_args()
    rows: list[Row] = []
    if args.only != "peers":
        rows += in_an_allocation(args.mixed, args.jobs, args.cores, args.policy)
    if args.only != "allocation":
        rows += pilots(build().bare, args.jobs, args.seconds)
    for row in rows:
        print(row, flush=True)
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""A simulated week of a grid: 200 sites, 600,000 slots, more than 5,000,000 jobs, data, links and outages.

    python -m bench.week [--small] [--policy sites|random|least-loaded …]

Jobs wait, move data, run and are lost in simulated time; where they go is decided by the real queue level with the
policy `sites`, beside random and least-loaded. The budget: an hour of CPU; 95 % of the slots of sites that are up in
use while work waits; every share within 2 points of its target over a day.
"""

import argparse
import resource
import sys
import time

from bench import Row
from rota.schedule.policy import SITES
from rota.sim.week import LEAST_LOADED, RANDOM, Grid, Outcome, run

POLICIES = {"sites": SITES, "random": RANDOM, "least-loaded": LEAST_LOADED}
SMALL = Grid(sites=12, slots=3000, days=3, mean_h=8.0, task_jobs=(20, 300), load=1.3, backlog_days=1.0, outages=3.0)


def rows(name: str, out: Outcome, cpu_s: float, small: bool) -> list[Row]:
    """What a policy came to, beside its budgets; the others are there to compare with."""
    judged, many = name == "sites", out.started >= 5_000_000 or small
    text = f"{out.started:,} started, {out.finished:,} finished, {out.lost:,} lost, {out.most_at_once:,} at once"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    shares = f"{out.worst:.2f} points beside their targets at the most, of any day but the first"
    return [
        Row(f"{name}: jobs", text, "≥ 5,000,000" if judged else "", many or not judged),
        Row(f"{name}: CPU", f"{cpu_s:.0f} s, {peak} MB", "≤ 3600 s", cpu_s <= 3600),
        Row(f"{name}: slots in use while work waits", f"{100 * out.used:.1f} %", "≥ 95 %" if judged else "",
            out.used >= 0.95 or not judged),
        Row(f"{name}: wait from submission to start", f"mean {out.wait_mean_s / 3600:.1f} h, median "
            f"{out.wait_median_s / 3600:.1f} h", "", True),
        Row(f"{name}: bytes moved", f"{out.moved_bytes / 1e12:.0f} TB", "", True),
        Row(f"{name}: shares", shares, "≤ 2" if judged else "", out.worst <= 2 or not judged),
    ]  # fmt: skip


def main() -> int:
    """Measure, and say what was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="12 sites and 3,000 slots for three days")
    parser.add_argument("--policy", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    args = parser.parse_args()
    missed = 0
    for name in args.policy:
        before = time.process_time()
        out = run(SMALL if args.small else Grid(), POLICIES[name])
        for row in rows(name, out, time.process_time() - before, args.small):
            missed += not row.met
            print(f"{row.what:45} {row.figure}  {row.budget}{'' if row.met else '  MISSED'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

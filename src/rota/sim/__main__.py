"""`python -m rota.sim --seed N` tells the story of a seed.

`--seeds 2000` runs many and prints what was hit and what broke.
"""

import argparse
import sys
import time

from rota.sim.faults import KINDS, OTHERS
from rota.sim.world import run_seed

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run one seed, or many."""
    parser = argparse.ArgumentParser(prog="python -m rota.sim", description="Simulate the core with faults, by seed.")
    parser.add_argument("--seed", type=int, help="run this one and tell its story")
    parser.add_argument("--seeds", type=int, default=100, help="how many to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--hashes", action="store_true", help="print a hash of what happened, per seed")
    parser.add_argument("--quiet", action="store_true", help="with --seed: no story")
    options = parser.parse_args(argv)
    if options.seed is not None:
        return _story(options.seed, options.quiet)
    return _many(range(options.first, options.first + options.seeds), options.hashes)


def _story(seed: int, quiet: bool) -> int:
    outcome, world = run_seed(seed, tracing=not quiet)
    for line in world.story:
        print(line)
    print(
        f"seed {seed}: {outcome.jobs} jobs, {outcome.executions} executions, faults {outcome.hits}, {outcome.hash[:16]}"
    )
    for problem in outcome.problems:
        print(f"VIOLATION: {problem}")
    return 1 if outcome.problems else 0


def _many(seeds: range, hashes: bool) -> int:
    began = time.perf_counter()
    hits: dict[str, int] = {}
    worlds_hit: dict[str, int] = {}
    jobs = executions = bad = 0
    slowest = 0.0
    for seed in seeds:
        outcome, _ = run_seed(seed)
        jobs += outcome.jobs
        executions += outcome.executions
        slowest = max(slowest, outcome.settled_s)
        for kind, count in outcome.hits.items():
            hits[kind] = hits.get(kind, 0) + count
            worlds_hit[kind] = worlds_hit.get(kind, 0) + 1
        if hashes:
            print(seed, outcome.hash)
        if outcome.problems:
            bad += 1
            print(f"seed {seed}: {outcome.problems[0]} (and {len(outcome.problems) - 1} more)")
            print(f"    replay: python -m rota.sim --seed {seed}", flush=True)
    seconds = time.perf_counter() - began
    if not hashes:
        print(f"{'fault':24}{'times':>10}{'worlds':>10}")
        for kind in (*KINDS, *OTHERS):
            print(f"{kind:24}{hits.get(kind, 0):10}{worlds_hit.get(kind, 0):10}")
        print(
            f"{len(seeds)} worlds, {jobs} jobs, {executions} executions, {len(seeds) / seconds:.1f} worlds/s, "
            f"slowest to settle {slowest:.0f} s"
        )
    print(f"{bad} worlds with violations", file=sys.stderr if hashes else sys.stdout)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""The summary that `rota run` prints at the end."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from rota.cli.jobs import command_text, ending
from rota.cli.show import clean, colours, count_words, print_json, seconds, tint
from rota.cli.wait import all_well
from rota.model.errors import RotaError
from rota.wire.client import Connection

__all__ = ["print_summary"]

FAILURES = 10
SLOWEST = 3
SLOW_S = 1.0
"""The slowest jobs are worth a line if they took this long."""
TAIL_LINES = 5


def print_summary(
    args: argparse.Namespace,
    connection: Connection,
    batch: int,
    counts: Mapping[str, int],
    elapsed_s: float,
    embedded: bool = False,
    home: "str | None" = None,
) -> None:
    """Counts, time, the slowest, and the failures with the end of their standard error.

    It goes to standard output, or with --show to standard error, since then standard output is the jobs'. `home` is
    that of a pilot, whose manager is gone by then, and is named in what one could type next.
    """
    try:
        answer = connection.ask("summary", batch=batch, failures=FAILURES, slowest=SLOWEST)
    except RotaError as error:
        print(f"rota: there is no full summary: {error}", file=sys.stderr)
        answer = {}
    if args.json:
        jobs = sum(counts.values())
        print_json({"batch": batch, "jobs": jobs, "counts": dict(counts), "elapsed_s": round(elapsed_s, 3), **answer})
        return
    well = all_well(counts)
    if args.quiet and well:
        return
    stream = sys.stderr if args.show else sys.stdout
    for line in [head(batch, answer, counts, elapsed_s, colours(stream)), *slow_lines(answer)]:
        print(line, file=stream)
    first = "rota up; " if embedded else ""
    rota = f"{first}rota" if home is None else f"rota --home {clean(home)}"
    if not args.show:
        print(f"  {where_output_is(args, batch, sum(counts.values()), rota)}", file=stream)
    if not well:
        for line in failure_lines(batch, answer, counts):
            print(line, file=stream)
        if home is None:
            print(f"  run them again: {rota} retry {batch} :unsuccessful", file=stream)


def where_output_is(args: argparse.Namespace, batch: int, jobs: int, rota: str) -> str:
    """Where to find what the jobs printed."""
    files = [path for path in (args.stdout, args.stderr) if path is not None]
    job = f"{batch}.1" if jobs == 1 else f"{batch}.N"
    if len(files) == 2:
        return f"output: {clean(', '.join(dict.fromkeys(files)))}"
    rest = "" if not files else " --stderr" if args.stdout is not None else ""
    kept = f"{clean(files[0])}, and " if files else ""
    return f"output: {kept}{rota} log {job}{rest}" + ("" if files else " (--stderr for standard error)")


def head(batch: int, answer: Mapping[str, Any], counts: Mapping[str, int], elapsed_s: float, paint: bool) -> str:
    """The first line of the summary."""
    words = count_words(counts)
    if paint:
        words = tint("COMPLETED" if all_well(counts) else "FAILED", words)
    name = f" ({clean(answer['name'])})" if answer.get("name") else ""
    done = counts.get("COMPLETED", 0) + counts.get("FAILED", 0)
    rate = f", {done / elapsed_s:,.1f} jobs/s" if done > 1 and elapsed_s > 0 else ""
    cpu = f", {seconds(answer['cpu_s'])} of CPU" if answer.get("cpu_s") else ""
    return f"batch {batch}{name}: {words} in {seconds(elapsed_s)}{rate}{cpu}"


def slow_lines(answer: Mapping[str, Any]) -> list[str]:
    """The slowest few, if any took long."""
    slow = [row for row in answer.get("slowest") or () if (row.get("wall_s") or 0) >= SLOW_S]
    return [f"  slowest: {row['id']} {seconds(row['wall_s'])}  {clean(command_text(row))[:100]}" for row in slow]


def failure_lines(batch: int, answer: Mapping[str, Any], counts: Mapping[str, int]) -> list[str]:
    """The jobs that failed, and how to see the rest."""
    lines = []
    failures = answer.get("failures") or []
    for row in failures:
        end = ending(row)
        why = f" ({end if not end.isdigit() else f'exit {end}'})" if end else ""
        lines.append(f"  {row['id']} {row['state']}{why}: {clean(command_text(row))[:200]}")
        tail = (row.get("stderr_tail") or "").rstrip().splitlines()[-TAIL_LINES:]
        lines += [f"      | {clean(text)[:200]}" for text in tail]
    bad = sum(count for state, count in counts.items() if state != "COMPLETED")
    if bad > len(failures):
        lines.append(f"  … and {bad - len(failures):,} more: rota jobs {batch} :unsuccessful")
    return lines

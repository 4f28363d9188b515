"""`rota report`: what rota has learned about jobs."""

from rota.cli.link import connect, look
from rota.cli.show import Table, print_json, seconds, size
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any

    from rota.cli.parser import Parser


def configure(parser: "Parser", command: str) -> None:
    """The options of `report`."""
    what = "learning: what jobs of each group use; totals: what jobs of each name used, in all and on average"
    parser.add_argument("what", choices=("learning", "totals"), help=what)
    parser.selectors()
    parser.json('{"groups": […]} or {"names": […]}')
    parser.examples(
        "rota report learning", "rota report learning --json", "rota report totals", "rota report totals @align"
    )


def execute(args: "argparse.Namespace") -> int:
    """Ask for what was learned, and print it."""
    if args.what == "totals":
        return totals(args)
    if args.selector:
        raise UsageError("learning is by group, not by job: leave the selector out, or ask for totals")
    with connect(args) as connection:
        answer = connection.ask("learning")
    if args.json:
        print_json(answer)
        return 0
    if not answer["groups"]:
        print("nothing was learned yet: that takes jobs that have completed")
        return 0
    rows = []
    for group in answer["groups"]:
        samples, largest = group["samples"], group["largest"]
        rows.append(
            [
                group["group"],
                *_pair(group["memory_bytes"], largest["memory_bytes"], size),
                samples["memory"] or "",
                *_pair(group["time_s"], largest["time_s"], seconds),
                samples["time"] or "",
                *_pair(group["disk_bytes"], largest["disk_bytes"], size),
                samples["disk"] or "",
            ]
        )
    titles = ["GROUP"]
    for what in ("MEMORY", "TIME", "DISK"):
        titles += [what, f"MOST {what}", f"{what} SAMPLES"]
    if not any(row[7] or row[9] for row in rows):  # few jobs have a directory of their own to measure
        titles, rows = titles[:7], [row[:7] for row in rows]
    Table(*titles, right=titles[1:]).print(rows)
    return 0


def _pair(asked: "float | None", largest: "float | None", show: "Callable[[Any], str]") -> "tuple[str, str]":
    return show(asked) if asked else "", show(largest) if largest else ""


def totals(args: "argparse.Namespace") -> int:
    """Print what the jobs of each name used."""
    with look(args) as connection:
        answer = connection.ask("totals", sel=args.selector)
    if args.json:
        print_json(answer)
        return 0
    rows = []
    for row in answer["names"]:
        counts, known = row["counts"], row["measured"] > 0
        rows.append(
            [
                row["name"] or f"batch {row['batches'][0]}", row["jobs"], counts.get("COMPLETED", 0) or "-",
                sum(counts.get(state, 0) for state in ("FAILED", "ABORTED", "OMITTED")) or "-",
                seconds(row["wall_s"]) if known else "", seconds(row["cpu_s"]) if known else "",
                f"{seconds(row['wall_mean_s'])} ± {seconds(row['wall_sd_s'])}" if known else "",
                seconds(row["wall_most_s"]) if known else "",
                f"{size(row['memory_mean_bytes'])} ± {size(row['memory_sd_bytes'])}" if known else "",
                size(row["memory_most_bytes"]) if known else "",
            ]
        )  # fmt: skip
    titles = ["NAME", "JOBS", "DONE", "BAD", "WALL", "CPU", "WALL EACH", "MOST", "MEMORY EACH", "MOST"]
    Table(*titles, right=titles[1:]).print(rows)
    return 0

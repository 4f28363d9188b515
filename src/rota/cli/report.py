"""`rota report`: what rota has learned about jobs."""

from rota.cli.link import connect
from rota.cli.show import Table, print_json, seconds, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any

    from rota.cli.parser import Parser


def configure(parser: "Parser", command: str) -> None:
    """The options of `report`."""
    parser.add_argument("what", choices=("learning",), help="learning: what jobs of each group use")
    parser.json('{"groups": […]}')
    parser.examples("rota report learning", "rota report learning --json")


def execute(args: "argparse.Namespace") -> int:
    """Ask for what was learned, and print it."""
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

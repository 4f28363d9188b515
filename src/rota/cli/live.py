"""`rota jobs --live`: what runs right now."""

import sys
import time

from rota.cli.jobs import command_text
from rota.cli.link import connect
from rota.cli.show import Table, clean, print_json, seconds, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from rota.wire.client import Connection

MOST = 200


def show_live(args: "argparse.Namespace", words: "list[str]") -> int:
    """Print what runs now; on a terminal again and again, until Ctrl-C."""
    most = min(args.limit or MOST, 1_000)
    with connect(args) as connection:
        if args.json or not sys.stdout.isatty():
            answer = connection.ask("live", sel=words, limit=most)
            if args.json:
                for row in answer["jobs"]:
                    print_json(row)
            else:
                print_once(answer)
            return 0
        watch(connection, words, most, max(args.interval, 0.2))
    return 0


def cells(row: "dict[str, Any]") -> "list[str]":
    """The cells of one job in the table."""
    percent = row.get("cpu_percent")
    return [
        row["id"], row["state"], row.get("host") or "", seconds(row.get("elapsed_s")),
        "" if percent is None else f"{percent:.0f}%", size(row.get("memory_bytes")), clean(command_text(row)),
        clean(row.get("last_line") or ""),
    ]  # fmt: skip


TITLES = ("JOB", "STATE", "HOST", "ELAPSED", "CPU", "MEMORY", "COMMAND", "LAST LINE")
RIGHT = ("ELAPSED", "CPU", "MEMORY")


def print_once(answer: "dict[str, Any]") -> None:
    """Print a plain table of running jobs."""
    if not answer["jobs"]:
        print("nothing runs")
        return
    table = Table(*TITLES, right=RIGHT)
    table.print([cells(row) for row in answer["jobs"]])
    if answer["more"]:
        print(f"and {answer['more']:,} more")


def watch(connection: "Connection", words: "list[str]", most: int, interval: float) -> None:
    """Show a table that changes in place, until Ctrl-C; the terminal is left as it was."""
    from rich.live import Live

    with Live(picture(connection, words, most), auto_refresh=False, transient=False) as screen:
        while True:
            time.sleep(interval)
            screen.update(picture(connection, words, most), refresh=True)


def picture(connection: "Connection", words: "list[str]", most: int) -> "Any":
    """The table of what runs now."""
    from rich.table import Table as RichTable
    from rich.text import Text

    answer = connection.ask("live", sel=words, limit=most)
    table = RichTable(box=None, pad_edge=False, expand=True)
    for title in TITLES:  # where there is little room the command and its output give way: rich cuts what may wrap
        justify: Any = "right" if title in RIGHT else "left"
        table.add_column(title, justify=justify, overflow="ellipsis", no_wrap=title not in TITLES[-2:])
    for row in answer["jobs"]:
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells(row)))
    more = f", {answer['more']:,} more" if answer["more"] else ""
    table.caption = f"{time.strftime('%H:%M:%S')}: {len(answer['jobs'])} shown{more}; Ctrl-C to leave"
    return table

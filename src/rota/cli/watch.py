"""`rota watch`: the status, live, until all is settled."""

import sys
import time

from rota.cli.link import connect
from rota.cli.show import NARROW, STATES, clean, count_words, print_json
from rota.cli.status import everything
from rota.cli.wait import all_well

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from rota.cli.parser import Parser
    from rota.wire.client import Connection

_STYLES = {"COMPLETED": "green", "FAILED": "red", "ABORTED": "red", "RUNNING": "cyan", "MISSING": "yellow"}
MOST = 30
"""Batches shown at once."""


def configure(parser: "Parser", command: str) -> None:
    """The options of `watch`."""
    parser.selectors()
    parser.add_argument("--interval", type=float, default=0.5, metavar="S", help="seconds between looks (default 0.5)")
    parser.json("the status, one object per line, whenever it changes")
    parser.examples("rota watch", "rota watch 7", "rota watch 7 --json")


def execute(args: "argparse.Namespace") -> int:
    """Look until nothing is live; exit status as `wait`."""
    interval = max(args.interval, 0.1)
    with connect(args) as connection:
        if sys.stdout.isatty() and not args.json:
            answer = live(connection, args.selector, interval)
        else:
            answer = lines(connection, args.selector, interval, args.json)
    return 0 if all_well(answer["counts"]) else 1


def settled(answer: "dict[str, Any]") -> bool:
    """True if nothing can happen any more."""
    return not any(answer["counts"].get(state) for state in STATES[:7])


def lines(connection: "Connection", words: "list[str]", interval: float, as_json: bool) -> "dict[str, Any]":
    """Print, without a terminal, a line whenever the counts change."""
    before = None
    while True:
        answer = everything(connection, words) if as_json else connection.ask("status", sel=words, brief=True)
        if answer["counts"] != before:
            before = answer["counts"]
            if as_json:
                print_json(answer)
            else:
                print(f"{time.strftime('%H:%M:%S')} {count_words(before)}")
            sys.stdout.flush()
        if settled(answer):
            return answer
        connection.ask("wait", sel=words, timeout_s=interval)


def live(connection: "Connection", words: "list[str]", interval: float) -> "dict[str, Any]":
    """Show, on a terminal, a table that changes in place."""
    from rich.live import Live

    answer = connection.ask("status", sel=words, brief=True)
    with Live(picture(answer), auto_refresh=False) as screen:
        while not settled(answer):
            connection.ask("wait", sel=words, timeout_s=interval)
            answer = connection.ask("status", sel=words, brief=True)
            screen.update(picture(answer), refresh=True)
        screen.update(picture(answer), refresh=True)
    return answer


def picture(answer: "dict[str, Any]") -> "Any":
    """The table of batches; those that live first."""
    from shutil import get_terminal_size

    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    batches = sorted(answer["batches"], key=lambda batch: (settled(batch), -batch["id"]))[:MOST]
    states = [state for state in STATES if any(batch["counts"].get(state) for batch in batches)]
    why = {row["batch"]: row["reason"] for row in answer.get("why") or ()}
    rows = []
    for batch in batches:
        jobs = batch["jobs"] or 1
        done = sum(batch["counts"].get(state, 0) for state in STATES[7:])
        cells = [str(batch["id"]), batch.get("name") or "", f"{batch['jobs']:,}"]
        rows.append(cells + [f"{batch['counts'].get(state, 0):,}" for state in states] + [f"{100 * done / jobs:.0f}%"])
    titles = ("BATCH", "NAME", "JOBS", *states, "DONE")
    used = sum(max(map(len, column)) + 2 for column in zip(titles, *rows, strict=True))
    beside = get_terminal_size().columns - used >= NARROW
    table = Table(box=None, pad_edge=False)
    for title in titles:
        justify: Any = "left" if title == "NAME" else "right"
        table.add_column(title, justify=justify, style=_STYLES.get(title, ""), no_wrap=True)
    if beside:  # rich cuts what may wrap: the reason, not the numbers
        table.add_column("WHY", overflow="ellipsis")
    for batch, cells in zip(batches, rows, strict=True):
        shown = [*cells, clean(why.get(batch["id"], ""))] if beside else cells
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in shown))
    if answer["total"]["batches"] > len(batches):
        table.caption = f"and {answer['total']['batches'] - len(batches):,} more"
    if beside:
        return table
    notes = [f"{batch['id']}: {clean(why[batch['id']])}" for batch in batches if batch["id"] in why]
    return Group(table, *(Text(note, no_wrap=True, overflow="ellipsis") for note in notes))

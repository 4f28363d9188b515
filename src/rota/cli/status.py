"""`rota status`: counts per batch."""

from rota.cli.link import look
from rota.cli.show import STATES, Table, count_words, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any, Protocol

    from rota.cli.parser import Parser

    class Asked(Protocol):
        """A manager, or the store of one that is down."""

        def ask(self, op: str, **arguments: Any) -> "dict[str, Any]":
            """The answer to one question."""


def configure(parser: "Parser", command: str) -> None:
    """The options of `status`."""
    parser.selectors()
    parser.add_argument(
        "--all", action="store_true", help="every batch, not only what lives and the last twenty that are settled"
    )
    parser.json('{"counts": …, "batches": […]}, with every batch')
    parser.examples("rota status", "rota status 7", "rota status --all", "rota status :failed --json")


def execute(args: "argparse.Namespace") -> int:
    """Ask for the status, and print it."""
    with look(args) as connection:
        if args.all or args.json:
            answer = everything(connection, args.selector)
        else:
            answer = connection.ask("status", sel=args.selector, brief=True)
    if args.json:
        print_json(answer)
        return 0
    if answer.get("state", "serving") != "serving":
        print(f"the manager is {answer['state']}")
        if answer.get("pauses"):
            from rota.cli.control import pause_words

            for row in answer["pauses"]:
                print(pause_words(row))
    if answer["batches"]:
        print_batches(answer)
        print_total(answer)
    else:
        print("no batches")
    return 0


def everything(connection: "Asked", words: "list[str]") -> "dict[str, Any]":
    """The status with every batch, asked for page by page."""
    answer = page = connection.ask("status", sel=words)
    while page.get("next") is not None:
        page = connection.ask("status", sel=words, after=page["next"])
        answer["batches"] += page["batches"]
        answer["why"] += page["why"]
    answer.pop("next", None)
    return answer


def print_batches(answer: "dict[str, Any]") -> None:
    """Print the table of batches, with a column for every state that occurs; first those that are only counted."""
    batches, groups = answer["batches"], answer.get("more") or ()
    seen = {state for row in (*groups, *batches) for state, count in row["counts"].items() if count}
    states = [state for state in STATES if state in seen]
    why = {row["batch"]: row["reason"] for row in answer.get("why") or ()}
    named = any(row.get("name") or row.get("names") for row in (*groups, *batches))

    def cells(first: object, name: str, row: "dict[str, Any]") -> "Sequence[object]":
        counts = (row["counts"].get(state, 0) or "-" for state in states)
        return [first, *([name] if named else []), row["jobs"], *counts]

    rows = [cells(f"{row['batches']:,} more", _group_name(row), row) for row in groups]
    rows += [cells(batch["id"], batch.get("name") or "", batch) for batch in batches]
    reasons = [""] * len(groups) + [why.get(batch["id"], "") for batch in batches]
    titles = ["BATCH", *(["NAME"] if named else []), "JOBS", *states]
    Table(*titles, right=("BATCH", "JOBS", *states)).print_with("WHY", rows, reasons)


def _group_name(row: "dict[str, Any]") -> str:
    return row["name"] if row["name"] is not None else f"({row['names']:,} other names)"


def print_total(answer: "dict[str, Any]") -> None:
    """Print the sum of all, if there is more than one batch."""
    total = answer.get("total") or {"batches": 0}
    if total["batches"] > 1:
        each = "; each of them: --all" if answer.get("more") else ""
        live = f"{total['live']:,} of them live" if total["live"] else "all settled"
        print(f"{total['batches']:,} batches, {live}: {count_words(answer['counts'])}{each}")

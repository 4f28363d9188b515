"""`rota status`: counts per batch."""

from rota.cli.link import look
from rota.cli.show import STATES, Table, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from rota.cli.parser import Parser


def configure(parser: "Parser", command: str) -> None:
    """The options of `status`."""
    parser.selectors()
    parser.json('{"counts": …, "batches": […]}')
    parser.examples("rota status", "rota status 7", "rota status :failed --json")


def execute(args: "argparse.Namespace") -> int:
    """Ask for the status, and print it."""
    with look(args) as connection:
        answer = connection.ask("status", sel=args.selector)
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
    else:
        print("no batches")
    return 0


def print_batches(answer: "dict[str, Any]") -> None:
    """Print the table of batches, with a column for every state that occurs."""
    batches = answer["batches"]
    seen = {state for batch in batches for state, count in batch["counts"].items() if count}
    states = [state for state in STATES if state in seen]
    why = {row["batch"]: row["reason"] for row in answer.get("why") or ()}
    named = any(batch.get("name") for batch in batches)
    titles = ["BATCH", *(["NAME"] if named else []), "JOBS", *states]
    rows = [
        [
            batch["id"],
            *([batch.get("name") or ""] if named else []),
            batch["jobs"],
            *(batch["counts"].get(state, 0) or "-" for state in states),
        ]
        for batch in batches
    ]
    reasons = [why.get(batch["id"], "") for batch in batches]
    Table(*titles, right=("BATCH", "JOBS", *states)).print_with("WHY", rows, reasons)

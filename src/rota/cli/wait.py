"""`rota wait`: until jobs are settled."""

import re
import sys
import time

from rota.cli.link import connect
from rota.cli.show import count_words, jobs_word, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from typing import Any

    from rota.cli.parser import Parser
    from rota.wire.client import Connection

STUCK_S = 5.0
"""When nothing has run for so long, it is said why."""


def configure(parser: "Parser", command: str) -> None:
    """The options of `wait`."""
    parser.selectors()
    parser.add_argument("--timeout", metavar="TIME", help="give up after 90 (seconds), 30s, 10m, 2h …: exit status 4")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing")
    parser.json('{"settled": …, "counts": …}')
    parser.examples("rota wait 7", "rota wait 7 8 --timeout 10m", "rota wait @align && echo all well")


def execute(args: "argparse.Namespace") -> int:
    """0: all COMPLETED. 1: all settled, some not COMPLETED. 4: the time was up."""
    with connect(args) as connection:
        answer = patiently(connection, args, timeout_of(args.timeout))
        why = "" if answer["settled"] or args.json or args.quiet else stuck(connection, args.selector, answer["counts"])
    if args.json:
        print_json(answer)
    elif not args.quiet:
        print(count_words(answer["counts"]), file=sys.stdout if answer["settled"] else sys.stderr)
    if not answer["settled"]:
        if not args.json and not args.quiet:
            print(f"rota: the time is up, not all are settled{f': {why}' if why else ''}", file=sys.stderr)
        return 4
    return 0 if all_well(answer["counts"]) else 1


def patiently(connection: "Connection", args: "argparse.Namespace", timeout_s: "float | None") -> "dict[str, Any]":
    """Wait, and say why if nothing runs: it may be that this never ends."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    said = ""
    while True:
        left = STUCK_S if deadline is None else min(STUCK_S, max(0.0, deadline - time.monotonic()))
        answer = connection.ask("wait", sel=args.selector, timeout_s=left)
        if answer["settled"] or (deadline is not None and time.monotonic() >= deadline):
            return answer
        why = stuck(connection, args.selector, answer["counts"])
        if why and (now := re.sub("[0-9]+", "#", why)) != said and not args.quiet:  # a time that passes is no news
            said = now
            print(f"rota: nothing runs of what this waits for: {why}", file=sys.stderr)


def stuck(connection: "Connection", selector: "list[str]", counts: "Mapping[str, int]") -> str:
    """Why nothing runs; empty if something does, or may soon."""
    if any(counts.get(state) for state in ("RUNNING", "STARTING", "KILLING")):
        return ""
    held, live = counts.get("HOLDING", 0), sum(counts.get(state, 0) for state in ("WAITING", "PENDING", "MISSING"))
    words = f"rota release {' '.join(selector) or '--all'}"
    if held and not live:
        return f"{jobs_word(held)} {'is' if held == 1 else 'are'} held: this ends only after {words}"
    rows = connection.ask("status", sel=selector, brief=True).get("why") or [{"reason": ""}]
    return str(rows[0]["reason"]) + (f"; {held:,} more are held: {words}" if held else "")


def timeout_of(text: "str | None") -> "float | None":
    """Seconds; here a bare number is seconds, since no scheduler has a say in it."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        from rota.model.amounts import parse_duration

        return float(parse_duration(text))
    if not 0 <= value <= 1e9:
        from rota.model.errors import UsageError

        raise UsageError(f"--timeout {text}: give 0 or more seconds")
    return value


def all_well(counts: "Mapping[str, int]") -> bool:
    """True if nothing but COMPLETED is counted."""
    return not any(count for state, count in counts.items() if state != "COMPLETED")

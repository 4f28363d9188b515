"""`rota failures`: what failed, those together that look alike, and what to do."""

from rota.cli.jobs import exit_word
from rota.cli.link import look
from rota.cli.show import clean, jobs_word, paragraph, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from rota.cli.parser import Parser

MOST = 20
"""Groups that are printed."""


def configure(parser: "Parser", command: str) -> None:
    """The options of `failures`."""
    parser.selectors()
    parser.json('{"groups": [{"reason": …, "exit_code": …, "host": …, "last_line": …, "count": …, "commands": […]}]}')
    parser.examples("rota failures", "rota failures 7", "rota failures @align --json")


def execute(args: "argparse.Namespace") -> int:
    """Print the groups of failures, the largest first."""
    with look(args) as connection:
        answer = connection.ask("failures", sel=args.selector)
    if args.json:
        print_json(answer)
        return 0
    groups = answer["groups"]
    if not groups:
        print("nothing failed" + (f"; {jobs_word(answer['omitted'])} omitted" if answer["omitted"] else ""))
        return 0
    for group in groups[:MOST]:
        paragraph(f"{jobs_word(group['count'])}: {how(group)}")
        if group.get("last_line"):
            print(f"  | {clean(group['last_line'])}")
        more = ", …" if group["count"] > len(group["examples"]) else ""
        print(f"  {', '.join(group['examples'])}{more}")
        for command in group["commands"]:
            print(f"    {clean(command)}")
    if len(groups) > MOST:
        rest = sum(group["count"] for group in groups[MOST:])
        print(f"and {jobs_word(rest)} in {len(groups) - MOST:,} more groups (--json has all)")
    if answer["omitted"]:
        print(f"{jobs_word(answer['omitted'])} omitted because of failures: rota explain :omitted")
    return 0


def how(group: "dict[str, Any]") -> str:
    """How the jobs of a group ended, and where."""
    word, reason = exit_word(group), group["reason"]
    what = f"exit {word}" if reason == "exit" else word if reason == "signal" else reason
    return f"{what} on {clean(group['host'])}" if group.get("host") else what

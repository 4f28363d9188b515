"""`rota retry`, `kill`, `hold`, `release`, `remove`: what changes jobs."""

import sys

from rota.cli.link import connect
from rota.cli.show import jobs_word, print_json
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from rota.cli.parser import Parser

_DONE = {"retry": "will run again", "kill": "killed", "hold": "held", "release": "released", "remove": "removed"}
_EXAMPLES = {
    "retry": ("rota retry 7 :failed", "rota retry 7.12", "rota retry :failed --all --dry-run"),
    "kill": ("rota kill 7", "rota kill 7.1-99", "rota kill :pending --dry-run", "rota kill 7.12 --confirm-dead"),
    "hold": ("rota hold 7", "rota hold 7 --stop"),
    "release": ("rota release 7",),
    "remove": ("rota remove 7", "rota remove :completed", "rota remove --all"),
}
_STATES = {
    "retry": "what is settled (by default not what COMPLETED: name :completed to run that again too)",
    "kill": "what is not settled",
    "hold": "what waits",
    "release": "what is held",
    "remove": "what is settled",
}


def configure(parser: "Parser", command: str) -> None:
    """The options of all of them."""
    parser.selectors()
    parser.add_argument("--all", action="store_true", help="everything; needed where no SELECTOR is given")
    parser.add_argument("--dry-run", action="store_true", help="only say which jobs it would be")
    if command == "kill":
        parser.add_argument(
            "--confirm-dead", action="store_true", help="you know that MISSING jobs are dead: give them up"
        )
    if command == "hold":
        parser.add_argument("--stop", action="store_true", help="also what runs: it is ended, and held")
    parser.json('{"jobs": …, "skipped": […], "sample": […]}')
    parser.description = f"{parser.description} Concerns {_STATES[command]}."
    parser.examples(*_EXAMPLES[command])


def execute(args: "argparse.Namespace") -> int:
    """Ask for the change and say what it met."""
    op = args.command_name
    if not args.selector and not args.all:
        raise UsageError(f"{op} which jobs? Give a SELECTOR (7, 7.12, @name, :state), or --all for everything")
    extra = {name: getattr(args, name) for name in ("confirm_dead", "stop") if hasattr(args, name)}
    with connect(args) as connection:
        answer = connection.ask(op, sel=args.selector, all=args.all, dry_run=args.dry_run, **extra)
    if args.json:
        print_json(answer)
        return 0
    count = answer["jobs"]
    sample = answer.get("sample") or []
    if args.dry_run:
        more = f" ({', '.join(sample)}{', …' if count > len(sample) else ''})" if sample else ""
        print(f"{jobs_word(count)} would be concerned{more}; nothing was changed")
    else:
        print(f"{jobs_word(count)} {_DONE[op]}")
    for row in answer.get("skipped") or ():
        print(f"rota: {jobs_word(row['jobs'])} left alone: {row['reason']}", file=sys.stderr)
    return 0

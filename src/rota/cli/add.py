"""`rota add`: queue commands."""

import argparse
import sys

from rota.cli.link import connect_or_start
from rota.cli.parser import Parser
from rota.cli.show import print_json
from rota.cli.submitting import configure_submission, print_dry_run, say_about, submission_of
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def configure(parser: Parser, command: str) -> None:
    """The options of `add`."""
    parser.add_argument("--dry-run", action="store_true", help="show what would be added")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print the batch id")
    parser.add_argument(
        "--once", nargs="?", const="cwd", choices=("cwd", "command"), metavar="command",
        help="leave out jobs whose command and directory are queued or done; --once=command: wherever they ran",
    )  # fmt: skip
    parser.add_argument("--rerun", action="store_true", help="with --once: say so, but add them nevertheless")
    parser.json('{"batch": 7, "jobs": 600, "duplicates": 0}')
    configure_submission(parser)
    parser.examples(
        "rota add -- sleep 10",
        "rota add --array 1-1000%50 -c 2 --mem 4G -t 1h -- ./simulate --seed {index}",
        "rota add --values a,b,c -- 'sort {}.txt | uniq > {}.out'",
        "rota add --param k=3,5,7 --param sample@samples.txt --name align -- ./align -k {k} {sample}",
        "rota add -f commands.txt --retries 2",
        "rota add --after @align -- ./merge",
        "rota add --array 1-1000 --after 7 --each -- ./second-step {index}",
        "rota add --after @align --live=rerun --name report -- ./report",
        "rota add -f commands.txt --on-batch-end 'mail -s \"$ROTA_BATCH: $ROTA_FAILED failed\" me < /dev/null'",
        "rota add --once -f commands.txt     # again: adds only what is new",
    )


def duplicates(answer: "dict[str, Any]", jobs: int, rerun: bool) -> str:
    """How many jobs were there already, in words."""
    known, twice = answer["duplicates"] - answer.get("repeated", 0), answer.get("repeated", 0)
    words = []
    if known:
        example = answer["example"]
        words.append(f"{known:,} of {jobs:,} are there already, e.g. {example['id']} ({example['state']})")
    if twice:
        words.append(f"{twice:,} of {jobs:,} are there twice in this submission")
    done = "added again" if rerun else "not added" if answer["batch"] is not None else "nothing was added"
    return f"{', and '.join(words)}: {done}"


def execute(args: argparse.Namespace) -> int:
    """Check and send the jobs, and print the batch id."""
    from rota.submission import send

    submission = submission_of(args)
    submission.once, submission.rerun = args.once, args.rerun
    if args.rerun and args.once is None:
        raise UsageError("--rerun goes with --once")
    if args.dry_run:
        print_dry_run(args, submission)
        return 0
    connection, _ = connect_or_start(args.home)
    with connection:
        answer = send(connection, submission)
    if args.json:
        print_json({name: answer.get(name, 0) for name in ("batch", "jobs", "duplicates")})
    elif not args.quiet and answer["batch"] is not None:
        print(answer["batch"])
    if answer["duplicates"]:
        print(f"rota: {duplicates(answer, submission.spec.count, args.rerun)}", file=sys.stderr)
    say_about(args, submission, answer)
    return 0

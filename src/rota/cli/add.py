"""`rota add`: queue commands."""

import argparse

from rota.cli.link import connect_or_start
from rota.cli.parser import Parser
from rota.cli.show import print_json
from rota.cli.submitting import configure_submission, print_dry_run, say_about, submission_of


def configure(parser: Parser, command: str) -> None:
    """The options of `add`."""
    parser.add_argument("--dry-run", action="store_true", help="show what would be added")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print the batch id")
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
    )


def execute(args: argparse.Namespace) -> int:
    """Check, send, print the batch id."""
    from rota.submission import send

    submission = submission_of(args)
    if args.dry_run:
        print_dry_run(args, submission)
        return 0
    connection, _ = connect_or_start(args.home)
    with connection:
        answer = send(connection, submission)
    if args.json:
        print_json({name: answer.get(name, 0) for name in ("batch", "jobs", "duplicates")})
    elif not args.quiet:
        print(answer["batch"])
    say_about(args, submission, answer)
    return 0

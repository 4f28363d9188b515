"""`rota explain`: why a job does not run, or how it ended."""

from rota.cli.jobs import attempt_line, attempt_table
from rota.cli.link import connect
from rota.cli.show import Table, clean, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from rota.cli.parser import Parser


def configure(parser: "Parser", command: str) -> None:
    """The options of `explain`."""
    parser.add_argument("job", metavar="JOB", help="a job, as in 7.12")
    parser.json('{"job": …, "state": …, "reason": …, "verdicts": […]}')
    parser.examples("rota explain 7.12", "rota explain 7.12 --json")


def execute(args: "argparse.Namespace") -> int:
    """Print the state of a job, its reason, every location's verdict, every attempt."""
    with connect(args) as connection:
        answer = connection.ask("explain", job=args.job)
    if args.json:
        print_json(answer)
        return 0
    reason = answer.get("reason")
    print(f"{answer['job']} is {answer['state']}" + (f": {clean(reason)}" if reason else ""))
    needs, given = answer.get("needs"), answer.get("given")
    if needs != given and answer["state"] == "PENDING":
        print(f"it asks for {needs}, learned from the group {clean(answer.get('group'))} (given: {given})")
    if answer["state"] in ("WAITING", "PENDING", "HOLDING"):
        for line in answer.get("learned") or ():
            if "asked nothing" not in line:
                print(f"  {clean(line)}")
    for title, levels in (("SITE OR QUEUE", ("queue",)), ("NODE", ("node", None))):
        verdicts = [row for row in answer.get("verdicts") or () if row.get("level") in levels]
        if verdicts:
            print()
            table = Table(title, "FILTER", "CODE", "WAITING HELPS", "DETAIL")
            table.print(
                [
                    [row["location"], row["filter"], row["code"], "no" if row.get("lasting") else "yes", row["detail"]]
                    for row in verdicts
                ]
            )
    attempts = answer.get("attempts") or []
    if attempts:
        print()
        attempt_table().print([attempt_line(row) for row in attempts])
    return 0

"""`rota explain`: why jobs do not run, or how they ended."""

import re

from rota.cli.jobs import attempt_line, attempt_table
from rota.cli.link import look, pages
from rota.cli.show import Once, Table, clean, jobs_word, paragraph, print_json, size
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from rota.cli.parser import Parser

JOB = re.compile(r"[0-9]+\.[0-9]+")
TAIL = 5
"""Lines of standard error that are shown."""


def configure(parser: "Parser", command: str) -> None:
    """The options of `explain`."""
    parser.selectors()
    parser.json('{"job": …, "state": …, "reason": …, "blockers": […]}, one object per line for each job')
    parser.examples(
        "rota explain 7.12", "rota explain 7", "rota explain @align :pending", "rota explain :failed --json"
    )


def execute(args: "argparse.Namespace") -> int:
    """Print why each job is where it is; of several, those together of which the same can be said."""
    words = args.selector
    if not words:
        raise UsageError("explain what? Name jobs, as in rota explain 7.12, or rota explain :pending")
    single = words[0] if len(words) == 1 and JOB.fullmatch(words[0]) else None
    with look(args) as connection:
        if single is not None:
            answer = connection.ask("explain", job=single)
            print_json(answer) if args.json else print_job(answer)
        elif args.json:
            for rows in pages(connection, "explain", "jobs", most_at_once=100, sel=words):
                for row in rows:
                    print_json(row)
        else:
            answer = connection.ask("explain", sel=words, groups=True)
            print_groups(connection, answer)
    return 0


def print_groups(connection: "Any", answer: "dict[str, Any]") -> None:
    """Print what is said of each group of jobs; of a single job, all that is said of it."""
    groups = answer["groups"]
    if len(groups) == 1 and groups[0]["jobs"] == 1:
        print_job(connection.ask("explain", job=groups[0]["examples"][0]))
        return
    if not groups:
        print("no jobs")
    for number, group in enumerate(groups):
        if number:
            print()
        examples, count = group["examples"], group["jobs"]
        named = examples[0] if count == 1 else f"{jobs_word(count)} ({', '.join(examples[:3])}{', …' * (count > 3)})"
        verb = "is" if count == 1 else "are"
        first = "" if count == 1 or group.get("alike", True) else "the first of them "
        paragraph(f"{named} {verb} {group['state']}: {first}{clean(group['reason'])}")
        for command in group.get("commands") or ():
            print(f"  {command}")
    if answer.get("more"):
        print(f"\nand {jobs_word(answer['more'])} more: name fewer")


def print_job(answer: "dict[str, Any]") -> None:
    """Print the state of a job, its reason, every location's verdict, every attempt."""
    reason = answer.get("reason")
    once = Once(reason or "")
    paragraph(f"{answer['job']} is {answer['state']}" + (f": {clean(reason)}" if reason else ""))
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
                    [
                        row["location"],
                        row["filter"],
                        row["code"],
                        "no" if row.get("lasting") else "yes",
                        once.show(row["detail"], f"of {row['location']}"),
                    ]
                    for row in verdicts
                ]
            )
    brokered = answer.get("brokerage")
    if brokered and (brokered["now"] or brokered["chosen"]):
        print("\nthe brokerage:")
        for line in brokered["now"]:
            print(f"  {clean(line)}")
        for row in brokered["chosen"]:
            print(f"  {row['allocation']} at {clean(row['queue'])} ({row['state']}): {clean(row['why'])}")
    if answer.get("data"):
        print_data(answer["data"])
    attempts = answer.get("attempts") or []
    if attempts:
        print()
        attempt_table().print([attempt_line(row, once) for row in attempts])
    tail = (answer.get("stderr_tail") or "").rstrip().splitlines()[-TAIL:]
    if tail:
        print("\nthe end of its output:")
        for line in tail:
            print(f"  | {clean(line)}")
    commands = answer.get("commands") or []
    if commands:
        print("\nwhat may help:")
        for command in commands:
            print(f"  {command}")


def _nowhere(row: "dict[str, Any]") -> str:
    """What is said of an input that is at no place that is known: objects are looked for when a job has its place."""
    return "not seen" if row["path"].startswith("s3://") else "nobody has it"


def print_data(data: "dict[str, Any]") -> None:
    """Print which of a job's files are where."""
    if not data["files"]:
        return
    print()
    Table("INPUT", "SIZE", "AT", right=["SIZE"]).print(
        [
            [row["path"], None if row["bytes"] is None else size(row["bytes"]), ", ".join(row["at"]) or _nowhere(row)]
            for row in data["files"]
        ]
    )
    print()
    rows = [[row["place"], size(row["bytes"]), f"of {size(data['bytes'])}"] for row in data["places"]]
    if any(row["at"] for row in data["files"]):
        Table("PLACE", "PRESENT", "", right=["PRESENT"]).print(rows)
    if data["chosen"]:
        print(f"on {data['chosen']['place']}: {data['chosen']['why']}")

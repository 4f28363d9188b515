"""`rota limit`: named limits on how many jobs run at once."""

from rota.cli.link import connect
from rota.cli.show import Table, print_json
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from rota.cli.parser import Parser


def configure(parser: "Parser", command: str) -> None:
    """Its options."""
    parser.add_argument("limits", nargs="*", metavar="NAME:N", help="set: at most N jobs with this limit at once")
    parser.add_argument("--remove", action="append", default=[], metavar="NAME", help="take a limit away (repeatable)")
    parser.json('{"limits": […]}')
    parser.examples(
        "rota limit                    # all of them, and how much is in use",
        "rota limit irods:10           # from now on, for all jobs added with --limit irods",
        "rota limit --remove irods",
    )


def execute(args: "argparse.Namespace") -> int:
    """Change what is to be changed, all or nothing; else list."""
    wanted: dict[str, int | None] = dict.fromkeys(args.remove)
    for text in args.limits:
        name, colon, count = text.rpartition(":")
        if not colon or not count.isdigit():
            raise UsageError(f"limit '{text}': write NAME:N with N from 0, as in irods:10")
        wanted[name] = int(count)
    with connect(args) as connection:
        answer = connection.ask("limit", set=wanted)
    if args.json:
        print_json(answer)
    elif answer["limits"]:
        table = Table("LIMIT", "COUNT", "IN USE", right=["COUNT", "IN USE"])
        table.print(
            [[row["name"], "none" if row["count"] is None else row["count"], row["used"]] for row in answer["limits"]]
        )
    else:
        print("no limits")
    return 0

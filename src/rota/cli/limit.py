"""`rota limit`: named limits on how many jobs run at once, how many start in a time, and when they may start."""

from rota.cli.link import connect
from rota.cli.show import Table, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from rota.cli.parser import Parser


def configure(parser: "Parser", command: str) -> None:
    """The options of limit."""
    parser.add_argument(
        "limits",
        nargs="*",
        metavar="NAME:RULE",
        help="set it, all of it: a count 10, a rate 100/min (s, min, h, d), hours 22:00-06:00, dates "
        "2026-12-24 18:00..2026-12-27; several are joined by commas",
    )
    parser.add_argument("--remove", action="append", default=[], metavar="NAME", help="take a limit away (repeatable)")
    parser.json('{"limits": […]}')
    parser.examples(
        "rota limit                    # all of them, and how much is in use",
        "rota limit irods:10           # at most 10 at once, of all jobs added with --limit irods",
        "rota limit api:100/min        # at most 100 started in any minute",
        "rota limit night:22:00-06:00  # started only at night, by the manager's local time",
        "rota limit api:5,100/min,08:00-18:00",
        "rota limit --remove irods",
    )


def execute(args: "argparse.Namespace") -> int:
    """Change what is to be changed, all or nothing; then list."""
    wanted: dict[str, Any] = dict.fromkeys(args.remove)
    if args.limits:
        from rota.model.errors import UsageError
        from rota.model.limits import limit_settings

        given = limit_settings(args.limits, all_set=True)
        if both := sorted(given.keys() & wanted.keys()):
            raise UsageError(f"limit '{both[0]}' is to be set and removed: which?")
        wanted |= given
    with connect(args) as connection:
        answer = connection.ask("limit", set=wanted)
    if args.json:
        print_json(answer)
    elif answer["limits"]:
        _print(answer["limits"])
    else:
        print("no limits")
    return 0


def _print(rows: "list[dict[str, Any]]") -> None:
    """Print the limits, with the columns in which any has something."""
    columns = {
        "LIMIT": [row["name"] for row in rows],
        "COUNT": ["none" if row["count"] is None else row["count"] for row in rows],
        "IN USE": [row["used"] for row in rows],
    }
    if any(row["rate"] for row in rows):
        columns["RATE"] = [row["rate"] for row in rows]
        columns["STARTED"] = [_started(row) for row in rows]
    if any(row["window"] for row in rows):
        columns["WINDOW"] = [row["window"] for row in rows]
        columns["NOW"] = [_window(row) for row in rows]
    table = Table(*columns, right=["COUNT", "IN USE", "RATE"])
    table.print(list(zip(*columns.values(), strict=True)))


def _started(row: "dict[str, Any]") -> "str | None":
    if row["rate"] is None:
        return None
    wait = row["next_in_s"]
    return f"{row['started']}" if wait is None else f"{row['started']}, next in {_wait(wait)}"


def _window(row: "dict[str, Any]") -> "str | None":
    if row["window"] is None:
        return None
    if row["open"]:
        return "open"
    wait = row["opens_in_s"]
    return "closed for good" if wait is None else f"opens in {_wait(wait)}"


def _wait(seconds: float) -> str:
    from rota.model.amounts import format_duration

    whole = int(seconds) + (seconds > int(seconds))
    return format_duration(whole if whole < 120 else -(-whole // 60) * 60)

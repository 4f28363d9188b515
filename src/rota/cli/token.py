"""`rota token`: who else may speak to the manager, and how far; `rota audit`: who did what, and what was refused."""

import os

from rota.cli.link import connect
from rota.cli.show import Table, clean, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any

    from rota.cli.parser import Parser
    from rota.manager.paths import Paths


def configure(parser: "Parser", command: str) -> None:
    """The options of token and audit."""
    if command == "audit":
        parser.add_argument("--refused", action="store_true", help="only what was refused")
        parser.add_argument("-n", "--last", type=int, default=1000, metavar="N", help="only the last N (default: 1000)")
        parser.json("a line of JSON for each: at, by, address, action, target, outcome")
        parser.examples("rota audit --refused     # who was turned away", "rota audit -n 20 --json")
        return
    parser.add_argument("action", choices=("new", "list", "revoke", "rotate"), help="what to do")
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the token")
    parser.add_argument(
        "--scope",
        choices=("read", "submit", "admin"),
        default="read",
        help="of a new one: read (look), submit (look and add), admin (all); default: read",
    )
    parser.add_argument("--lifetime", metavar="TIME", help="until it opens nothing any more: 12h, 30d (default: none)")
    parser.add_argument("--output", metavar="FILE", help="write the token there (mode 0600) and do not print it")
    parser.json("what the manager answers")
    parser.examples(
        "rota token new ci --scope submit --lifetime 30d --output ci.token",
        "ROTA_TOKEN_FILE=ci.token rota add -- make   # no more than its scope allows",
        "rota token rotate client                    # after a theft: closes all sessions that came with it",
        "rota token revoke ci",
    )


def execute(args: "argparse.Namespace") -> int:
    """Ask the manager, or read the record."""
    if args.command_name == "audit":
        return _audit(args)
    from rota.model.amounts import parse_duration
    from rota.model.errors import UsageError

    if (args.name is None) != (args.action == "list"):
        raise UsageError(f"token {args.action}: give {'no name' if args.action == 'list' else 'a name'}")
    asked: dict[str, Any] = {"action": args.action}
    if args.name is not None:
        asked["name"] = args.name
    if args.action == "new":
        asked["scope"] = args.scope
    if args.lifetime is not None:
        asked["lifetime_s"] = parse_duration(args.lifetime)
    with connect(args) as connection:
        answer = connection.ask("token", **asked)
    if args.output is not None and "token" in answer:
        _write(args.output, answer.pop("token"))
    if args.json:
        print_json(answer)
    elif args.action == "list":
        _list(answer["tokens"])
    else:
        if answer.get("closed"):
            print(f"{answer['closed']} sessions closed")
        if "token" in answer and args.name != "client":
            print(answer["token"])
    return 0


def _write(path: str, token: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(token + "\n")


def _list(rows: "list[dict[str, Any]]") -> None:
    table = Table("TOKEN", "SCOPE", "CREATED", "EXPIRES", "LAST USED")
    table.print(
        [
            (row["name"], row["scope"], *(_time(row[name]) for name in ("created", "expires", "last_used")))
            for row in rows
        ]
    )


def _time(at: "float | None") -> "str | None":
    import time

    return None if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _audit(args: "argparse.Namespace") -> int:
    import json

    from rota.manager.paths import Paths

    rows = [row for row in records(Paths(args.home)) if not args.refused or row["outcome"] != "ok"][
        -max(1, args.last) :
    ]
    if args.json:
        for row in rows:
            print(json.dumps(row))
        return 0
    table = Table("AT", "BY", "ADDRESS", "ACTION", "TARGET", "OUTCOME")
    table.print([(_time(row["at"]), *(clean(row[name]) for name in FIELDS[1:])) for row in rows])
    return 0


FIELDS = ("at", "by", "address", "action", "target", "outcome")


def records(paths: "Paths") -> "Iterator[dict[str, Any]]":
    """What the record has, oldest first; needs no manager. A line that is torn is left out."""
    import json

    for name in (paths.audit + ".1", paths.audit):
        try:
            with open(name, encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        row = json.loads(line)
                    except ValueError:
                        continue
                    if isinstance(row, dict) and FIELDS[0] in row:
                        yield {name: row.get(name, "") for name in FIELDS}
        except FileNotFoundError:
            continue

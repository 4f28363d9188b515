"""`rota data`: which files are at which places, what is being brought, and what caches have."""

import os

from rota.cli.link import connect
from rota.cli.show import Table, print_json, size, when
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from rota.cli.parser import Parser

ACTIONS = ("list", "add", "drop", "verify")
SHOWN = 10
"""Transfers that are over and shown."""


def configure(parser: "Parser", command: str) -> None:
    """The options of data."""
    parser.add_argument("action", nargs="?", choices=ACTIONS, help="default: replicas, transfers and caches")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files, directories, patterns, or s3://BUCKET/KEY")
    parser.add_argument("--at", metavar="PLACE", help="only there: a site, or SITE/HOST")
    parser.add_argument("--checksum", action="store_true", help="add: work out their digests, for verify")
    parser.add_argument("--files", action="store_true", help="drop: remove the files too, if rota brought them")
    parser.json(
        '{"replicas": [{"path", "location", "size", "checksum", "valid", …}], '
        '"transfers", "caches", "moved", "outputs": [{"job", "outputs", "place", "since", "tries", "why", …}]}'
    )
    parser.examples(
        "rota data                             # replicas, transfers, caches",
        "rota data list /data --at farm",
        "rota data add /data/big.dat --at farm/node3",
        "rota data add '/data/*.fq' --checksum",
        "rota data verify /data                # is all there, and as it was?",
        "rota data drop /data/old --files",
    )


def execute(args: "argparse.Namespace") -> int:
    """Do what is asked, and print what it concerns."""
    action = args.action or "list"
    if args.checksum and action != "add":
        raise UsageError("--checksum is for data add")
    if args.files and action != "drop":
        raise UsageError("--files is for data drop")
    if action == "drop" and not args.paths and args.at is None:
        raise UsageError("data drop of what? name paths, or a place by --at")
    more = {"checksum": True} if args.checksum else {"files": True} if args.files else {}
    with connect(args) as connection:
        answer = connection.ask("data", action=action, paths=_paths(args.paths, action), location=args.at, **more)
    rows = answer["replicas"]
    if args.json:
        print_json(answer)
    else:
        _print_replicas(rows, action)
        if args.action is None:
            _print_outputs(answer["outputs"])
            _print_transfers(answer["transfers"])
            _print_caches(answer["caches"])
    return 1 if action == "verify" and not all(row["valid"] for row in rows) else 0


def _paths(given: "list[str]", action: str) -> "list[str]":
    """Absolute paths; what a pattern matches here, where files are added."""
    out: list[str] = []
    for word in given:
        if word.startswith("s3://"):
            out.append(word)
            continue
        path = os.path.abspath(os.path.expanduser(word))
        if action == "add" and any(sign in path for sign in "*?["):
            import glob

            found = sorted(glob.glob(path, recursive=True))
            if not found:
                raise UsageError(f"{word}: nothing here matches that")
            out += found
        else:
            out.append(path)
    return out


def _print_replicas(rows: "list[dict[str, Any]]", action: str) -> None:
    if not rows:
        print("no replicas")
        return
    table = Table("PATH", "PLACE", "SIZE", "CHECKSUM", "STATE", right=["SIZE"])
    table.print(
        [
            [
                row["path"],
                row["location"],
                size(row["size"]),
                (row["checksum"] or "")[:12] or None,
                _state(row, action),
            ]
            for row in rows
        ]
    )


def _state(row: "dict[str, Any]", action: str) -> str:
    if action == "drop":
        return "dropped"
    if row["valid"]:
        return row["why"] or ("cached" if row["cached"] else "there")
    return f"not valid: {row['why']}"


def _print_outputs(rows: "list[dict[str, Any]]") -> None:
    if not rows:
        return
    print()
    table = Table("OUTPUT", "OF JOB", "AT", "SINCE", "TRY", "WHY IT IS NOT WHERE IT BELONGS", right=["TRY"])
    table.print(
        [
            [path, row["job"], row["place"], when(row["since"]), row["tries"], row["why"] or None]
            for row in rows
            for path in row["outputs"]
        ]
    )


def _print_transfers(rows: "list[dict[str, Any]]") -> None:
    live = [row for row in rows if row["state"] in ("waiting", "running")]
    past = [row for row in rows if row["state"] not in ("waiting", "running")][:SHOWN]
    if not live and not past:
        return
    print()
    table = Table(
        "TRANSFER", "FROM", "TO", "STATE", "DONE", "SIZE", "TRY", "BEGAN", "WHY", right=["DONE", "SIZE", "TRY"]
    )
    table.print(
        [
            [
                row["path"],
                row["source"],
                row["target"],
                row["state"],
                size(row["done"]),
                size(row["size"]),
                row["tries"],
                when(row["began"]),
                row["why"] or None,
            ]
            for row in (*live, *past)
        ]
    )


def _print_caches(rows: "list[dict[str, Any]]") -> None:
    rows = [row for row in rows if row["files"] or row["most"] is not None]
    if not rows:
        return
    print()
    table = Table("CACHE AT", "FILES", "SIZE", "AT MOST", "IN USE", right=["FILES", "SIZE", "AT MOST", "IN USE"])
    table.print(
        [
            [
                row["place"],
                row["files"],
                size(row["bytes"]),
                None if row["most"] is None else size(row["most"]),
                size(row["in_use"]),
            ]
            for row in rows
        ]
    )

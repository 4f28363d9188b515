"""`rota jobs` and `rota history`: one line per job, one line per attempt."""

from rota.cli.link import look, pages
from rota.cli.show import Once, Table, clean, print_json, seconds, size, when
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from rota.cli.parser import Parser

JOB_FIELDS = (
    "id", "state", "attempt", "exit_code", "signal", "reason", "site", "host", "native_id", "command", "values", "cwd",
    "stdout", "stderr", "wall_s", "cpu_s", "peak_memory_bytes", "started", "ended", "batch", "name", "priority",
    "peak_disk_bytes", "asked_cores", "asked_memory_bytes", "asked_time_s",
)  # fmt: skip
"""The fields of `rota jobs --json`, in this order."""

ATTEMPT_FIELDS = (
    "id", "attempt", "state", "exit_code", "signal", "reason", "host", "runner", "started", "ended", "wall_s", "cpu_s",
    "peak_memory_bytes", "note", "peak_disk_bytes",
)  # fmt: skip
"""The fields of `rota history --json`, in this order."""


def configure(parser: "Parser", command: str) -> None:
    """The options of jobs and history."""
    parser.selectors()
    parser.add_argument("-n", "--limit", type=int, metavar="N", help="at most so many lines")
    parser.json("one object per line")
    search = parser.add_argument_group("searching (all that are given must fit)")
    add = search.add_argument
    add("--command", metavar="TEXT", help="this text is in the command")
    add("--name", action="append", default=[], metavar="NAME", help="the same as @NAME")
    add("--host", metavar="HOST", help="it ran there")
    add("--exit-code", type=int, metavar="N", help="it ended with this exit code")
    add("--reason", metavar="REASON", help="it ended for this reason: exit, signal, time, oom, lost, …")
    add("--since", metavar="WHEN", help="it ended after that: 2h (ago), 2030-01-31, 2030-01-31T22:30")
    add("--until", metavar="WHEN", help="it ended before that")
    if command == "history":
        states = "the attempt's: completed, failed, aborted, retried, lost, superseded"
        add("-s", "--state", action="append", default=[], metavar="STATE", help=states)
        parser.examples(
            "rota history 7.12", "rota history 7 -n 20", "rota history @align --json",
            "rota history --command samtools --exit-code 137 --since 7d", "rota history --host node12 --state failed",
        )  # fmt: skip
        return
    add("-s", "--state", action="append", default=[], metavar="STATE", help="the same as :STATE")
    parser.add_argument("--newest", action="store_true", help="the newest first")
    parser.add_argument(
        "--fields", metavar="A,B,…", nargs="?", const="", help="these fields, separated by tabs; alone: which there are"
    )
    parser.add_argument(
        "--live", action="store_true", help="what runs: memory, CPU and last line, on a terminal again and again"
    )
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="S", help="with --live: seconds between looks (default 2)"
    )
    parser.examples(
        "rota jobs 7", "rota jobs 7 :failed", "rota jobs --newest -n 10", "rota jobs @align --json | jq -r .command",
        "rota jobs 7 :failed --fields id,exit_code,command", "rota jobs --command bowtie --exit-code 1 --since 1d",
        "rota jobs --live",
    )  # fmt: skip


def execute(args: "argparse.Namespace") -> int:
    """Ask page by page, and print the rows as they come."""
    if args.limit is not None and args.limit < 1:
        raise UsageError(f"--limit {args.limit}: give 1 or more")
    return attempts(args) if args.command_name == "history" else jobs(args)


def jobs(args: "argparse.Namespace") -> int:
    """`rota jobs`."""
    states = [f":{state.lstrip(':')}" for words in args.state for state in words.split(",")]
    words = [*args.selector, *states, *(f"@{name.lstrip('@')}" for name in args.name)]
    if args.live:
        from rota.cli.live import show_live

        return show_live(args, words)
    if args.fields == "":
        print("\n".join(JOB_FIELDS))
        return 0
    fields = chosen(args.fields)
    numbers = ("TRY", "EXIT", "WALL/TIME", "MEMORY/ASKED")
    table = Table("JOB", "STATE", *numbers[:2], "HOST", *numbers[2:], "COMMAND", right=numbers)
    found = False
    with look(args) as connection:
        for rows in pages(connection, "jobs", "jobs", args.limit, sel=words, newest=args.newest, **search_of(args)):
            found = True
            if args.json:
                for row in rows:
                    print_json(ordered(row, JOB_FIELDS))
            elif fields:
                print("\n".join("\t".join(field_text(row.get(name)) for name in fields) for row in rows))
            else:
                table.print([job_line(row) for row in rows])
    if not found and not args.json and not fields:
        print("no jobs")
    return 0


def attempts(args: "argparse.Namespace") -> int:
    """`rota history`."""
    table, once = attempt_table(), Once()
    found = False
    words = [*args.selector, *(f"@{name.lstrip('@')}" for name in args.name)]
    states = [state.lstrip(":") for given in args.state for state in given.split(",")]
    search = {**search_of(args), **({"states": states} if states else {})}
    with look(args) as connection:
        for rows in pages(connection, "history", "attempts", args.limit, sel=words, **search):
            found = True
            if args.json:
                for row in rows:
                    print_json(ordered(row, ATTEMPT_FIELDS))
            else:
                table.print([attempt_line(row, once) for row in rows])
    if not found and not args.json:
        print("no attempts")
    return 0


def search_of(args: "argparse.Namespace") -> "dict[str, Any]":
    """The search that the options ask for."""
    if args.exit_code is not None and not 0 <= args.exit_code <= 255:
        raise UsageError(f"--exit-code {args.exit_code}: give 0 to 255")
    given = {
        "command": args.command, "host": args.host, "exit_code": args.exit_code, "reason": args.reason,
        "since": moment("--since", args.since), "until": moment("--until", args.until),
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def moment(option: str, text: "str | None") -> "float | None":
    """Seconds since 1970 of a time in the past: a duration ago, or a date with or without a time of day."""
    if text is None:
        return None
    import time
    from datetime import datetime

    from rota.model.amounts import parse_duration

    try:
        return max(0.0, datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError):
        pass
    try:
        return max(0.0, time.time() - parse_duration(text))
    except UsageError:
        wanted = "a time ago (2h, 7d) or a date (2030-01-31, 2030-01-31T22:30)"
        raise UsageError(f"{option} {text}: give {wanted}") from None


def chosen(text: "str | None") -> "list[str]":
    """The fields of --fields."""
    if text is None:
        return []
    fields = [field.strip() for field in text.split(",")]
    for field in fields:
        if field not in JOB_FIELDS:
            raise UsageError(f"--fields: there is no '{field}'; the fields are {', '.join(JOB_FIELDS)}")
    return fields


def ordered(row: "dict[str, Any]", fields: "tuple[str, ...]") -> "dict[str, Any]":
    """A row with all of these fields, in this order, and after them what else the manager said."""
    return {**{name: row.get(name) for name in fields}, **row}


def field_text(value: "Any") -> str:
    """One field for `cut` and `awk`: no tab, no line end."""
    if value is None:
        return ""
    if isinstance(value, list | dict):
        import json

        return clean(json.dumps(value, ensure_ascii=False))
    return clean(str(value).replace("\\", "\\\\").replace("\t", "\\t"))


def ending(row: "dict[str, Any]") -> str:
    """How an attempt ended, in one word: an exit code, a signal, or a reason."""
    reason = row.get("reason")
    if row.get("state") == "OMITTED":
        return ""  # it never began; `explain` and the field `reason` have the sentence
    if reason in (None, "", "exit", "signal") or (row.get("exit_code") == 0 and row.get("state") == "COMPLETED"):
        return exit_word(row)
    return str(reason)


def exit_word(row: "dict[str, Any]") -> str:
    """`0`, `1`, `SIGKILL`."""
    if row.get("signal"):
        import signal

        try:
            return signal.Signals(row["signal"]).name
        except ValueError:
            return f"signal {row['signal']}"
    code = row.get("exit_code")
    return "" if code is None else str(code)


def job_line(row: "dict[str, Any]") -> "list[object]":
    """One row of the table of jobs."""
    return [
        row["id"], row["state"], row.get("attempt") or "", ending(row), row.get("host"),
        against(seconds(row.get("wall_s")), brief_time(row.get("asked_time_s"))),
        against(size(row.get("peak_memory_bytes")), size(row.get("asked_memory_bytes"))), command_text(row),
    ]  # fmt: skip


def against(used: str, asked: str) -> str:
    """What was used against what was asked for: `1.2M/4G`, `1.2M`, `/4G`."""
    return f"{used}/{asked}" if asked else used


def brief_time(asked: "int | None") -> str:
    """A time that was asked for: `1h30m`."""
    if not asked:
        return ""
    from rota.model.amounts import format_duration

    return format_duration(asked)


def command_text(row: "dict[str, Any]") -> str:
    """The command of a job as one line."""
    command = row.get("command")
    if isinstance(command, list):
        import shlex

        return shlex.join(command)
    return "" if command is None else str(command)


def attempt_table() -> Table:
    """The table of attempts, without rows."""
    numbers = ("TRY", "EXIT", "WALL", "MEMORY")
    return Table("JOB", "TRY", "STATE", "EXIT", "WALL", "MEMORY", "STARTED", "HOST", "NOTE", right=numbers)


def attempt_line(row: "dict[str, Any]", once: Once) -> "list[object]":
    """One row of the table of attempts."""
    note = once.show(row.get("note") or "", f"try {row['attempt']} of {row['id']}")
    return [
        row["id"], row["attempt"], row["state"], ending(row), seconds(row.get("wall_s")),
        size(row.get("peak_memory_bytes")), when(row.get("started")), row.get("host"), note,
    ]  # fmt: skip

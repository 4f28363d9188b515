"""`rota sites`, `runners`, `allocations`: where jobs run."""

import sys

from rota.cli.link import connect
from rota.cli.show import LONG, Table, clean, print_json, seconds, size, when
from rota.model.errors import NotFoundError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from rota.cli.parser import Parser

_SITES = (
    "name", "driver", "mode", "state", "partition", "pending", "running", "jobs", "cores", "memory", "gpus",
    "resources", "last_poll_s", "commands",
)  # fmt: skip
_RUNNERS = (
    "id", "state", "site", "host", "pid", "allocation", "connected", "cores", "memory", "gpus", "resources", "jobs",
    "slots", "silent_s",
)  # fmt: skip
_ALLOCATIONS = (
    "id", "state", "site", "native_id", "tag", "element", "mode", "shape", "cores", "memory", "time_s", "host", "jobs",
    "age_s", "reason",
)  # fmt: skip
"""A reason that is longer is shown below the table."""
_COLUMNS = {"sites": _SITES, "runners": _RUNNERS, "allocations": _ALLOCATIONS}
_NUMBERS = ("pending", "running", "jobs", "cores", "memory", "gpus", "pid", "slots", "element")
_TITLES = {"last_poll_s": "POLLED", "silent_s": "SILENT", "age_s": "AGE", "commands": "COMMANDS/MIN"}
_EXAMPLES = {
    "sites": (
        "rota sites",
        "rota sites slurm           # all that is known of one",
        "rota sites detect          # what this host has, as a config.toml",
        "rota sites detect --write",
        "rota sites clean           # destroy servers of ours in clouds that are of no allocation",
    ),
    "allocations": ("rota allocations", "rota allocations --live", "rota allocations --end a12"),
}


def configure(parser: "Parser", command: str) -> None:
    """The options of sites, allocations or runners."""
    if command == "sites":
        parser.add_argument(
            "site",
            nargs="*",
            metavar="NAME|detect|clean",
            help="this site, in full; find what there is; or destroy servers that nobody has",
        )
        parser.add_argument("-v", "--verbose", action="store_true", help="all that is known of every site")
        parser.add_argument("--write", action="store_true", help="detect: write $ROTA_HOME/config.toml")
        parser.add_argument("--force", action="store_true", help="detect --write: also where there is one (it is kept)")
        parser.json('{"sites": […]}; of clean {"deleted": […], "kept": […]}')
    else:
        if command == "allocations":
            parser.add_argument("--live", action="store_true", help="only those that are not over")
            words = "end this allocation (or say that it is dead); its jobs run again once it is over"
            parser.add_argument("--end", action="append", default=[], metavar="ID", help=words)
        parser.json(f'{{"{command}": […]}}')
    parser.examples(*_EXAMPLES.get(command, (f"rota {command}", f"rota {command} --json")))


def execute(args: "argparse.Namespace") -> int:
    """Ask for sites, runners or allocations, and print them."""
    what = args.command_name
    if what == "sites":
        if args.site == ["detect"]:
            from rota.cli.detect import detect

            return detect(args)
        if args.write or args.force:
            raise UsageError("--write and --force are for `rota sites detect`")
        if args.site[:1] == ["clean"]:
            return clean_sites(args)
    with connect(args) as connection:
        if what == "allocations" and args.end:
            connection.ask("end", ids=args.end)
        answer = connection.ask(what)
    rows = answer[what]
    if what == "sites":
        answer[what] = rows = chosen(rows, args.site)
    elif what == "allocations" and args.live:
        answer[what] = rows = [row for row in rows if row["state"].endswith("ING")]
    if what == "sites" and answer.get("config") and not args.json:
        print(f"rota: {clean(answer['config'])}", file=sys.stderr)
    if args.json:
        print_json(answer)
    elif not rows:
        print(f"no {what}")
    elif what == "sites" and (args.site or args.verbose):
        for number, row in enumerate(rows):
            print("\n" * (number > 0), end="")
            print_site(row)
    else:
        long = _numbered(rows) if what == "allocations" else {}
        print_rows(rows, _COLUMNS[what])
        for words, (number, count) in long.items():
            print(f"[{number}] {f'{count} times: ' if count > 1 else ''}{clean(words)}")
        for row in rows if what == "sites" else ():
            for line in troubles(row):
                print(f"{clean(row['name'])}: {line}")
    return 0


def clean_sites(args: "argparse.Namespace") -> int:
    """Destroy servers that are of no allocation, and print which."""
    with connect(args) as connection:
        answer = connection.ask("clean", sites=args.site[1:])
    if args.json:
        print_json(answer)
        return 0
    for row in answer["deleted"]:
        print(f"deleted {clean(row['name'])} ({clean(row['id'])}) at {clean(row['site'])}")
    print(f"{len(answer['deleted'])} deleted, {len(answer['kept'])} kept")
    return 0


def _numbered(rows: "list[dict[str, Any]]") -> "dict[str, tuple[int, int]]":
    """Long reasons, which go below the table once: reason → (number, how often). The rows have their beginning."""
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        words = row.get("reason") or ""
        if len(words) > LONG:
            number, count = found.get(words, (len(found) + 1, 0))
            found[words] = (number, count + 1)
            row["reason"] = f"{words[: LONG - 20]}… [{number}]"
    return found


def chosen(rows: "list[dict[str, Any]]", names: "Sequence[str]") -> "list[dict[str, Any]]":
    """The rows with these names; all if none are given."""
    known = {row["name"] for row in rows}
    for name in names:
        if name not in known:
            raise NotFoundError(f"there is no site '{name}'; the sites are: {', '.join(sorted(known))}")
    return [row for row in rows if not names or row["name"] in names]


def print_rows(rows: "list[dict[str, Any]]", columns: "Sequence[str]") -> None:
    """Print a table, with the columns in which there is anything."""
    cells = [{name: cell(name, row) for name in columns} for row in rows]
    names = [name for name in columns if any(row[name] not in (None, "") for row in cells)]
    titles = [_TITLES.get(name, title(name)) for name in names]
    right = [text for name, text in zip(names, titles, strict=True) if name in _NUMBERS]
    Table(*titles, right=right).print([[row[name] for name in names] for row in cells])


def title(name: str) -> str:
    """The title of a column."""
    return name.removesuffix("_s").replace("_", " ").upper()


def cell(name: str, row: "dict[str, Any]") -> object:
    """A field for people: sizes, times, yes and no."""
    value = row.get(name)
    among = {"pending": "held", "running": "suspended"}.get(name, "")
    if row.get(among):
        return f"{value} ({row[among]} {among})"
    if name == "state" and row.get("condition"):
        return f"{value} ({row['condition']})"
    if name == "commands" and value is not None:
        return f"{row['commands_last_minute']} of {row['commands_per_minute']}"
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if name == "cores":
        return f"{value:g}"
    if name == "memory":
        return size(value)
    if name == "gpus":
        return value or ""
    if name == "resources":
        return counted(row.get("node_resources") or {}, counted(value))
    return seconds(value) if name.endswith("_s") else value


def counted(resources: "dict[str, int]", before: str = "") -> str:
    """Named resources in words: `4 licence, 2 burst`."""
    return ", ".join([*([before] if before else []), *(f"{count} {name}" for name, count in resources.items())])


def troubles(row: "dict[str, Any]") -> "list[str]":
    """What is wrong at a site, a line each."""
    out = []
    if row["why"]:
        again = "" if row["retry_s"] is None else f"; it is tried again in {seconds(row['retry_s'])}"
        since = "" if row.get("failing_s") is None else f" for {seconds(row['failing_s'])}"
        out.append(f"{row['state']}{since}: {clean(row['why'])}{again}")
    if row["state"] == "needs login":
        out.append(f"log in first ({clean(row.get('where') or row['name'])}), and leave that connection open")
    out += [
        f"refuses {each['shape']}: {clean(each['why'])}; it is asked again in {seconds(each['retry_s'])}"
        for each in row["refused"]
    ]
    error = row.get("last_error")
    if error and error != row["why"]:
        out.append(f"last error, {seconds(row['last_error_s'])} ago: {clean(error)}")
    return out


def print_site(row: "dict[str, Any]") -> None:
    """Print everything about one site."""
    again = "" if row["retry_s"] is None else f", tried again in {seconds(row['retry_s'])}"
    since = "" if row.get("failing_s") is None else f" for {seconds(row['failing_s'])}"
    lines: list[tuple[str, object]] = [
        ("state", row["state"] + since + again),
        ("why", row["why"]),
        ("driver", row["driver"] + (f" ({row['version']})" if row.get("version") else "")),
        ("mode", row["mode"]),
        ("where", row.get("where")),
        ("partition", row["partition"]),
        (
            "allocations",
            f"{cell('pending', row)} pending, {cell('running', row)} running, at most {row['most']} at once",
        ),
        ("jobs", row["jobs"]),
        ("largest node", _node(row)),
        ("in use", f"{row['cores_used']:g} cores, {size(row['memory_used'])} memory"),
        ("tags", ", ".join(row["tags"])),
        ("resources", counted(row["resources"])),
        ("on each node", counted(row["node_resources"])),
        ("times", _times(row)),
        ("array", f"at most {row['array_most']} in one submission" if row.get("where") else None),
        ("directory", row["directory"]),
    ]
    if row.get("where"):
        polled = "never"
        if row["last_poll"] is not None:
            polled = f"{seconds(row['last_poll_s'])} ago ({when(row['last_poll'])})"
        sent = f"{row['commands_last_minute']} in the last minute, at most {row['commands_per_minute']}"
        lines += [("last poll", polled), ("commands", f"{sent}; {row['commands']} in all")]
        lines += [("failed", f"{row['failures']} in a row" if row["failures"] else None), ("error", _error(row))]
        lines += [("program", f"{name} = {path or 'not found'}") for name, path in sorted(row["programs"].items())]
        lines += [("option", f"{name} = {_option(value)}") for name, value in row["options"].items()]
    print(clean(row["name"]))
    for name, value in lines:
        if value not in (None, ""):
            print(f"  {name + ':':<14}{clean(value)}")
    for each in row["refused"]:
        print(f"  refuses {each['shape']} for {seconds(each['retry_s'])} more: {clean(each['why'])}")
    if row.get("queues"):
        print("  queues:")
        for queue in row["queues"]:
            print(f"    {queue_words(queue)}")
    for server in row.get("servers") or ():
        print(f"  server {server_words(server)}")
    for note in row.get("notes") or ():
        print(f"  note: {clean(note)}")


def _error(row: "dict[str, Any]") -> str | None:
    """The last error, and how long ago that was."""
    return None if row["last_error"] is None else f"{seconds(row['last_error_s'])} ago: {row['last_error']}"


def queue_words(queue: "dict[str, Any]") -> str:
    """One queue on a line."""
    parts = []
    if queue["nodes"] is not None:
        most = "" if queue["nodes_most"] is None else f", at most {queue['nodes_most']} for a job"
        parts.append(f"{queue['nodes']} node{'' if queue['nodes'] == 1 else 's'}{most}")
    if queue["cores"]:
        parts.append(f"up to {queue['cores']:g} cores")
    if queue["memory"]:
        parts.append(f"{size(queue['memory'])} memory")
    if queue["gpus"]:
        parts.append(f"{queue['gpus']} gpus")
    if queue.get("resources"):
        parts.append(counted(queue["resources"]))
    if queue.get("price"):
        parts.append(f"{queue['price']:g} an hour")
    parts.append("no time limit known" if queue["time_s"] is None else f"at most {seconds(queue['time_s'])}")
    closed = "" if queue["auto"] else " (if named)" if queue["up"] else " (closed)"
    return f"{clean(queue['name'])}{' (default)' if queue['default'] else ''}{closed}: {', '.join(parts)}"


def server_words(server: "dict[str, Any]") -> str:
    """One server of a cloud on a line."""
    state = "runs" if server["up"] else "is being made"
    if server["ending"]:
        state = f"is being destroyed: {server['ending']}"
    elif server["suspected_since"]:
        state = f"is suspected since {when(server['suspected_since'])}: {server['suspected_why']}"
    where = f" at {server['address']}" if server["address"] else ""
    return clean(f"{server['id'] or '(asked for)'} ({server['flavor']}) of {server['allocation']}{where}: {state}")


def _node(row: "dict[str, Any]") -> str:
    parts = [f"{row['cores']:g} cores"] if row["cores"] is not None else []
    parts += [f"{size(row['memory'])} memory"] if row["memory"] is not None else []
    parts += [f"{row['gpus']} gpus"] if row["gpus"] else []
    return ", ".join(parts) or "not known"


def _times(row: "dict[str, Any]") -> str:
    words = (
        ("allocation_time_s", "allocations for {}"), ("job_time_s", "jobs that say nothing {}"),
        ("longest_s", "at most {}"), ("linger_s", "idle runners stay {}"),
    )  # fmt: skip
    return ", ".join(text.format(seconds(row[name])) for name, text in words if row[name] is not None)


def _option(value: object) -> str:
    return ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)

"""`rota sites`, `runners`, `allocations`: where jobs run."""

from rota.cli.link import connect
from rota.cli.show import Table, print_json, seconds, size, when

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from rota.cli.parser import Parser


def configure(parser: "Parser", command: str) -> None:
    """The options of all three."""
    parser.json(f'{{"{command}": […]}}')
    parser.examples(f"rota {command}", f"rota {command} --json")


def execute(args: "argparse.Namespace") -> int:
    """Ask and print whatever columns the manager has."""
    what = args.command_name
    with connect(args) as connection:
        answer = connection.ask(what)
    if args.json:
        print_json(answer)
        return 0
    rows = answer[what]
    if not rows:
        print(f"no {what}")
        return 0
    names = list(dict.fromkeys(name for row in rows for name in row))
    names = [name for name in names if any(row.get(name) not in (None, "", [], {}) for row in rows)]
    numbers = [title(name) for name in names if isinstance(rows[0].get(name), int | float)]
    table = Table(*map(title, names), right=numbers)
    table.print([[cell(name, row.get(name)) for name in names] for row in rows])
    return 0


def title(name: str) -> str:
    """The title of a column."""
    return name.removesuffix("_bytes").removesuffix("_s").replace("_", " ").upper()


def cell(name: str, value: "Any") -> object:
    """A field for people: sizes, times, lists."""
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if isinstance(value, int | float) and name.startswith("cores"):
        return f"{value:g}"
    if isinstance(value, int) and name.removesuffix("_bytes").split("_")[0] in ("memory", "disk"):
        return size(value)
    if isinstance(value, int | float) and name in ("started", "ended", "submitted", "seen", "since", "until"):
        return when(value)
    if isinstance(value, float | int) and name.endswith("_s"):
        return seconds(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {cell(key, part)}" for key, part in value.items() if part not in (None, 0, "", [], {}))
    return value

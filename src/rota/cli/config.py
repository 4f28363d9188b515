"""`rota config`: every setting, its value, and where that comes from."""

import os

from rota.cli.show import clean, print_json
from rota.manager.paths import Paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from rota.cli.parser import Parser


def configure(parser: "Parser", command: str) -> None:
    """The options of `config`."""
    parser.add_argument("key", nargs="*", metavar="KEY", help="only these: missing_after, site.slurm, site.slurm.poll")
    parser.json('[{"key": …, "value": …, "source": …}]')
    parser.examples("rota config", "rota config site.slurm", "rota config missing_after --json")


def execute(args: "argparse.Namespace") -> int:
    """Print the settings that a manager started now would have; no manager is needed."""
    from rota.manager.config import settings
    from rota.model.errors import NotFoundError

    home = Paths(args.home).home
    said = "--home" if args.home else "$ROTA_HOME" if os.environ.get("ROTA_HOME") else "default"
    rows = [{"key": "home", "value": home, "source": said}, *settings(home)]
    for key in args.key:
        if not any(_is_in(key, row["key"]) for row in rows):
            raise NotFoundError(f"there is no setting '{key}'; rota config lists them all")
    rows = [row for row in rows if not args.key or any(_is_in(key, row["key"]) for key in args.key)]
    if args.json:
        print_json(rows)
        return 0
    width = max(len(row["key"]) for row in rows)
    values = ["" if row["value"] is None else clean(str(row["value"])) for row in rows]
    middle = min(40, max(map(len, values)))
    for row, value in zip(rows, values, strict=True):
        print(f"{row['key']:<{width}}  {value:<{middle}}  {row['source']}")
    return 0


def _is_in(asked: str, key: str) -> bool:
    return key == asked or key.startswith(f"{asked}.")

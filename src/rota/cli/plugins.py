"""`rota plugins`: what policies can be made of, and where each part comes from."""

from rota.cli.show import Table, clean, print_json
from rota.wire.client import Connection, NoManagerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from rota.cli.parser import Parser


def configure(parser: "Parser", command: str) -> None:
    """The options of `plugins`."""
    parser.json(
        '{"manager": …, "plugins": [{"kind", "name", "source", "version", "value", "problem"}], "policies": […]}'
    )
    parser.examples("rota plugins", "rota plugins --json")


def execute(args: "argparse.Namespace") -> int:
    """Print the plugins of the manager that is up, else of this installation; exit status 1 if one is left out."""
    try:
        with Connection.connect(args.home) as connection:
            answer = {"manager": True, **connection.ask("plugins")}
    except NoManagerError:
        answer = {"manager": False, **here(args.home)}
    rows = answer["plugins"]
    if args.json:
        print_json(answer)
    else:
        Table("KIND", "NAME", "SOURCE", "VERSION").print(
            [[row["kind"], row["name"], row["source"], row["version"]] for row in rows]
        )
        for row in rows:
            if row["problem"] is not None:
                print(f"{row['kind']} {clean(row['name'])} ({clean(row['value'])}): {clean(row['problem'])}")
    return int(any(row["problem"] is not None for row in rows))


def here(home: "str | None") -> "dict[str, Any]":
    """What this installation has, as a manager would have it that is started now."""
    import msgspec

    from rota.manager.config import load_config
    from rota.manager.paths import Paths
    from rota.plugins import configured, load_plugins

    policies = load_config(Paths(home).home).policies()
    plugins = [msgspec.to_builtins(plugin) for plugin in configured(load_plugins(), policies)]
    rows = [{"name": name, **msgspec.to_builtins(policy)} for name, policy in sorted(policies.items())]
    return {"plugins": plugins, "policies": rows}

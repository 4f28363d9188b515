"""`rota sites detect`: what this host has, as a config.toml."""

import sys

from rota.cli.show import print_json
from rota.manager.paths import Paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

__all__ = ["detect"]


def detect(args: "argparse.Namespace") -> int:
    """Find batch systems, print a config.toml for them, and write it if told to. Needs no manager."""
    from rota.manager.offline.detecting import config_text, find_here, found_row, write_config

    found, strangers = find_here()
    text = config_text(found, strangers, Paths(args.home).home)
    path = backup = None
    if args.write:
        path, backup = write_config(args.home, text, args.force)
    if args.json:
        rows = [found_row(each) for each in found]
        print_json({"found": rows, "other": strangers, "config": text, "written": path, "backup": backup})
        return 0
    print(text, end="")
    if path is not None:
        kept = f" (the one that was there is now {backup})" if backup else ""
        names = ", ".join(each.driver for each in found)
        then = f"; next: rota doctor {names.partition(',')[0]}" if found else ""
        print(f"rota: wrote {path}{kept}{then}", file=sys.stderr)
    return 0

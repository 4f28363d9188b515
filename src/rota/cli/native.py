"""The native command, and the script for it, that `--dry-run` shows for a batch system."""

import os
import re

from rota.cli.show import clean
from rota.manager.paths import Paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rota.model.batch import BatchSpec

__all__ = ["native_submissions", "print_native"]

ELEMENTS_SHOWN = 3
_ELEMENT = re.compile(r"\d+\) set -- ")


def native_submissions(home: "str | None", spec: "BatchSpec") -> "list[dict[str, Any]]":
    """The submissions that a batch system would be given, if these jobs go to one."""
    if not os.path.exists(Paths(home).config) and not any(template.needs.site for template in spec.templates):
        return []  # this machine is the only site
    from rota.manager.offline.previewing import preview

    return preview(home, spec)


def print_native(row: "dict[str, Any]") -> None:
    """Print the command and its script, without most of the lines that each element of an array has."""
    end = "" if row["allocations"] == 1 else "s"
    many = f"{row['allocations']:,} " + (f"allocation{end} for runners" if row["mode"] == "runners" else f"job{end}")
    print(f"\non {clean(row['site'])} ({clean(row['where'])}), {many} would be submitted by\n  {clean(row['line'])}")
    if row["more"]:
        print(f"  … and {row['more']:,} more when there is room")
    for note in row["notes"]:
        print(f"  ({note})")
    print("with the script")
    elements = 0
    for line in row["script"].splitlines():
        elements += bool(_ELEMENT.match(line))
        if elements <= ELEMENTS_SHOWN or not _ELEMENT.match(line):
            print(f"  {clean(line)}".rstrip())
        elif elements == ELEMENTS_SHOWN + 1:
            print(f"  # … and so on for the other {row['allocations'] - ELEMENTS_SHOWN:,}")

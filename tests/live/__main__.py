"""`make live`: scenarios on whichever batch systems are here; a row for each, as JSON lines and as a table.

`python -m live [SYSTEM …] [--only SCENARIO,…] [--mode runners|direct] [--jobs N] [--direct N] [--out FILE]`

A scenario that is its own mode (a pilot) goes with the runners.
"""

import argparse
import json
import sys
import time
import traceback

from live import pilot  # noqa: F401  a scenario
from live.scenarios import SCENARIOS
from live.systems import SYSTEMS, AbsentError
from live.trial import a_trial

COLUMNS = ("system", "version", "scenario", "mode", "jobs", "lost", "double", "reason_ok")


def tried(system, name, mode, count):
    """The row of one scenario. What could not be tried has not passed."""
    run = SCENARIOS[name]
    began = time.monotonic()
    special = {name: getattr(run, name) for name in ("more", "most", "pace") if hasattr(run, name)}
    try:
        with a_trial(system, mode, getattr(run, "count", count), **special) as trial:
            try:
                run(trial)
            except Exception as error:
                trial.wrong.append(f"not tried to the end: {type(error).__name__}: {error}")
                traceback.print_exc()
                trial.open_gate()
                trial.settle(60)
            row = trial.row()
    except Exception as error:
        traceback.print_exc()
        row = {"jobs": count, "lost": None, "double": None, "reason_ok": False, "why": [f"not tried: {error}"]}
    return row | {"seconds": round(time.monotonic() - began)}


def table(rows):
    """The rows for people."""
    cells = [COLUMNS, *([str(row.get(name, "")) for name in COLUMNS] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def main():
    """Try everything that was asked for; 1 if anything was lost, ran twice, or had a wrong reason."""
    parser = argparse.ArgumentParser(prog="live", description=__doc__)
    parser.add_argument("system", nargs="*", choices=[[], *SYSTEMS], help="default: all")
    parser.add_argument("--only", default=",".join(SCENARIOS), help="scenarios, with commas between them")
    parser.add_argument("--mode", choices=("runners", "direct"), action="append")
    parser.add_argument("--jobs", type=int, default=200, help="by runners (200)")
    parser.add_argument("--direct", type=int, default=90, help="direct (90)")
    parser.add_argument("--out", default="live.jsonl", help="where the rows go (live.jsonl)")
    args = parser.parse_args()
    rows = []
    with open(args.out, "a", buffering=1) as out:

        def note(row):
            rows.append(row)
            out.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)

        for kind in [SYSTEMS[name] for name in args.system or SYSTEMS]:
            system = kind()
            try:
                system.start()
            except AbsentError as error:
                note({"system": system.name, "version": None, "scenario": "absent", "why": [str(error)]})
                continue
            try:
                version = system.version()
                for name in args.only.split(","):
                    own = getattr(SCENARIOS[name], "mode", None)
                    for mode in args.mode or ("runners", "direct"):
                        if own is not None and mode != "runners":
                            continue
                        count = args.jobs if mode == "runners" else args.direct
                        head = {"system": system.name, "version": version, "scenario": name, "mode": own or mode}
                        note(head | tried(system, name, mode, count))
            finally:
                system.close()
    print(table(rows))
    return any(row["scenario"] != "absent" and (row["lost"] != 0 or row["double"] != 0 or not row["reason_ok"])
               for row in rows)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

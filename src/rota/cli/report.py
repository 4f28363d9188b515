"""`rota report`: what rota has learned about jobs, what they used, and what became of the nodes' time."""

from rota.cli.link import connect, look
from rota.cli.show import Table, print_json, seconds, size
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from typing import Any

    from rota.cli.parser import Parser
    from rota.cli.report_usage import Attempt, Usage


def configure(parser: "Parser", command: str) -> None:
    """The options of `report`."""
    what = "learning: what jobs of each group use; totals: what jobs of each name used, in all and on average; "
    what += "usage: how much of the nodes' time jobs used, and where the rest went; "
    what += "costs: what the servers of clouds cost, for each batch"
    parser.add_argument("what", choices=("learning", "totals", "usage", "costs"), help=what)
    parser.selectors()
    parser.add_argument("--jobs", action="store_true", help="usage: a line for each attempt, when it waited and ran")
    parser.add_argument("--gantt", metavar="FILE", help="usage: draw what ran where and when; .svg or .html")
    parser.json('{"groups": […]}, {"names": […]}, {"batches": […]} or the figures of usage')
    parser.examples(
        "rota report learning --json",
        "rota report totals @align",
        "rota report usage --home .rota-pilot           # of a pilot, also afterwards",
        "rota report usage --gantt usage.html",
    )


def execute(args: "argparse.Namespace") -> int:
    """Ask for what was learned, and print it."""
    if args.what == "usage":
        return usage(args)
    if args.jobs or args.gantt:
        raise UsageError("--jobs and --gantt are for rota report usage")
    if args.what == "totals":
        return totals(args)
    if args.what == "costs":
        return costs(args)
    if args.selector:
        raise UsageError("learning is by group, not by job: leave the selector out, or ask for totals")
    with connect(args) as connection:
        answer = connection.ask("learning")
    if args.json:
        print_json(answer)
        return 0
    if not answer["groups"]:
        print("nothing was learned yet: that takes jobs that have completed")
        return 0
    rows = []
    for group in answer["groups"]:
        samples, largest = group["samples"], group["largest"]
        rows.append(
            [
                group["group"],
                *_pair(group["memory_bytes"], largest["memory_bytes"], size),
                samples["memory"] or "",
                *_pair(group["time_s"], largest["time_s"], seconds),
                samples["time"] or "",
                *_pair(group["disk_bytes"], largest["disk_bytes"], size),
                samples["disk"] or "",
            ]
        )
    titles = ["GROUP"]
    for what in ("MEMORY", "TIME", "DISK"):
        titles += [what, f"MOST {what}", f"{what} SAMPLES"]
    if not any(row[7] or row[9] for row in rows):  # few jobs have a directory of their own to measure
        titles, rows = titles[:7], [row[:7] for row in rows]
    Table(*titles, right=titles[1:]).print(rows)
    return 0


def _pair(asked: "float | None", largest: "float | None", show: "Callable[[Any], str]") -> "tuple[str, str]":
    return show(asked) if asked else "", show(largest) if largest else ""


def totals(args: "argparse.Namespace") -> int:
    """Print what the jobs of each name used."""
    with look(args) as connection:
        answer = connection.ask("totals", sel=args.selector)
    if args.json:
        print_json(answer)
        return 0
    rows = []
    for row in answer["names"]:
        counts, known = row["counts"], row["measured"] > 0
        rows.append(
            [
                row["name"] or f"batch {row['batches'][0]}", row["jobs"], counts.get("COMPLETED", 0) or "-",
                sum(counts.get(state, 0) for state in ("FAILED", "ABORTED", "OMITTED")) or "-",
                seconds(row["wall_s"]) if known else "", seconds(row["cpu_s"]) if known else "",
                f"{seconds(row['wall_mean_s'])} ± {seconds(row['wall_sd_s'])}" if known else "",
                seconds(row["wall_most_s"]) if known else "",
                f"{size(row['memory_mean_bytes'])} ± {size(row['memory_sd_bytes'])}" if known else "",
                size(row["memory_most_bytes"]) if known else "",
            ]
        )  # fmt: skip
    titles = ["NAME", "JOBS", "DONE", "BAD", "WALL", "CPU", "WALL EACH", "MOST", "MEMORY EACH", "MOST"]
    Table(*titles, right=titles[1:]).print(rows)
    return 0


def costs(args: "argparse.Namespace") -> int:
    """Print what servers cost: each is shared out among the batches that used it, by cores and time."""
    with connect(args) as connection:
        servers = connection.ask("costs")["servers"]
        attempts = [row for page in _pages(connection, "history", None, limit=1000) for row in page["attempts"]]
        chosen = {row["id"]: row.get("name") for page in _pages(connection, "status", 0, sel=args.selector)
                  for row in page["batches"]}  # fmt: skip
    rows, rest = shared_out(servers, attempts)
    found = [{"batch": batch, "name": chosen[batch], "cost": cost} for batch, cost in rows.items() if batch in chosen]
    total = sum(server["cost"] for server in servers)
    if args.json:
        print_json({"batches": found, "unused": rest, "total": total, "servers": servers})
        return 0
    table = [[row["batch"], row["name"] or "", f"{row['cost']:.4f}"] for row in found]
    if rest and not args.selector:
        table.append(["", "(servers without jobs)", f"{rest:.4f}"])
    Table("BATCH", "NAME", "COST", right=["BATCH", "COST"]).print([*table, ["", "all servers", f"{total:.4f}"]])
    return 0


def shared_out(servers: "list[dict[str, Any]]", attempts: "list[dict[str, Any]]") -> "tuple[dict[int, float], float]":
    """(batch → its part of what servers cost, what servers cost that no attempt used)."""
    weights: dict[str, dict[int, float]] = {}
    for row in attempts:
        tag = (row.get("runner") or "").partition(".")[0]
        weight = (row.get("wall_s") or 0.0) * (sum(row.get("cores") or ()) or 1.0)
        if tag and weight:
            of = weights.setdefault(tag, {})
            batch = int(row["id"].partition(".")[0])
            of[batch] = of.get(batch, 0.0) + weight
    found: dict[int, float] = {}
    rest = 0.0
    for server in servers:
        parts = weights.get(server["tag"])
        if not parts:
            rest += server["cost"]
            continue
        for batch, weight in parts.items():
            found[batch] = found.get(batch, 0.0) + server["cost"] * weight / sum(parts.values())
    return dict(sorted(found.items())), rest


def usage(args: "argparse.Namespace") -> int:
    """Print what became of the time of the nodes, or draw it."""
    import time

    from rota.cli.report_usage import read_usage

    if args.selector:
        raise UsageError("usage is of nodes, not of jobs: leave the selector out, or ask for totals")
    if args.gantt and not args.gantt.endswith((".svg", ".html")):
        raise UsageError(f"--gantt {args.gantt}: give a file that ends in .svg or .html")
    with look(args) as connection:
        pages = list(_pages(connection, "usage", 0))
        rows = [row for page in _pages(connection, "history", None, limit=1000) for row in page["attempts"]]
        live = _pages(connection, "jobs", None, sel=[":active"], limit=1000)
        rows += [{**row, "ended": None} for page in live for row in page["jobs"]]
    found = read_usage(pages, rows, time.time())
    if args.gantt:
        from rota.cli.report_gantt import draw, page

        with open(args.gantt, "w", encoding="utf-8") as file:
            file.write(page(found) if args.gantt.endswith(".html") else draw(found))
    if args.json:
        lines = [_timeline(attempt) for attempt in found.attempts] if args.jobs else None
        down = {"manager": "down"} if "manager" in pages[0] else {}
        print_json({**found.summary(), **({} if lines is None else {"timeline": lines}), **down})
    elif args.jobs:
        _print_timeline(found)
    else:
        _print_usage(found.summary())
    return 0


def _pages(connection: "Any", op: str, after: "Any", **arguments: "Any") -> "Iterator[dict[str, Any]]":
    while True:
        page = connection.ask(op, after=after, **arguments)
        yield page
        after = page.get("next")
        if after is None:
            return


def _timeline(attempt: "Attempt") -> "dict[str, Any]":
    return {
        "id": attempt.job, "attempt": attempt.number, "state": attempt.state, "hosts": attempt.hosts,
        "cores": attempt.cores, "ready": attempt.ready, "started": attempt.started, "ended": attempt.ended,
    }  # fmt: skip


def _print_timeline(found: "Usage") -> None:
    first = found.began
    rows = [
        [
            attempt.job, attempt.number, attempt.state, ",".join(attempt.hosts), f"{sum(attempt.cores):g}",
            f"{attempt.ready - first:.3f}", f"{attempt.started - first:.3f}", f"{attempt.ended - first:.3f}",
            seconds(attempt.started - attempt.ready), seconds(attempt.ended - attempt.started),
        ]
        for attempt in found.attempts
    ]  # fmt: skip
    titles = ["JOB", "TRY", "STATE", "HOST", "CORES", "READY", "STARTED", "ENDED", "WAITED", "RAN"]
    Table(*titles, right=["TRY", "CORES", *titles[5:]]).print(rows)


def _print_usage(found: "dict[str, Any]") -> None:
    if not found["available_s"]:
        print("no node was there yet: run some jobs first")
        return
    available = found["available_s"]
    rows = [["used by jobs", seconds(found["busy_s"]), f"{100 * found['busy_s'] / available:.1f} %", ""]]
    words = {
        "room": "what waited asked for more cores than were free",
        "startup": "something waited that fitted: to end one job and start the next",
        "tail": "nothing waited any more, and the last jobs ran",
        "idle": "nothing waited",
    }
    for cause, meaning in words.items():
        rows.append([cause, seconds(found["lost"][cause]), f"{100 * found['lost'][cause] / available:.1f} %", meaning])
    count = len(found["nodes"])
    print(
        f"{found['jobs']:,} jobs in {found['attempts']:,} attempts; {found['cores']:g} cores on {count} "
        f"node{'' if count == 1 else 's'} were there for {seconds(available)} of core time"
    )
    Table("", "CORE TIME", "", "", right=["CORE TIME"]).print(rows)
    own = found["overhead"]
    said = (
        []
        if own["first_start_s"] is None
        else [f"the first job started {seconds(own['first_start_s'])} after it was ready"]
    )
    if own["startup_per_job_s"] is not None:
        said.append(f"startup took {seconds(own['startup_per_job_s'])} of a core per attempt")
    if own["manager_cpu_s"] is not None:
        said.append(f"the manager used {seconds(own['manager_cpu_s'])} of CPU since it started")
    if said:
        print("; ".join(said))

"""`python -m bench.peers.report`: bench/RESULTS.md and docs/images/peers.svg from the samples that are kept."""

import argparse
import os
import statistics
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from bench.peers.__main__ import RESULTS, SLEEP_S, samples_of
from bench.peers.environments import ROOT
from bench.peers.picture import Bar, Panel, draw
from bench.peers.roster import ROSTER, Entry

PAGE = os.path.join(ROOT, "bench", "RESULTS.md")
PICTURE = os.path.join(ROOT, "docs", "images", "peers.svg")
OURS = "rota"
NONE = "–"
Sample = dict[str, Any]


class Figure(NamedTuple):
    """The median of some samples, with the least and the most."""

    middle: float
    least: float
    most: float
    samples: int

    def text(self, form: str, once: str = " (once)") -> str:
        """The median, and the range in brackets."""
        if self.samples == 1:
            return f"{self.middle:{form}}{once}"
        return f"{self.middle:{form}} ({self.least:{form}} to {self.most:{form}})"


def share(one: Sample) -> float:
    """Of what the bare loops did before and after."""
    return float(one["count"] / one["seconds"] / statistics.mean(one["limit"]))


def rate(one: Sample) -> float:
    """Jobs per second."""
    return float(one["count"] / one["seconds"])


def ideal_share(one: Sample) -> float:
    """Of the shortest time that jobs that sleep can take: by layers, or by how many may run at one time."""
    return float(max(one["layers"] * SLEEP_S, one["count"] * SLEEP_S / one["width"]) / one["seconds"])


def middle_ms(one: Sample) -> float:
    """The median latency."""
    return 1e3 * statistics.median(one["took"])


def late_ms(one: Sample) -> float:
    """What 99 of 100 do not exceed."""
    return 1e3 * _late(one["took"])


def _late(took: list[float]) -> float:
    return float(sorted(took)[min(len(took) - 1, int(0.99 * len(took)))])


def in_spawns(one: Sample) -> float:
    """The median latency in spawns of the same process."""
    return float(statistics.median(one["took"]) / statistics.median(one["spawns"]))


def late_in_spawns(one: Sample) -> float:
    """The 99th of 100 in median spawns."""
    return _late(one["took"]) / float(statistics.median(one["spawns"]))


def together(samples: list[Sample]) -> Sample:
    """One sample of all that was asked for one by one: for what 99 of 100 do not exceed, a round has too few."""
    return {name: [value for one in samples for value in one[name]] for name in ("took", "spawns")}


def job_bytes(one: Sample) -> float:
    """Memory for each job."""
    return float(one["bytes"] / one["count"])


class Results:
    """All samples, by what they are of."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.by: dict[tuple[str, str, str], list[Sample]] = {}
        for one in data["samples"]:
            self.by.setdefault((one["kind"], one["what"], one["peer"]), []).append(one)

    def good(self, kind: str, what: str, peer: str) -> list[Sample]:
        """The samples that did not fail."""
        return [one for one in self.by.get((kind, what, peer), []) if "failed" not in one]

    def figure(self, kind: str, what: str, peer: str, of: Callable[[Sample], float]) -> Figure | None:
        """A median, if there is one."""
        found = self.good(kind, what, peer)
        if found and of in (late_ms, late_in_spawns):
            found = [together(found)]
        values = [of(one) for one in found]
        return Figure(statistics.median(values), min(values), max(values), len(values)) if values else None

    def text(self, kind: str, what: str, entry: Entry, of: Callable[[Sample], float], form: str) -> str:
        """A cell: the figure; how it failed; not done; cannot be."""
        found = self.figure(kind, what, entry.name, of)
        if found is not None:
            return found.text(form, "" if of in (late_ms, late_in_spawns) else " (once)")
        failed = [one["failed"] for one in self.by.get((kind, what, entry.name), []) if "failed" in one]
        if failed:
            return "failed: " + failed[-1].strip().splitlines()[-1][:60].replace("|", "/")
        wanted = "a" if what == "shell" else kind
        return "not measured" if wanted in entry.kinds and not (kind == "B" and _too_many(what, entry)) else NONE

    def size(self, kind: str, what: str, peer: str) -> str:
        """How many jobs the samples had."""
        counts = sorted({one["count"] for one in self.good(kind, what, peer)})
        return ", ".join(f"{count:,}" for count in counts) or NONE

    def ranking(self, kind: str, what: str, of: Callable[[Sample], float], up: bool) -> list[tuple[str, Figure]]:
        """Who has figures, the best first."""
        found = [(one.name, self.figure(kind, what, one.name, of)) for one in ROSTER]
        return sorted([(name, each) for name, each in found if each], key=lambda row: row[1].middle, reverse=up)

    def queued(self) -> list[int]:
        """The sizes of the submissions."""
        return sorted({int(what.split(maxsplit=1)[0]) for kind, what, _ in self.by if kind == "B"})


def _too_many(what: str, entry: Entry) -> bool:
    return int(what.split(maxsplit=1)[0]) > entry.most_queued


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def page(results: Results) -> str:
    """The whole of RESULTS.md."""
    data = results.data
    runs = data["runs"]
    entries = [one for one in ROSTER if one.name not in data["missing"]]
    samples = sum("failed" not in one for one in data["samples"])
    out = [
        "# rota beside its peers",
        "",
        "Written by `python -m bench.peers.report` from [the "
        "samples](results/peers.json); `make bench-peers` takes them anew. "
        "Figures are medians, with the least and the most in brackets; a share is of the "
        "limit that was measured right before and "
        "after, because machines differ and are noisy.",
        "",
        f"- Machine: {', '.join(dict.fromkeys(run['machine'] for run in runs))}; {runs[-1]['system']}.",
        f"- {samples} samples, taken in {len(runs)} pieces from {runs[0]['at']} to "
        f"{runs[-1]['at']} (UTC); in each piece all "
        "that take part have their turn in every round.",
    ]
    loads = [one.get("load", 0.0) for one in data["samples"]]
    cores = int(runs[-1]["machine"].split(maxsplit=1)[0])
    busy = bool(loads) and statistics.median(loads) > 2 * cores
    if busy:
        out.append(
            f"- **The machine was busy with other work meanwhile** (load {min(loads):g} to {max(loads):g} on "
            f"{cores} cores): only the shares mean something, and they vary. "
            "A share above 1 says that the limit was measured in a busier moment. To be taken again on a quiet machine."
        )
    if any(run["quick"] for run in runs):
        out.append("- **These are of a quick run, to try the harness: they say nothing.**")
    few = {len(group) for (_, _, peer), group in results.by.items() if peer == OURS}
    if few and min(few) < 5:
        out.append(
            f"- Some medians are of fewer than five samples (rota: {min(few)} to {max(few)}): "
            f"the brackets say how far to trust them."
        )
    out += ["", "![Throughput, latency, submissions and graphs beside the limit](../docs/images/peers.svg)", ""]
    out += _throughput(results, entries) + _submissions(results, entries) + _latency(results, entries)
    out += _graphs(results, entries) + _lost(results, busy) + _peers(results)
    return "\n".join(out).rstrip() + "\n"


def _throughput(results: Results, entries: list[Entry]) -> list[str]:
    rows = []
    for entry in entries:
        if not entry.kinds & {"A", "a"}:
            continue
        size = results.size("A", "direct", entry.name)
        rows.append([
            entry.name, size if size != NONE else results.size("A", "shell", entry.name),
            results.text("A", "direct", entry, rate, ",.0f"), results.text("A", "direct", entry, share, ".2f"),
            results.text("A", "shell", entry, rate, ",.0f"), results.text("A", "shell", entry, share, ".2f"),
            "yes" if entry.codes else "no: only whether one failed",
        ])  # fmt: skip
    return [
        "## A. Many `true`",
        "",
        "From the submission until all exit codes are known. The limit: as many C loops "
        "as cores that spawn, wait and do nothing "
        "else. Through a shell: `sh -c 'true; true'`, and the loops start the same.",
        "",
        *_table(
            ["", "jobs", "direct, jobs/s", "of the loops", "shell, jobs/s", "of the loops", "exit codes kept"], rows
        ),
    ]


def _submissions(results: Results, entries: list[Entry]) -> list[str]:
    rows = []
    for count in results.queued():
        for word in ("array", "lines"):
            what = f"{count} {word}"
            for entry in entries:
                if "B" not in entry.kinds or not results.by.get(("B", what, entry.name)):
                    continue
                limit = [statistics.mean(one["limit"]) for one in results.good("B", what, entry.name)]
                rows.append([
                    "alike" if word == "array" else "distinct lines", results.size("B", what, entry.name), entry.name,
                    results.text("B", what, entry, lambda one: float(one["seconds"]), ".2f"),
                    results.text("B", what, entry, rate, ",.0f"),
                    f"{statistics.median(limit):.3f}" if limit else NONE,
                    results.text("B", what, entry, job_bytes, ",.0f") if entry.name != "huey" else "in its file",
                ])  # fmt: skip
    return [
        "## B. Submissions, of which nothing runs yet",
        "",
        "Until all is accepted (rota: on disk). The limit: the same lines (for jobs that "
        "are alike: one) written to a file and synced. "
        "Memory: what the processes that keep the jobs have to themselves afterwards, more than before.",
        "",
        *_table(["", "jobs", "", "s", "jobs/s", "limit, s", "memory, B a job"], rows),
    ]


def _latency(results: Results, entries: list[Entry]) -> list[str]:
    rows = []
    for entry in entries:
        if "C" in entry.kinds:
            cells = [entry.name if entry.daemon else f"{entry.name} (a new process each)"]
            for what in ("apart", "back to back"):
                cells += [
                    results.text("C", what, entry, middle_ms, ".2f"),
                    results.text("C", what, entry, in_spawns, ".1f"),
                    results.text("C", what, entry, late_ms, ".1f"),
                    results.text("C", what, entry, late_in_spawns, ".0f"),
                ]  # fmt: skip
            rows.append(cells)
    head = [
        "",
        *[
            f"{word}{what}"
            for what in ("apart", "back to back")
            for word in ("", "in spawns, ", "p99, ", "p99 in spawns, ")
        ],
    ]
    return [
        "## C. One job on an idle system",
        "",
        "Milliseconds from asking for `true` until its success is known, 50 ms after the "
        "one before (apart) or at once. The "
        "limit: a `posix_spawn` and wait in the same process, as far apart: a machine that was idle for a moment needs "
        "longer for both. p99 is of all rounds together.",
        "",
        *_table(head, rows),
    ]


def _graphs(results: Results, entries: list[Entry]) -> list[str]:
    rows = []
    for entry in entries:
        if "D" in entry.kinds:
            rows.append([
                entry.name, results.size("D", "0 s", entry.name),
                results.text("D", "0 s", entry, lambda one: float(one["seconds"]), ".2f"),
                results.text("D", "0 s", entry, share, ".2f"),
                results.text("D", "0.1 s", entry, lambda one: float(one["seconds"]), ".2f"),
                results.text("D", "0.1 s", entry, ideal_share, ".2f"),
            ])  # fmt: skip
    slots = sorted({one["width"] for one in results.data["samples"] if one["kind"] == "D" and one["what"] == "0.1 s"})
    return [
        "## D. A graph of layers",
        "",
        "As many layers as jobs in a layer; each job waits for two of the layer before. "
        "`true` on all cores, beside what the C loops "
        f"need for as many jobs without an order; and `sleep {SLEEP_S:g}`, "
        f"{' or '.join(map(str, slots)) or 'some'} at one time, "
        "beside the time that the sleeping itself takes.",
        "",
        *_table(["", "jobs", "0 s: s", "of the loops", "0.1 s: s", "of the ideal"], rows),
    ]


JUDGED: list[tuple[str, str, str, Callable[[Sample], float], bool, str]] = [
    ("A", "direct", "`true` directly, of the loops", share, True, ".2f"),
    ("A", "shell", "`true` through a shell, of the loops", share, True, ".2f"),
    ("C", "apart", "one job, apart, in spawns", in_spawns, False, ".1f"),
    ("C", "apart", "one job, apart, p99 in spawns", late_in_spawns, False, ".0f"),
    ("C", "back to back", "one job, back to back, in spawns", in_spawns, False, ".1f"),
    ("C", "back to back", "one job, back to back, p99 in spawns", late_in_spawns, False, ".0f"),
    ("D", "0 s", "a graph of `true`, of the loops", share, True, ".2f"),
    ("D", "0.1 s", "a graph of jobs of 0.1 s, of the ideal", ideal_share, True, ".2f"),
]


def _why(entry: Entry) -> str:
    """What a peer that is quicker does not do."""
    reasons = [] if entry.durable.startswith(("all", "as rota", "queued calls")) else [f"on disk: {entry.durable}"]
    if not entry.codes:
        reasons.append("keeps no exit codes")
    if not entry.daemon:
        reasons.append("is one process that is given all jobs in a file, and gone afterwards")
    return "; ".join(reasons) or f"on disk: {entry.durable}"


def _lost(results: Results, busy: bool) -> list[str]:
    judged = list(JUDGED)
    for count in results.queued():
        for word, name in (("array", "alike"), ("lines", "distinct")):
            what = f"{count} {word}"
            judged.append(("B", what, f"{count:,} {name}, jobs/s accepted", rate, True, ",.0f"))
            judged.append(("B", what, f"{count:,} {name}, memory of each (B)", job_bytes, False, ",.0f"))
    roster = {one.name: one for one in ROSTER}
    won, lost = [], []
    for kind, what, words, of, up, form in judged:
        rows = [row for row in results.ranking(kind, what, of, up) if not (row[0] == "huey" and "memory" in words)]
        ours = next((figure for name, figure in rows if name == OURS), None)
        if ours is None or len(rows) < 2:
            continue
        others = [row for row in rows if not row[0].startswith(OURS)]
        ahead = [
            (name, each) for name, each in others if (each.middle > ours.middle) == up and each.middle != ours.middle
        ]
        groups: dict[str, list[str]] = {}
        for name, each in ahead:
            groups.setdefault(_why(roster[name]), []).append(f"{name} {each.middle:{form}}")
        if groups:
            lost.append(f"- **{words}**: rota {ours.middle:{form}}")
            lost += [f"  - {', '.join(names)}: {why}" for why, names in groups.items()]
        elif others:
            won.append(f"- {words}: rota {ours.middle:{form}}, next {others[0][0]} with {others[0][1].middle:{form}}.")
    note = ["Nothing is to be concluded from these: the machine was busy.", ""] if busy else []
    return [
        "## Where rota does not win",
        "",
        *note,
        *(lost or ["Nowhere in these samples."]),
        "",
        "## Where it does",
        "",
        *note,
        *(won or ["Nowhere in these samples."]),
        "",
    ]


def _peers(results: Results) -> list[str]:
    rows = []
    for entry in ROSTER:
        missing = results.data["missing"].get(entry.name)
        version = results.data["versions"].get(entry.name, "")
        rows.append(
            [entry.name, version if missing is None else f"not here: {missing[:120]}", entry.how, entry.durable]
        )
    return [
        "## Who they are, and what is left of accepted work when the machine fails",
        "",
        *_table(["", "version", "how", "on disk"], rows),
        "Not measured, and why (–): make, xargs, GNU parallel and Snakemake have no "
        "queue that could accept jobs (B). PSI/J starts "
        "at once what it is given (B), and neither it nor xargs, GNU parallel, huey and "
        "Celery has graphs in which a job waits for two "
        "others (D; Celery's chords wait for whole groups). Snakemake and GNU parallel "
        "always use a shell (A, direct). Snakemake "
        "is started anew for each workflow, so a job alone was not asked of it (C). Who has fewer "
        "jobs than others was too slow for more; its share "
        "of the limit can be compared all the same.",
        "",
    ]


def picture(results: Results) -> str:
    """The four panels."""

    def bars(kind: str, what: str, of: Callable[[Sample], float], up: bool, form: str) -> list[Bar]:
        rows = [row for row in results.ranking(kind, what, of, up) if row[0] != "rota run"]
        return [Bar(name, each.middle, f"{each.middle:{form}}", name.startswith(OURS)) for name, each in rows]

    sizes = results.queued()
    lines = f"{sizes[0]} lines" if sizes else ""
    panels = [
        Panel(
            f"{results.size('A', 'direct', OURS)} × true: share of bare C loops",
            bars("A", "direct", share, True, ".2f"),
            1.0,
            "limit",
        ),
        Panel("One job on an idle system: ms, median", bars("C", "apart", middle_ms, False, ".1f"), None, "", log=True),
        Panel(
            f"{results.size('D', '0 s', OURS)} × true in layers: share of the loops",
            bars("D", "0 s", share, True, ".2f"),
            1.0,
            "limit",
        ),
        Panel(
            f"{sizes[0] if sizes else 0:,} distinct lines accepted: jobs/s",
            bars("B", lines, rate, True, ",.0f"),
            None,
            "",
            log=True,
        ),
    ]
    return draw([panel for panel in panels if panel.bars])


def main() -> int:
    """Write both."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.report", description=__doc__)
    parser.add_argument("--results", default=RESULTS)
    parser.add_argument("--page", default=PAGE)
    parser.add_argument("--picture", default=PICTURE)
    args = parser.parse_args()
    results = Results(samples_of(args.results))
    if not results.by:
        raise SystemExit(f"there are no samples in {args.results}: make bench-peers")
    for path, text in ((args.page, page(results)), (args.picture, picture(results))):
        with open(path, "w") as file:
            file.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

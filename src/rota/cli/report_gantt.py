"""A picture of what ran where and when: one SVG, or an HTML page around it, that needs nothing else.

A row is a core, or a node where there are many cores. What is narrower than a pixel is not drawn by itself: a column
then shows how much of it was busy, so that the picture of 100,000 jobs is as large as that of a hundred, and as true.
"""

from collections import defaultdict
from html import escape

from rota.cli.report_usage import CAUSES, lanes
from rota.cli.show import seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from rota.cli.report_usage import Attempt, Usage

__all__ = ["draw", "page"]

WIDTH = 1200
"""Columns of the picture; a pixel each."""
LEFT, TOP, STRIP, GAP = 150, 56, 90, 26
"""Room for names, for the title, of the strip above, and between it and the rows."""
ROWS_MOST = 256
"""Rows; of more cores than that each node is one row."""
HEIGHT_MOST = 1600
SINGLE_MOST = 4_000
"""Up to so many attempts each has a bar of its own, with its name."""
LEVELS = 8
COLOURS = {"good": "#3b7dd8", "bad": "#d64545", "lost": "#e0a030"}
LOST = {"room": "#9a6fd0", "startup": "#8fb3a0", "tail": "#b8c4d0", "idle": "#e8ecf0"}
WORDS = {
    "room": "no room: what waited asked for more than was free",
    "startup": "starting: something waited that fitted",
    "tail": "tail: the last ones ran",
    "idle": "idle: nothing waited",
}
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#333}.t{font-size:15px;font-weight:600}.s{fill:#666}"
    ".a{stroke:#d5dbe1;stroke-width:1}"
)


def draw(usage: "Usage") -> str:
    """The picture."""
    first = min((attempt.started for attempt in usage.attempts), default=usage.began)
    first = min(first, usage.began)
    last = max(usage.until, first + 0.001)
    scale = _Scale(first, last)
    rows, by_node = _rows(usage)
    height = max(2.0, min(18.0, (HEIGHT_MOST - TOP - STRIP) / max(1, len(rows))))
    top = TOP + STRIP + GAP
    bottom = top + height * len(rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{bottom + 84:.0f}" '
        f'viewBox="0 0 {LEFT + WIDTH + 20} {bottom + 84:.0f}" role="img"><title>what ran where and when</title>',
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>',
        *_title(usage, scale),
        *_strip(usage, scale),
        *_axis(scale, TOP, bottom),
        *_names(rows, top, height, by_node),
        *_bars(usage, rows, scale, top, height, by_node),
        *_legend(usage, bottom + 40),
        "</svg>",
    ]
    return "\n".join(out)


def page(usage: "Usage") -> str:
    """The picture in a page of its own."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>rota: usage</title>'
        "<style>body{margin:16px;background:#fff}svg{max-width:100%;height:auto}</style></head><body>"
        f"{draw(usage)}</body></html>\n"
    )


class _Scale:
    """Time along the picture."""

    def __init__(self, first: float, last: float) -> None:
        self.first = first
        self.last = last
        self.per_s = WIDTH / (last - first)

    def x(self, at: float) -> float:
        """Columns from the left edge of the picture."""
        return min(float(WIDTH), max(0.0, (at - self.first) * self.per_s))

    def ticks(self) -> "Iterator[tuple[float, str]]":
        """(column, words) along the axis."""
        span = self.last - self.first
        steps = (0.001, 0.01, 0.1, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800)
        step = next((step for step in steps if span / step <= 12), span / 10)
        number = 0
        while number * step <= span:
            yield number * step * self.per_s, _time(number * step)
            number += 1


def _time(value: float) -> str:
    if value < 60:
        return f"{value:g} s"
    whole = int(value)
    if value < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole // 60 % 60:02} h"


def _rows(usage: "Usage") -> "tuple[list[tuple[str, int]], bool]":
    """(host, place) of each row, and whether a row is a whole node."""
    all_cores = [(node.host, place) for node in usage.nodes for place in range(max(1, round(node.cores)))]
    if len(all_cores) <= ROWS_MOST:
        return all_cores, False
    return [(node.host, 0) for node in usage.nodes], True


def _title(usage: "Usage", scale: _Scale) -> "Iterator[str]":
    found = usage.summary()
    share = "" if found["utilisation"] is None else f"{100 * found['utilisation']:.1f} % busy"
    cores = f"{found['cores']:g} cores on {len(usage.nodes)} node{'' if len(usage.nodes) == 1 else 's'}"
    yield f'<text x="{LEFT}" y="22" class="t">{found["jobs"]:,} jobs, {cores}, {share}</text>'
    took = seconds(scale.last - scale.first)
    yield (
        f'<text x="{LEFT}" y="40" class="s">{took}; {found["busy_s"]:,.0f} of {found["available_s"]:,.0f} core-seconds '
        "were used</text>"
    )


def _strip(usage: "Usage", scale: _Scale) -> "Iterator[str]":
    """How many cores were busy, over time."""
    busy, there = [0.0] * (WIDTH + 1), [0.0] * (WIDTH + 1)
    known = {node.host for node in usage.nodes}
    for attempt in usage.attempts:
        cores = sum(c for host, c in zip(attempt.hosts, attempt.cores, strict=False) if host in known)
        _spread(busy, scale.x(attempt.started), scale.x(attempt.ended), cores)
    for node in usage.nodes:
        for since, until, cores in node.spans:
            _spread(there, scale.x(since), scale.x(until), cores)
    most = max([*there, *busy, 0.001])
    base = TOP + STRIP
    for levels, colour in ((there, "#eef1f4"), (busy, COLOURS["good"])):
        points = " ".join(f"L{LEFT + at} {base - STRIP * level / most:.1f}" for at, level in enumerate(levels[:WIDTH]))
        yield f'<path fill="{colour}" d="M{LEFT} {base} {points} L{LEFT + WIDTH} {base}Z"/>'
    yield f'<text x="{LEFT - 8}" y="{TOP + 10}" text-anchor="end" class="s">{most:g} cores</text>'
    yield f'<text x="{LEFT - 8}" y="{base}" text-anchor="end" class="s">busy</text>'


def _spread(columns: list[float], begin: float, end: float, amount: float) -> None:
    """Add an amount to columns, to those at its edges as far as it covers them."""
    first, last = int(begin), int(end)
    if first == last:
        columns[first] += amount * (end - begin)
        return
    columns[first] += amount * (first + 1 - begin)
    for at in range(first + 1, last):
        columns[at] += amount
    columns[last] += amount * (end - last)


def _axis(scale: _Scale, top: float, bottom: float) -> "Iterator[str]":
    for x, words in scale.ticks():
        at = LEFT + x
        yield f'<path class="a" d="M{at:.1f} {top}V{bottom + 4:.1f}"/>'
        yield f'<text x="{at:.1f}" y="{bottom + 18:.1f}" text-anchor="middle" class="s">{words}</text>'


def _names(rows: "list[tuple[str, int]]", top: float, height: float, by_node: bool) -> "Iterator[str]":
    """The names of hosts, as far as there is room for them, and a line above each."""
    last_y = -100.0
    for at, (host, place) in enumerate(rows):
        y = top + at * height
        if place == 0:
            if not by_node or height > 6:
                yield f'<path class="a" d="M{LEFT - 60} {y:.1f}H{LEFT + WIDTH}"/>'
            if y - last_y >= 12:
                shown = host if len(host) <= 22 else host[:21] + "…"
                yield f'<text x="{LEFT - 8}" y="{y + 11:.1f}" text-anchor="end">{escape(shown)}</text>'
                last_y = y


def _bars(
    usage: "Usage", rows: "list[tuple[str, int]]", scale: _Scale, top: float, height: float, by_node: bool
) -> "Iterator[str]":
    number = {row: at for at, row in enumerate(rows)}
    if len(usage.attempts) <= SINGLE_MOST and not by_node:
        yield from _single_bars(usage, number, scale, top, height)
        return
    cores = {node.host: max(1.0, node.cores) for node in usage.nodes}
    columns: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0] * (WIDTH + 1))
    for host, attempts in lanes(usage).items():
        for attempt, places in attempts:
            begin, end, kind = scale.x(attempt.started), scale.x(attempt.ended), _kind(attempt)
            if by_node:
                _spread(columns[kind, number[host, 0]], begin, end, len(places) / cores[host])
            else:
                for place in places:
                    _spread(columns[kind, number[host, place]], begin, end, 1.0)
    yield from _runs(columns, top, height)


def _kind(attempt: "Attempt") -> str:
    if attempt.state in ("COMPLETED", "RUNNING", "STARTING"):
        return "good"
    return "lost" if attempt.state in ("RETRIED", "LOST", "SUPERSEDED", "ABORTED") else "bad"


def _single_bars(
    usage: "Usage", number: "dict[tuple[str, int], int]", scale: _Scale, top: float, height: float
) -> "Iterator[str]":
    for host, attempts in lanes(usage).items():
        for attempt, places in attempts:
            x = scale.x(attempt.started)
            wide = max(0.5, scale.x(attempt.ended) - x - 0.3)
            colour = COLOURS[_kind(attempt)]
            ran = seconds(attempt.ended - attempt.started)
            words = f"{attempt.job} {attempt.state}, {ran} on {host}, {sum(attempt.cores):g} cores"
            for place in places:
                y = top + number[host, place] * height
                box = f'x="{LEFT + x:.2f}" y="{y + 0.5:.1f}" width="{wide:.2f}" height="{max(1.0, height - 1):.1f}"'
                yield f'<rect {box} fill="{colour}"><title>{escape(words)}</title></rect>'


def _runs(columns: "dict[tuple[str, int], list[float]]", top: float, height: float) -> "Iterator[str]":
    """Stretches of columns that are equally busy, all of one shade in one path."""
    paths: dict[tuple[str, int], list[str]] = defaultdict(list)
    for (kind, row), levels in columns.items():
        y = top + (row + 0.5) * height
        begin, now = 0, 0
        for at in range(WIDTH + 1):
            level = 0 if at == WIDTH or levels[at] <= 0.002 else max(1, min(LEVELS, round(LEVELS * levels[at])))
            if level != now:
                if now:
                    paths[kind, now].append(f"M{LEFT + begin} {y:.1f}H{LEFT + at}")
                begin, now = at, level
    for (kind, level), path in sorted(paths.items()):
        shade = f'stroke="{COLOURS[kind]}" stroke-opacity="{level / LEVELS:.2f}"'
        yield f'<path fill="none" {shade} stroke-width="{max(1.0, height - 1):.1f}" d="{"".join(path)}"/>'


def _legend(usage: "Usage", y: float) -> "Iterator[str]":
    x = LEFT
    for kind, words in (("good", "completed"), ("bad", "failed"), ("lost", "lost, retried or killed")):
        yield f'<rect x="{x}" y="{y - 9:.1f}" width="10" height="10" fill="{COLOURS[kind]}"/>'
        yield f'<text x="{x + 15}" y="{y:.1f}">{words}</text>'
        x += 30 + 7 * len(words)
    total = sum(usage.lost.values()) or 1.0
    x, y = LEFT, y + 24
    for cause in CAUSES:
        share = usage.lost[cause] / total
        words = f"{WORDS[cause]} ({seconds(usage.lost[cause])} of a core, {100 * share:.0f} % of what was lost)"
        short = words if len(words) < 48 else f"{WORDS[cause].partition(':')[0]} {100 * share:.0f} %"
        yield f'<rect x="{x}" y="{y - 9:.1f}" width="10" height="10" fill="{LOST[cause]}"><title>{words}</title></rect>'
        yield f'<text x="{x + 15}" y="{y:.1f}">{escape(short)} of what was lost<title>{escape(words)}</title></text>'
        x += 250

"""Bars in SVG: self-contained, readable on light and on dark ground."""

import math
from html import escape
from typing import NamedTuple

WIDTH, LABEL, ROOM, STEP, HEAD, GAP = 440, 136, 60, 19, 34, 22
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f; }
.head { font-weight: 600; }
.ours { fill: #0b7285; } .other { fill: #adb5bd; } .limit { stroke: #c92a2a; stroke-dasharray: 3 3; }
.small { font-size: 10px; fill: #c92a2a; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .ours { fill: #3bc9db; } .other { fill: #5c636b; }
  .limit { stroke: #ff8787; } .small { fill: #ff8787; }
}
"""


class Bar(NamedTuple):
    """One row."""

    name: str
    value: float
    text: str
    ours: bool


class Panel(NamedTuple):
    """One chart."""

    title: str
    bars: list[Bar]
    limit: float | None
    limit_name: str
    log: bool = False

    @property
    def height(self) -> int:
        """Of the whole."""
        return HEAD + STEP * len(self.bars) + GAP


def draw(panels: list[Panel], columns: int = 2) -> str:
    """The panels, side by side in columns."""
    rows = [panels[number : number + columns] for number in range(0, len(panels), columns)]
    height = sum(max(panel.height for panel in row) for row in rows)
    width = WIDTH * columns
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">',
        f"<style>{STYLE}</style>",
    ]
    y = 0
    for row in rows:
        for number, panel in enumerate(row):
            out += _panel(panel, number * WIDTH, y)
        y += max(panel.height for panel in row)
    return "\n".join([*out, "</svg>", ""])


def _panel(panel: Panel, x: int, y: int) -> list[str]:
    most = max(bar.value for bar in panel.bars)
    least = min(bar.value for bar in panel.bars)
    room = WIDTH - LABEL - ROOM
    scale = max(most, panel.limit or 0.0)
    floor = math.log10(least) - 0.3 if panel.log and least > 0 else 0.0

    def length(value: float) -> float:
        if not panel.log:
            return room * value / scale
        return room * (math.log10(value) - floor) / max(1e-9, math.log10(scale) - floor)

    note = " (logarithmic)" if panel.log else ""
    out = [f'<text class="head" x="{x + 8}" y="{y + 20}">{escape(panel.title + note)}</text>']
    for number, bar in enumerate(panel.bars):
        top = y + HEAD + STEP * number
        kind = "ours" if bar.ours else "other"
        weight = ' class="head"' if bar.ours else ""
        end = x + LABEL + length(bar.value)
        out.append(f'<text{weight} x="{x + LABEL - 6}" y="{top + 11}" text-anchor="end">{escape(bar.name)}</text>')
        out.append(
            f'<rect class="{kind}" x="{x + LABEL}" y="{top}" width="{max(1.0, end - x - LABEL):.1f}" '
            f'height="{STEP - 5}" rx="2"/>'
        )
        out.append(f'<text{weight} x="{end + 4:.1f}" y="{top + 11}">{escape(bar.text)}</text>')
    if panel.limit is not None:
        at, bottom = x + LABEL + length(panel.limit), y + HEAD + STEP * len(panel.bars)
        out.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{y + HEAD - 4}" y2="{bottom}"/>')
        out.append(
            f'<text class="small" x="{at:.1f}" y="{y + HEAD - 6}" text-anchor="middle">'
            f"{escape(panel.limit_name)}</text>"
        )
    return out

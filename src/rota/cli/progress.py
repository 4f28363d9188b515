"""The progress bar of `rota run`, on a terminal."""

import time
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rota.cli.show import SETTLED, clean, seconds

__all__ = ["Bar"]


class Bar:
    """Counts of running, done and failed jobs, the rate, and the time that is left."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._progress = Progress(
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
            expand=True,
        )
        self._row = self._progress.add_task("", total=sum(counts.values()), completed=settled(counts))
        self._began = time.monotonic()
        self._first = settled(counts)
        self.interval_s = 0.1
        """How long to wait before the next look."""

    def __enter__(self) -> "Bar":
        self._progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, counts: Mapping[str, int], why: str = "") -> None:
        """Show these counts, and why nothing runs."""
        done, total = settled(counts), sum(counts.values())
        passed = time.monotonic() - self._began
        rate = (done - self._first) / passed if passed > 0 else 0.0
        failed = done - counts.get("COMPLETED", 0)
        if why and passed > 2:
            words = [f"nothing runs: {escape(clean(why))}"]
        else:
            words = [f"{counts.get('RUNNING') or counts.get('STARTING', 0):,} running"]
        if failed:
            words.append(f"[red]{failed:,} failed[/red]")
        if rate > 0 and passed > 1 and not why:
            words.append(f"{rate:,.1f}/s" if rate < 100 else f"{rate:,.0f}/s")
            words.append(f"{seconds((total - done) / rate)} left")
        self._progress.update(self._row, completed=done, total=total, description=", ".join(words))
        self._progress.refresh()
        self.interval_s = 0.1 if passed < 10 else 0.25 if passed < 60 else 1.0


def settled(counts: Mapping[str, int]) -> int:
    """How many jobs of these counts are settled."""
    return sum(count for state, count in counts.items() if state in SETTLED)

"""Measurements of the budgets in the design. `python -m bench` runs them all."""

from typing import NamedTuple


class Row(NamedTuple):
    """One budget."""

    what: str
    figure: str
    budget: str
    met: bool

    def __str__(self) -> str:
        return f"{'met ' if self.met else 'MISS'}  {self.what:52} {self.figure:48} budget {self.budget or '-'}"

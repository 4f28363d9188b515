"""Measurements of the budgets in the design. `python -m bench` runs them all."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One budget."""

    what: str
    figure: str
    budget: str
    met: bool

    def __str__(self) -> str:
        return f"{'met ' if self.met else 'MISS'}  {self.what:52} {self.figure:48} budget {self.budget or '-'}"


Parts = Mapping[str, Callable[[bool], Iterator[Row]]]
"""Name → what makes its rows; True: quickly."""


def chosen(parts: Parts, quick: bool, only: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of some parts, as they come; of all parts if none is named."""
    for name, part in parts.items():
        if not only or name in only:
            yield from part(quick)


def print_parts(parts: Parts, doc: str | None) -> int:
    """Print the rows of the parts that the command line names; 1 if a budget is missed."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help=f"{' '.join(parts)}; default: all")
    parser.add_argument("--quick", action="store_true", help="shorter runs, less exact")
    args = parser.parse_args()
    missed = 0
    for row in chosen(parts, args.quick, args.only):
        print(row, flush=True)
        missed += not row.met
    return 1 if missed else 0

"""Write the generated part of docs/architecture.md anew: the diagrams between its two markers.

`make docs` runs it; `--check` only compares.
"""

import contextlib
import io
import os
import sys

from rota.model import tables

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "docs", "architecture.md")
BEGIN, END = "<!-- tables -->\n", "<!-- /tables -->\n"


def generated() -> str:
    """What `python -m rota.model.tables` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        tables.main()
    return out.getvalue()


def renewed(text: str) -> str:
    """The document with the present diagrams."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PATH}: the markers {BEGIN.strip()} and {END.strip()} are not there")
    return before + begin + generated() + end + after


def main() -> int:
    """Rewrite, or say that it is needed."""
    with open(PATH, encoding="utf-8") as file:
        text = file.read()
    new = renewed(text)
    if sys.argv[1:] == ["--check"]:
        if new != text:
            print("docs/architecture.md is not current: make docs", file=sys.stderr)
        return int(new != text)
    with open(PATH, "w", encoding="utf-8") as file:
        file.write(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())

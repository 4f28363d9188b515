"""Write the generated parts of the documents anew, each between its two markers: diagrams, and the list of options.

`make docs` runs it; `--check` only compares.
"""

import contextlib
import io
import sys
import textwrap
from pathlib import Path

from rota.model import tables
from rota.model.fields import OPTIONS

DOCS = Path(__file__).resolve().parents[1] / "docs"


def diagrams() -> str:
    """What `python -m rota.model.tables` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        tables.main()
    return out.getvalue()


def options() -> str:
    """The names of all that can be said in a submission."""
    return textwrap.fill(f"`{' '.join(OPTIONS)}`", 120, break_long_words=False) + "\n"


PARTS = {"architecture.md": ("tables", diagrams), "python.md": ("options", options)}
"""Document → (the word of its markers, what stands between them)."""


def renewed(name: str) -> str:
    """A document with its part as it is now."""
    word, generated = PARTS[name]
    before, begin, rest = (DOCS / name).read_text(encoding="utf-8").partition(f"<!-- {word} -->\n")
    _, end, after = rest.partition(f"<!-- /{word} -->\n")
    if not begin or not end:
        raise SystemExit(f"docs/{name}: the markers <!-- {word} --> and <!-- /{word} --> are not there")
    return before + begin + generated() + end + after


def main() -> int:
    """Rewrite, or say that it is needed."""
    old = [name for name in PARTS if renewed(name) != (DOCS / name).read_text(encoding="utf-8")]
    for name in old:
        if sys.argv[1:] == ["--check"]:
            print(f"docs/{name} is not current: make docs", file=sys.stderr)
        else:
            (DOCS / name).write_text(renewed(name), encoding="utf-8")
    return int(bool(old) and sys.argv[1:] == ["--check"])


if __name__ == "__main__":
    sys.exit(main())

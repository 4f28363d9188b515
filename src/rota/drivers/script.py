"""The shell script that a batch system runs on a node: it finds a Python and becomes the runner."""

import re
import shlex
from collections.abc import Mapping, Sequence

from rota.model.errors import UsageError

__all__ = ["ELEMENT", "NO_PYTHON", "build_script"]

ELEMENT = "\0element\0"
"""Inside a word: the element's number. No real word can have it."""
NO_PYTHON = 69
"""Exit status when the node has no Python that will do."""
NO_ELEMENT = 70
PYTHONS = ("python3", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10", "python3.9", "python3.8")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def build_script(
    words: Sequence[str],
    *,
    title: str = "rota",
    python: str | None = None,
    exports: Mapping[str, str] | None = None,
    setup: str = "",
    per_element: Sequence[Sequence[str]] = (),
) -> str:
    """Make a POSIX shell script that runs `PYTHON -I -S WORDS…`, with ELEMENT in them replaced on the node.

    `words` begin with the program's path. `per_element` has further words for each element. `python` is a path to be
    tried before those that the node finds; `setup` lines of shell to be run first, as they are.
    """
    lines = ["#!/bin/sh", *(f"# {line}" for line in title.splitlines()), *setup.splitlines()]
    for name, value in (exports or {}).items():
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot be the name of a variable: letters, digits and _, no digit first")
        lines.append(f"{name}={_quoted(value)}; export {name}")
    lines += [
        'if [ -z "${ROTA_ELEMENT:-}" ]; then',
        "    echo 'rota: ROTA_ELEMENT is not set' >&2",
        f"    exit {NO_ELEMENT}",
        "fi",
        *_find_python(python),
        f"set -- {' '.join(map(_quoted, words))}",
        *_cases(per_element),
        'exec "$rota_python" -I -S "$@"',
    ]
    return "\n".join(lines) + "\n"


def _find_python(python: str | None) -> list[str]:
    candidates = ([python] if python else []) + list(PYTHONS)
    named = " ".join(re.sub(r'[$`"\\]', "?", word) for word in candidates)
    test = "import sys; sys.exit(sys.version_info < (3, 8))"
    return [
        "rota_python=",
        f"for rota_try in {' '.join(map(shlex.quote, candidates))}; do",
        '    rota_try=$(command -v "$rota_try" 2>/dev/null) || continue',
        f"    if \"$rota_try\" -I -S -c '{test}' </dev/null >/dev/null 2>&1; then",
        "        rota_python=$rota_try",
        "        break",
        "    fi",
        "done",
        'if [ -z "$rota_python" ]; then',
        f'    echo "rota: $(uname -n) has no Python 3.8 or newer (looked for: {named}; PATH=$PATH)" >&2',
        "    echo 'rota: set `python` of this site to one that its nodes have' >&2",
        f"    exit {NO_PYTHON}",
        "fi",
    ]


def _cases(per_element: Sequence[Sequence[str]]) -> list[str]:
    if not per_element:
        return []
    lines = ["case $ROTA_ELEMENT in"]
    for number, words in enumerate(per_element):
        lines.append(f'{number}) set -- "$@" {" ".join(map(_quoted, words))};;')
    lines.append(f'*) echo "rota: there is no element $ROTA_ELEMENT" >&2; exit {NO_ELEMENT};;')
    return [*lines, "esac"]


def _quoted(word: str) -> str:
    """A text as one word for the shell, whatever is in it."""
    parts = word.split(ELEMENT)
    if any("\0" in part for part in parts):
        raise UsageError(f"a word of a command cannot have a NUL character in it: {word!r}")
    return '"$ROTA_ELEMENT"'.join(shlex.quote(part) if part or len(parts) == 1 else "" for part in parts)

"""How the commands of batch systems read their arguments: options, and lists of array indices."""

from collections import deque
from collections.abc import Mapping, Sequence

__all__ = ["BadOptionError", "indices_of", "options", "variables_of"]


class BadOptionError(Exception):
    """An option that the command does not have, as the user wrote it."""


def options(
    words: Sequence[str], short: str, long: Sequence[str] = (), single: Sequence[str] = ()
) -> tuple[dict[str, list[str]], list[str]]:
    """Read a command line as getopt would, options anywhere before `--`: the options' values, and the other words.

    `short`: letters, with `:` after those that have a value. `long`: names for `--name`, with `=` at the end of those
    that have a value. `single`: the same for `-name` (Grid Engine, LSF). Raises BadOptionError.
    """
    found: dict[str, list[str]] = {}
    rest: list[str] = []
    left = deque(words)

    def note(name: str, value: str = "") -> None:
        found.setdefault(name, []).append(value)

    def value_of(option: str) -> str:
        if not left:
            raise BadOptionError(option)
        return left.popleft()

    while left:
        word = left.popleft()
        if word == "--":
            rest += left
            break
        if not word.startswith("-") or word == "-":
            rest.append(word)
        elif word[1:] in single:
            note(word[1:])
        elif word[1:] + "=" in single:
            note(word[1:], value_of(word))
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name in long and not equals:
                note(name)
            elif name + "=" in long:
                note(name, value if equals else value_of(word))
            else:
                raise BadOptionError(word)
        elif not short:
            raise BadOptionError(word)
        else:
            letters = word[1:]
            while letters:
                letter, letters = letters[0], letters[1:]
                where = short.find(letter)
                if where < 0 or letter == ":":
                    raise BadOptionError("-" + letter)
                if short[where + 1 : where + 2] == ":":
                    note(letter, letters or value_of("-" + letter))
                    break
                note(letter)
    return found, rest


def indices_of(text: str) -> tuple[list[int], int | None] | None:
    """The indices of `1-5`, `0-9:2`, `1,3,5`, and the N of `1-5%N`; None if it is no such list."""
    spec, _, throttle = text.partition("%")
    out: list[int] = []
    try:
        for part in spec.split(","):
            low, dash, high = part.partition("-")
            high, _, step = high.partition(":")
            out += range(int(low), int(high) + 1, int(step or 1)) if dash else [int(low)]
        return (sorted(set(out)), int(throttle) if throttle else None) if out else None
    except ValueError:
        return None


def variables_of(lists: Sequence[str], own: Mapping[str, str]) -> dict[str, str]:
    """The variables of each `A=1,B`; one without a value has that of the caller, whose own these are."""
    found = {}
    for part in ",".join(lists).split(",") if lists else ():
        name, equals, value = part.partition("=")
        found[name] = value if equals else own.get(name, "")
    return found

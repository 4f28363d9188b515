"""`rota completion`: scripts for bash, zsh and fish, and the hidden command that they ask."""

import os
import sys

from rota.cli.show import STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from rota.cli.parser import Parser

SCRIPTS = {
    "bash": """\
# rota completion for bash: put this line into ~/.bashrc:  source <(rota completion bash)
_rota() {
    local IFS=$'\\n'
    COMPREPLY=($(rota __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o bashdefault -o default -F _rota rota
""",
    "zsh": """\
#compdef rota
# rota completion for zsh: put this line into ~/.zshrc, after compinit:  source <(rota completion zsh)
_rota() {
    local -a found
    found=("${(@f)$(rota __complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _rota rota
""",
    "fish": """\
# rota completion for fish: rota completion fish > ~/.config/fish/completions/rota.fish
complete -c rota -a '(rota __complete fish (commandline -opc)[2..] (commandline -ct))'
""",
}
GROUPS = ("live", "settled", "unfinished", "done", "queued", "active", "unsuccessful")
WITHOUT_SELECTOR = frozenset(
    (
        "run",
        "add",
        "data",
        "pilot",
        "cloud",
        "up",
        "down",
        "drain",
        "reload",
        "pause",
        "resume",
        "ping",
        "sites",
        "runners",
        "allocations",
        "config",
        "plugins",
        "doctor",
    )
)
BREAKS = ":=@"
"""Where bash begins a new word, so that what stands before is not to be repeated."""
PATIENCE_S = 0.5
MOST = 200


def configure(parser: "Parser", command: str) -> None:
    """The options of `completion`."""
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell to print the script for")
    parser.examples(
        "source <(rota completion bash)                     # in ~/.bashrc",
        "source <(rota completion zsh)                      # in ~/.zshrc, after compinit",
        "rota completion fish > ~/.config/fish/completions/rota.fish",
    )


def execute(args: "argparse.Namespace") -> int:
    """Print a script."""
    print(SCRIPTS[args.shell], end="")
    return 0


def execute_hidden(words: "list[str]") -> int:
    """`rota __complete SHELL …`: print what the last word could become, one per line."""
    if not words:
        return 0
    shell, rest = words[0], words[1:]
    if shell == "bash":
        rest = split(rest[0] if rest else "")[1:]
    if not rest:
        return 0
    current = rest[-1]
    cut = 0
    if shell == "bash":
        cut = max(current.rfind(mark) for mark in BREAKS) + 1
    for word in dict.fromkeys(candidates(rest[:-1], current)):
        print(word[cut:])
    return 0


def split(line: str) -> "list[str]":
    """The words of an unfinished line; the last is the one being typed, perhaps empty."""
    import shlex

    for end in ("", "'", '"'):
        try:
            words = shlex.split(line + end)
        except ValueError:
            continue
        return [*words, ""] if not end and (not line or line[-1].isspace()) else words
    return line.split(" ")


def candidates(before: "Sequence[str]", current: str) -> "Iterator[str]":
    """What `current` could become after these words."""
    from rota.cli.main import ALIASES, COMMANDS

    if not before:
        yield from matching(current, [*COMMANDS, *ALIASES, "help", "--help", "--version"])
        return
    name = ALIASES.get(before[0], before[0])
    if name == "help":
        yield from matching(current, COMMANDS)
    if name not in COMMANDS or "--" in before:
        return
    actions = options_of(name)
    previous = actions.get(before[-1])
    if previous is not None and previous.nargs != 0:
        if previous.choices:
            yield from matching(current, map(str, previous.choices))
        elif before[-1] in ("--after", "--after-any", "--after-failure", "--resume"):
            yield from matching(current, batches())
        elif before[-1] == "--policy":
            yield from matching(current, policies())
        elif before[-1] in ("-s", "--state"):
            yield from matching(current, [state.lower() for state in STATES])
    elif current.startswith("-"):
        yield from matching(current, actions)
    elif name == "completion":
        yield from matching(current, SCRIPTS)
    elif name not in WITHOUT_SELECTOR:
        yield from selectors(current)


def options_of(name: str) -> "dict[str, argparse.Action]":
    """Every option of a command."""
    import importlib

    from rota.cli.main import COMMANDS
    from rota.cli.parser import Parser

    module, summary = COMMANDS[name]
    parser = Parser(name, summary)
    importlib.import_module(module).configure(parser, name)
    return parser.options()


def matching(current: str, words: "Iterable[str]") -> "Iterator[str]":
    """The words that begin with what was typed."""
    return (word for word in words if word.startswith(current))


def selectors(current: str) -> "Iterator[str]":
    """States without asking; batches and names from the manager."""
    states = [f":{state.lower()}" for state in STATES] + [f":{group}" for group in GROUPS]
    if current.startswith(":"):
        yield from matching(current, states)
        return
    yield from matching(current, batches())
    if not current:
        yield from states


def asked(op: str, what: str, **arguments: object) -> "list[Any]":
    """The rows of an answer; none if no manager answers at once."""
    from rota.model.errors import RotaError
    from rota.wire.client import Connection

    try:
        with Connection.connect(os.environ.get("ROTA_HOME") or None, PATIENCE_S) as connection:
            return list(connection.ask(op, **arguments)[what])
    except (RotaError, OSError, KeyError) as error:
        if os.environ.get("ROTA_DEBUG"):
            print(error, file=sys.stderr)
        return []


def policies() -> "list[str]":
    """The names of policies."""
    return [row["name"] for row in asked("plugins", "policies")]


def batches() -> "Iterator[str]":
    """Ids and names, the newest first."""
    for row in sorted(asked("status", "batches", sel=[], brief=True), key=lambda row: -int(row["id"]))[:MOST]:
        yield str(row["id"])
        if row.get("name") and not any(mark.isspace() for mark in row["name"]):
            yield f"@{row['name']}"

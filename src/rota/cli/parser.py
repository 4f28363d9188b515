"""argparse, with rota's manners: short errors, no abbreviations, examples in every help."""

import argparse
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

__all__ = ["Parser"]

SUPPRESS = argparse.SUPPRESS
MANY = 10_000
"""With more words than this, what would be refused in any case is refused before argparse has turned them all over."""
# argparse looks for translations of its own words, of which there are none: that costs as much as asking the manager.
argparse._ = str  # type: ignore[attr-defined]


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Knows its width, so that argparse does not load `shutil` to find it for every option."""

    def __init__(self, prog: str) -> None:
        try:
            columns = os.get_terminal_size(1).columns or 100
        except OSError:
            columns = 100
        super().__init__(prog, max_help_position=28, width=max(60, min(columns, 120)) - 2)


class Parser(argparse.ArgumentParser):
    """The parser of one command."""

    def __init__(self, command: str, summary: str) -> None:
        super().__init__(
            prog=f"rota {command}",
            description=summary[:1].upper() + summary[1:] + ".",
            formatter_class=Formatter,
            allow_abbrev=False,
        )
        self.command = command
        self._takes_command = self._takes_all = False
        # A value may begin with a minus and a digit (`--memory -500M`): no option does.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self.add_argument("--home", metavar="DIR", help="the manager's directory (default: $ROTA_HOME or ~/.rota)")

    def examples(self, *lines: str) -> None:
        """Show example lines below the options in the help."""
        self.epilog = "examples:\n" + "\n".join(f"  {line}" for line in lines)

    def selectors(self) -> None:
        """Take SELECTOR words."""
        self.add_argument(
            "selector",
            metavar="SELECTOR",
            nargs="*",
            help="a batch 7, a job 7.12, a range 7.1-99, a name @align, a state :failed",
        )

    def json(self, what: str = "JSON") -> None:
        """Take --json."""
        self.add_argument("--json", action="store_true", help=f"print {what}")

    def takes_command(self) -> None:
        """Take the words of a command: all after the first `--`, or all from the first word that is no option."""
        self.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run (after --)")
        self._takes_command = True

    def takes_all(self) -> None:
        """Take every word as it is, options of others too; only a first `--help` is ours."""
        self.add_argument("words", nargs=argparse.REMAINDER, metavar="WORD", help="a host, and what to run there")
        self._takes_all = True

    def options(self) -> "dict[str, argparse.Action]":
        """Every option by its name, for completion."""
        return {name: action for name, action in self._option_string_actions.items() if action.help != SUPPRESS}

    def parse(self, words: "Sequence[str]") -> argparse.Namespace:
        """The arguments, with the name of the command among them; selectors may stand before and after options."""
        if self._takes_all and words[:1] not in (["-h"], ["--help"]):
            return argparse.Namespace(words=list(words), command_name=self.command)
        args = self._with_command(list(words)) if self._takes_command else self._intermixed(words)
        args.command_name = self.command
        return args

    def _intermixed(self, words: "Sequence[str]") -> argparse.Namespace:
        """As `parse_intermixed_args`, without the millisecond that this takes to format a usage nobody asked for."""
        args, rest = self.parse_known_args(words)
        if rest and (not hasattr(args, "selector") or any(word.startswith("-") for word in rest)):
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        if rest:
            args.selector += rest
        return args

    def _with_command(self, words: "list[str]") -> argparse.Namespace:
        tail: list[str] | None = None
        if "--" in words:
            at = words.index("--")
            words, tail = words[:at], words[at + 1 :]
        if len(words) > MANY:
            from rota.model.batch import check_after_count

            check_after_count(sum(word.startswith("--after") for word in words))
        args = self.parse_args(words)
        if tail is not None:
            args.words = [*args.words, "--", *tail] if args.words else tail
        return args

    def error(self, message: str) -> "NoReturn":
        """One line on what is wrong, one on where to read more; exit status 2."""
        from rota.cli.show import clean

        message = clean(message.replace("unrecognized arguments:", "unknown:"))
        print(f"{self.prog}: {message}{self._near(message)}", file=sys.stderr)
        print(f"{self.prog}: see {self.prog} --help", file=sys.stderr)
        sys.exit(2)

    def _near(self, message: str) -> str:
        if not message.startswith("unknown: -"):
            return ""
        import difflib

        word = message.split()[1].partition("=")[0]
        near = difflib.get_close_matches(word, list(self.options()), 1)
        return f" (did you mean {near[0]}?)" if near else ""

"""From a template and a value to what is executed.

Placeholders are `{}` (the value, the first column, or the number in an array), `{index}`, `{name}` for a named column,
`{batch}`, `{job}` and `{attempt}`. They are never read after `$`, so `${name}` stays the shell's; `{{` gives a plain
`{`; a name that is not known is left as it is, so that `awk '{print}'` works. Where a shell will read a value it is
quoted, in the way that the place asks for: `cp {} "{}.bak"` and `sh -c 'cat {}'` give the shell exactly the value,
whatever is in it.
"""

import re
import shlex
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from rota.model.batch import Template, Value
from rota.model.job import format_job

__all__ = ["BEHAVIOURS", "CommandMaker", "group_of", "is_starter", "needs_shell", "numbered", "split_line"]

_PLACE = re.compile(r"\{\{([A-Za-z][A-Za-z0-9_.-]*)?\}\}|\{\{|(?<!\$)\{([A-Za-z][A-Za-z0-9_.-]*)?\}")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./ \t-]+")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_BUILTINS = frozenset(
    """
    . : alias bg bind break builtin caller case cd command compgen complete compopt continue coproc declare dirs disown
    do done elif else enable esac eval exec exit export fc fg fi for function getopts hash help history if in jobs let
    local logout mapfile popd pushd pwd read readarray readonly return select set shift shopt source suspend then time
    times trap type typeset ulimit umask unalias unset until wait while
    """.split()  # noqa: SIM905
)
_LOOKED_AT = 40
"""Words of a command among which its program is looked for."""
_MPI = "-np -n -N -c -H -host --host -hostfile --hostfile -machinefile --map-by --bind-to --mca -mca -x -wdir -ppn -f"
_STARTERS: dict[str, tuple[str, int, str]] = {
    **dict.fromkeys(("nohup", "setsid", "exec", "command"), ("", 0, "")),
    "time": ("-f -o --format --output", 0, ""),
    "env": ("-u -C -S --unset --chdir", 0, ""),
    "nice": ("-n --adjustment", 0, ""),
    "ionice": ("-c -n --class --classdata", 0, ""),
    "stdbuf": ("-i -o -e", 0, ""),
    "timeout": ("-k -s --kill-after --signal", 1, ""),
    "taskset": ("", 1, ""),
    "numactl": ("-m -N -C -i -p", 0, ""),
    "sudo": ("-u -g -C", 0, ""),
    "srun": ("-n -N -c -p -A -t -J -o -e -w -x -G -C --mpi --cpu-bind", 0, ""),
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"), (_MPI, 0, "")),
    **{f"python{v}": ("-W -X", 0, "-c") for v in ("", "2", "3", *(f"3.{minor}" for minor in range(6, 21)))},
    **dict.fromkeys(("pypy", "pypy3"), ("-W -X", 0, "-c")),
    **dict.fromkeys(("bash", "sh", "dash", "zsh", "ksh", "fish"), ("-o -O --rcfile --init-file", 0, "-c -lc -ec -xc")),
    **dict.fromkeys(("perl", "ruby", "node", "lua", "php"), ("-I -r", 0, "-e -E -p")),
    **dict.fromkeys(("Rscript", "julia"), ("-p -t -L", 0, "-e -E")),
    "java": ("-cp -classpath --class-path -p --module-path", 0, ""),
}
"""What starts something else → (its options that take a word of their own, plain words before the program, its options
for a program's text). Of their other options a number that follows is taken to belong to them."""
_TWINS = frozenset(("echo", "false", "kill", "printf", "test", "true"))
"""Builtins whose namesakes on disk do the same, except that those answer to --help and --version."""
_HARD = re.compile(r"<<|`|\$['\"]|(?:^|[\s;&|(])#|\$\{[^}]*['\"\\]|\besac\b", re.MULTILINE)
"""Matches text in which only a shell can tell what is quoted."""

BEHAVIOURS = ("on_success", "on_failure", "on_exit")
Part = str | int
"""A literal piece of text, or a column number (≥ 0), or one of the marks below."""
_INDEX, _BATCH, _JOB, _ATTEMPT = -1, -2, -3, -4
_MARKS = {"index": _INDEX, "batch": _BATCH, "job": _JOB, "attempt": _ATTEMPT}


def needs_shell(line: str) -> bool:
    """True unless the line is plain words, so that splitting at blanks means what a shell would make of it."""
    words = line.split()
    if not words or _PLAIN.fullmatch(line) is None:
        return True
    first = words[0]
    if first in _TWINS and any(word.startswith("--") for word in words):
        return True
    return first in _BUILTINS or _ASSIGNMENT.match(first) is not None


def split_line(line: str) -> list[str] | str:
    """An argv if the line needs no shell, else the line itself."""
    return line if needs_shell(line) else line.split()


def group_of(command: str | Sequence[str] | None) -> str:
    """The basename of what a command runs: jobs of one program, or of one script, are much alike.

    What only starts another (`env`, `nice`, `mpirun -n 4`) is passed over, and of an interpreter (`python3 run.py`) the
    script counts. Empty: it cannot be told.
    """
    words = command.split(None, _LOOKED_AT) if isinstance(command, str) else command or ()
    last, at, end = "", 0, min(len(words), _LOOKED_AT)
    while at < end:
        word = words[at]
        at += 1
        if _ASSIGNMENT.match(word) is not None:
            continue
        last = word.rpartition("/")[2].strip("'\"();&|<>")
        valued = _STARTERS.get(last)
        if valued is None:
            return last if _tells(last) else ""
        at, inline = _past_options(words, at, end, *valued)
        if inline:
            return ""
    return last if at <= end and _tells(last) else ""


def is_starter(word: str) -> bool:
    """Whether the first word of a command only starts something else that its group goes by."""
    return word.rpartition("/")[2].strip("'\"();&|<>") in _STARTERS


def _past_options(words: Sequence[str], at: int, end: int, valued: str, plain: int, inline: str) -> tuple[int, bool]:
    """(where the program or script of a starter stands, whether it has the program's text instead)."""
    while at < end and (words[at].startswith("-") and len(words[at]) > 1):
        word = words[at]
        at += 1
        if word == "--":
            break
        if word in inline.split():
            return at, True
        if word == "-m" and "-c" in inline:
            break  # a module of Python
        if word in valued.split() or (at < end and words[at].isdigit() and not plain):
            at += 1
    return at + plain, False


def _tells(name: str) -> bool:
    """Whether a name can be that of a group: not one that differs from job to job."""
    return "{" not in name and "$" not in name and len(name) < 256 and name.isprintable()


def compile_text(text: str, columns: Sequence[str]) -> list[Part]:
    """The pieces of a text with placeholders."""
    parts: list[Part] = []
    at = 0

    def literal(piece: str) -> None:
        if piece:
            if parts and isinstance(parts[-1], str):
                parts[-1] += piece
            else:
                parts.append(piece)

    for match in _PLACE.finditer(text):
        literal(text[at : match.start()])
        at = match.end()
        whole = match[0]
        name = match[2]
        if whole.startswith("{{"):
            if match[1] is not None or whole == "{{}}":
                known = _lookup(match[1] or "", columns) is not None
                literal("{" + (match[1] or "") + ("}" if known else "}}"))
            else:
                literal("{")
            continue
        mark = _lookup(name or "", columns)
        if mark is None:
            literal(whole)
        else:
            parts.append(mark)
    literal(text[at:])
    return parts


def _lookup(name: str, columns: Sequence[str]) -> int | None:
    if name in columns:
        return columns.index(name)
    if not name:
        return 0 if columns else None
    return _MARKS.get(name)


def numbered(template: Template) -> Template:
    """The template of an array: `{}` is the number of a job there, and `{{}}` a plain `{}`."""

    def text(given: str) -> str:
        return _PLACE.sub(lambda match: {"{}": "{index}", "{{}}": "{}"}.get(match[0], match[0]), given)

    changed: dict[str, object] = {}
    for name in ("shell", "cwd", "stdin", "stdout", "stderr"):
        if (given := getattr(template, name)) is not None:
            changed[name] = text(given)
    for name in ("argv", "inputs", "outputs", *BEHAVIOURS):
        if (words := getattr(template, name)) is not None:
            changed[name] = tuple(map(text, words))
    return replace(template, **changed)


def _in_single(value: str) -> str:
    return value.replace("'", "'\\''")


def _in_double(value: str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", value)


_QUOTES = {"": shlex.quote, "'": _in_single, '"': _in_double}


def quoting(parts: Sequence[Part]) -> list[Callable[[str], str]]:
    """For each part, how a value that stands there is to be quoted: outside quotes, within single or double ones.

    Where only a shell could tell (here-documents, comments, backquotes), every value is quoted as if outside.
    """
    text = "".join(part if isinstance(part, str) else "x" for part in parts)
    out = []
    inside = [""]
    escaped = False
    for part in parts:
        out.append(_QUOTES.get(inside[-1], shlex.quote))
        if not isinstance(part, str):
            escaped = False
            continue
        before = ""
        for char in part:
            now = inside[-1]
            if escaped:
                escaped = False
            elif now == "'":
                if char == "'":
                    inside.pop()
            elif char == "\\":
                escaped = True
            elif char == '"':
                inside.pop() if now == '"' else inside.append(char)
            elif char == "(" and (now != '"' or before == "$"):
                inside.append("(")
            elif now != '"' and char == "'":
                inside.append(char)
            elif now == "(" and char == ")":
                inside.pop()
            before = char
    if inside != [""] or escaped or _HARD.search(text):
        return [shlex.quote] * len(parts)
    return out


def fill(
    parts: Sequence[Part],
    values: Sequence[str],
    batch: int,
    index: int,
    attempt: int,
    quotes: Sequence[Callable[[str], str]] | None = None,
) -> str:
    """The text with every placeholder replaced; `quotes` has one way of quoting for each part."""
    out = []
    for at, part in enumerate(parts):
        if isinstance(part, str):
            out.append(part)
        elif part >= 0:
            out.append(quotes[at](values[part]) if quotes else values[part])
        elif part == _INDEX:
            out.append(str(index))
        elif part == _BATCH:
            out.append(str(batch))
        elif part == _JOB:
            out.append(format_job(batch, index))
        else:
            out.append(str(attempt))
    return "".join(out)


class CommandMaker:
    """One template of one batch, compiled once, then filled in per job."""

    def __init__(self, template: Template, columns: Sequence[str], batch: int) -> None:
        self.template = template
        self.batch = batch
        self.lines = template.argv is None and template.shell is None
        self._shell: list[Part] | None = None
        self._quotes: list[Callable[[str], str]] = []
        self._argv: list[list[Part]] | None = None
        self.paths: dict[str, list[Part]] = {}
        """Fields of the template with placeholders, compiled."""
        if template.argv is not None:
            self._argv = [compile_text(word, columns) for word in template.argv]
        elif template.shell is not None:
            parts = compile_text(template.shell, columns)
            if needs_shell("".join(part if isinstance(part, str) else "x" for part in parts)):
                self._shell = parts
                self._quotes = quoting(parts)
            else:
                self._argv = _split_parts(parts)
        self.fixed: list[str] | None = None
        """The argv, if it is the same for every job."""
        if self._argv is not None and not any(isinstance(part, int) for word in self._argv for part in word):
            self.fixed = ["".join(map(str, word)) for word in self._argv]
        for name in ("cwd", "stdin", "stdout", "stderr"):
            text = getattr(template, name)
            if text is not None and "{" in text:
                path = compile_text(text, columns)
                if any(isinstance(part, int) for part in path) or path != [text]:
                    self.paths[name] = path
        self.behaviours: dict[str, list[list[Part]]] = {}
        """Behaviours with placeholders, compiled."""
        for name in BEHAVIOURS:
            texts = [compile_text(text, columns) for text in getattr(template, name)]
            if any(parts != [text] for parts, text in zip(texts, getattr(template, name), strict=True)):
                self.behaviours[name] = texts

    @property
    def is_plain(self) -> bool:
        """Whether nothing of a job or its batch is in what is run."""
        return self.fixed is not None and not self.paths and not self.behaviours

    def names(self, *paths: str) -> set[str]:
        """Which of `index`, `batch`, `job`, `attempt` stand in the command or in these paths."""
        texts = [self._shell or [], *(self._argv or []), *(self.paths.get(path, []) for path in paths)]
        return {name for name, mark in _MARKS.items() if any(mark in text for text in texts)}

    def command(self, value: Value, index: int, attempt: int) -> list[str] | str:
        """The command of one job: an argv, or a line for the shell."""
        if self.fixed is not None:
            return self.fixed
        if self.lines:
            given = value.get("command", "") if isinstance(value, dict) else value
            return given if isinstance(given, list) else split_line(str(given))
        values = _as_list(value)
        if self._argv is not None:
            return [fill(word, values, self.batch, index, attempt) for word in self._argv]
        assert self._shell is not None
        return fill(self._shell, values, self.batch, index, attempt, self._quotes)

    def behaviour(self, name: str, value: Value, index: int, attempt: int) -> list[str]:
        """`on_success`, `on_failure` or `on_exit` of one job: lines for the shell."""
        values = _as_list(value)
        return [fill(parts, values, self.batch, index, attempt, quoting(parts)) for parts in self.behaviours[name]]

    def variables(self, value: Value) -> dict[str, str] | None:
        """The variables that are set for one job; None: those of its template."""
        own = value.get("env") if isinstance(value, dict) else None
        if not own:
            return None
        return {**self.template.set, **{k: v for k, v in own.items() if f"env.{k}" not in self.template.over}}

    def path(self, name: str, value: Value, index: int, attempt: int) -> str | None:
        """`cwd`, `stdin`, `stdout` or `stderr` of one job, or None if it is not set."""
        if isinstance(value, dict) and name in value and name not in self.template.over:
            return str(value[name]) if value[name] is not None else None
        if name in self.paths:
            return fill(self.paths[name], _as_list(value), self.batch, index, attempt)
        text = getattr(self.template, name)
        return str(text) if text is not None else None


def show_command(command: list[str] | str) -> str:
    """A command as one line that a person could paste into a shell."""
    return command if isinstance(command, str) else shlex.join(command)


def _as_list(value: Value) -> list[str]:
    if isinstance(value, str):
        return [value]
    return value if isinstance(value, list) else []


def _split_parts(parts: Sequence[Part]) -> list[list[Part]]:
    """Words of a plain text: literals are split at blanks, a placeholder belongs to the word it stands in."""
    words: list[list[Part]] = []
    open_word = False
    for part in parts:
        if not isinstance(part, str):
            if not open_word:
                words.append([])
            words[-1].append(part)
            open_word = True
            continue
        pieces = part.split()
        if part[0] in " \t":
            open_word = False
        for piece in pieces:
            if open_word:
                words[-1].append(piece)
            else:
                words.append([piece])
            open_word = False
        if pieces:
            open_word = part[-1] not in " \t"
    return words

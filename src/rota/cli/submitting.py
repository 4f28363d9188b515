"""The options that `rota add` and `rota run` share, and the sending of what they made."""

import argparse
import re
import sys

from rota.cli.foreign import add_foreign_flags, in_our_words, misspelt_placeholders, unlikely_placeholders
from rota.cli.parser import Parser
from rota.model.errors import UsageError
from rota.model.fields import GROUPS, OPTIONS, Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO, Any

    from rota.model.batch import BatchSpec
    from rota.submission import JobOptions, Submission

__all__ = ["configure_submission", "print_dry_run", "say_about", "submission_of"]

RERUN = "--live=rerun"
BY_VALUE = "--each=value"
LOOKED_AT = 100
"""Lines of a file that are looked at for what may be a mistake."""


def configure_submission(parser: Parser) -> None:
    """Add every option that says what to run and how."""
    parser.usage = f"{parser.prog} [options] -- COMMAND …\n       {parser.prog} [options] -f FILE"
    for title, fields in GROUPS.items():
        if title:
            group = parser.add_argument_group(title)
            if title == "what to run":
                add_sources(group)
            for field in fields:
                add_flag(group, field)
    add_foreign_flags(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="say what is left out of the environment")
    parser.takes_command()


def add_sources(group: "argparse._ArgumentGroup") -> None:
    """Add the flags that say what makes the jobs."""
    add = group.add_argument
    add("-f", "--file", metavar="FILE", help="one command (or JSON object) per line; - is standard input")
    add(
        "--array",
        metavar="RANGES",
        help="numbers for {}, {index}: 1-1000, 1-1000:2, 1-5,9, and %%50: at most 50 at once",
    )
    add("--values", metavar="A,B,…", help="one job per value, which goes into {}; also COMMAND ::: a b c")
    add("--values-from", metavar="FILE", help="the same, one value per line; - is standard input")
    add(
        "--param",
        action="append",
        default=[],
        metavar="NAME=A,B,…",
        help="values for {NAME}, or 1..9; or NAME@FILE",
    )
    add("--zip", action="store_true", help="pair the parameters; default: every combination")


REPEATED = (
    "commands", "inputs", "limits", "mounts", "names", "native", "outputs", "resources", "tags", "variables",
    "variants",
)  # fmt: skip
"""Kinds of fields whose flag may be given several times."""


def add_flag(group: "argparse._ArgumentGroup", field: Field, changing: bool = False) -> None:
    """Add the flag of one field, for new jobs or for changes. What was not given is None."""
    more: dict[str, Any] = {"metavar": field.metavar} if field.metavar else {}
    choices = field.choices
    if changing:
        choices += ("",) if choices and field.clears else ()
        more |= {"metavar": field.change_metavar} if field.change_metavar else {}
    if choices:
        more["choices"] = choices
    elif field.kind == "switch" and changing and field.place != "batch":
        more["choices"] = ("yes", "no")
    elif field.kind == "switch":
        more["action"] = "store_true"
    elif field.kind == "count":
        more["type"] = int
    elif field.kind in REPEATED:
        more["action"] = "append"
    elif field.kind == "dependencies":
        more["action"] = After
    elif field.kind == "manner":
        more |= {"action": HowAfter, "nargs": 0}
    text = field.change if changing and field.change else field.help
    group.add_argument(*field.flag, dest=field.name, default=None, help=text, **more)


def flag_value(field: Field, given: "Any") -> "Any":
    """The value of a flag, as a Python client gives it."""
    if field.kind == "switch":
        return given in (True, "yes")
    if field.kind == "list":
        return [word.strip() for word in given.split(",") if word.strip()]
    if field.kind == "resources":
        return pairs("--resource", given, number)
    if field.kind == "native":
        return natives(given)
    return environment(given) if field.kind == "variables" else given


def natives(texts: "Sequence[str]") -> "dict[str, str]":
    """The native options of --native words."""
    out = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not key.startswith("-"):
            raise UsageError(f"--native {text}: write it as the batch system does, as in --native=--licenses=matlab")
        out[key] = value
    return out


class After(argparse.Action):
    """Collects dependencies, in order: [target, condition, words of HowAfter …]."""

    def __call__(self, parser: "Any", namespace: "Any", values: "Any", option: "str | None" = None) -> None:
        """Take one dependency."""
        given = getattr(namespace, "after", None)
        if given is None:
            given = namespace.after = []
        for target in targets_of(values):
            given.append([target, (option or "")[8:] or "success"])


def targets_of(text: str) -> "list[str]":
    """The words of one --after: `@x,@y` is two, if each is a selector by itself."""
    parts = text.split(",")
    return parts if all(part[:1] == "@" or part[:1].isdigit() for part in parts) else [text]


class HowAfter(argparse.Action):
    """Says more about the dependency before it."""

    def __call__(self, parser: "Any", namespace: "Any", values: "Any", option: "str | None" = None) -> None:
        """Take one such flag."""
        given = getattr(namespace, "after", None)
        if not given:
            why = f"{option} says more about the --after before it: write it behind one, as in --after 7 --each"
            raise argparse.ArgumentError(None, why)
        given[-1].append(option)


def after_of(args: argparse.Namespace) -> "list[Any]":
    """The dependencies that the flags name."""
    from rota.model.batch import Dependency, check_after_count

    given = args.after or []
    check_after_count(len(given))
    return [
        Dependency(
            target,
            condition,
            bool({"--each", BY_VALUE} & {*how}),
            bool({"--live", RERUN} & {*how}),
            RERUN in how,
            BY_VALUE in how,
        )
        for target, condition, *how in given
    ]


def submission_of(args: argparse.Namespace, at_once: "int | None" = None) -> "Submission":
    """The submission that the arguments ask for, read and checked."""
    from rota.submission import LineFile, build

    in_our_words(args)
    if args.file is not None and args.words:
        raise UsageError("give either a command or -f FILE, not both (values of {} come from --values-from FILE)")
    if args.values is not None and args.values_from is not None:
        raise UsageError("--values and --values-from: give one of them")
    if args.zip and not args.param:
        raise UsageError("--zip pairs the values of --param: give at least one")
    if [args.file, args.values_from, *(text.partition("@")[2] for text in args.param)].count("-") > 1:
        raise UsageError("standard input can be read only once")
    command: str | list[str] | None = None
    if args.words:
        command = args.words[0] if len(args.words) == 1 else args.words
    values: LineFile | list[str] | None = None
    if args.values is not None:
        values = args.values if isinstance(args.values, list) else args.values.split(",")
    elif args.values_from is not None:
        values = LineFile(args.values_from, stdin)
    return build(
        command,
        options_of(args, at_once),
        lines=None if args.file is None else LineFile(args.file, stdin),
        values=values,
        params=params_of(args.param) if args.param else None,
        zipped=args.zip,
        array=args.array,
    )


def stdin() -> "IO[bytes]":
    """Standard input, unless a person would have to type it unasked."""
    if sys.stdin is None:
        raise UsageError("standard input is closed")
    if sys.stdin.isatty():
        print("rota: reading from standard input, end with Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer


def options_of(args: argparse.Namespace, at_once: "int | None") -> "JobOptions":
    """The options that the flags give."""
    out: JobOptions = {"after": after_of(args), "at_once": at_once}
    for name, field in OPTIONS.items():
        if name not in out and (given := getattr(args, name)) is not None:
            out[name] = flag_value(field, given)  # type: ignore[literal-required]
    return out


def number(option: str, text: str) -> int:
    """A count of 0 or more."""
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{option}: '{text}' is not a count")
    return int(text)


def pairs(option: str, texts: "Sequence[str]", convert: "Callable[[str, str], Any]") -> "dict[str, Any]":
    """NAME=VALUE words as a mapping."""
    out = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {text}: write NAME=VALUE")
        out[name] = convert(option, value)
    return out


def environment(texts: "Sequence[str]") -> "dict[str, str]":
    """The variables of --env words; a name alone takes its value from here."""
    import os

    out = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise UsageError(f"--env {text}: write NAME=VALUE")
        if not equals and name not in os.environ:
            raise UsageError(f"--env {name}: it is not set here; write {name}=VALUE")
        out[name] = value if equals else os.environ[name]
    return out


def params_of(texts: "Sequence[str]") -> "dict[str, list[str]]":
    """The values of --param words: NAME=A,B or NAME@FILE, whichever sign comes first."""
    from rota.submission import LineFile

    out: dict[str, list[str]] = {}
    for text in texts:
        cut = min((at for at in (text.find("="), text.find("@")) if at > 0), default=0)
        if not cut:
            raise UsageError(f"--param {text}: write NAME=A,B,C or NAME@FILE")
        name, rest = text[:cut], text[cut + 1 :]
        if name in out:
            raise UsageError(f"--param {name} is given twice")
        out[name] = values_of(rest) if text[cut] == "=" else LineFile(rest, stdin).as_values(name).values()
    return out


def values_of(text: str) -> "list[str]":
    """The values of a list `a,b,c`, where `1..3` is a range, and `1..9:2` every second of one."""
    import re

    out: list[str] = []
    for word in text.split(","):
        match = re.fullmatch(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})(?::([1-9][0-9]{0,8}))?", word)
        if match is None:
            out.append(word)
            continue
        first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if last < first:
            raise UsageError(f"--param {text}: the range {word} ends below where it begins")
        out += map(str, range(first, last + 1, step))
    return out


def print_dry_run(args: argparse.Namespace, submission: "Submission") -> None:
    """Print what would be added."""
    from rota.cli.native import native_submissions, print_native
    from rota.cli.show import clean, jobs_word, print_json

    spec = submission.spec
    first = submission.preview(10)
    native = native_submissions(args.home, spec)
    learned = what_was_learned(args.home, spec)
    if args.json:
        commands = [{"index": index, "command": command} for index, command in first]
        needs = [template.needs.words() for template in spec.templates[:10]]
        row = {"dry_run": True, "jobs": spec.count, "name": spec.name, "needs": needs, "first": commands}
        row["learned"] = learned
        print_json(row | {"native": native})
        return
    for warning in odd_braces(args, submission):
        print(f"rota: warning: {warning}", file=sys.stderr)
    template = spec.templates[0]
    print(f"{jobs_word(spec.count)} would be added; nothing was")
    print(f"  each needs {template.needs.words()}" + ("" if len(spec.templates) == 1 else " or as its line says"))
    for line in learned:
        print(f"    {clean(line)}")
    print(f"  in {clean(template.cwd)}")
    for index, command in first:
        print(f"  {index}: {clean(command)}")
    if spec.count > len(first):
        print(f"  … and {spec.count - len(first):,} more")
    for each in native:
        print_native(each)


def what_was_learned(home: "str | None", spec: "BatchSpec") -> list[str]:
    """What was learned beside what the user said, if there is a manager that could know."""
    from rota.schedule.estimate import asked_for, learned_words
    from rota.wire.client import Connection, NoManagerError

    groups = {template.group for template in spec.templates[:10]} - {""}
    try:
        with Connection.connect(home) as connection:
            rows = {row["group"]: row for row in connection.ask("learning")["groups"] if row["group"] in groups}
    except NoManagerError:
        return []
    out: dict[str, None] = {}
    for template in spec.templates[:10]:
        row, given = rows.get(template.group), template.needs
        if row is not None:
            found = (row["memory_bytes"], row["disk_bytes"], row["time_s"])
            seen = (row["samples"]["memory"], row["samples"]["disk"], row["samples"]["time"])
            asked = asked_for(given, found, template.override, template.level, None, "time" in template.enforce)
            lines = learned_words(given, asked, found, seen)
            out |= dict.fromkeys(f"{template.group}: {line}" for line in lines)
    return list(out)


def odd_braces(args: argparse.Namespace, submission: "Submission") -> "list[str]":
    """Warnings of what looks like a placeholder in the first commands, and is none."""
    found: dict[str, None] = {}
    for _, command in submission.preview(LOOKED_AT if args.file is not None else 1):
        found |= dict.fromkeys(unlikely_placeholders(command, args.file is None))
    if args.file is None:
        params = [re.split("[=@]", text, maxsplit=1)[0] for text in args.param or ()]
        behaviours = [*(args.on_success or ()), *(args.on_failure or ()), *(args.on_exit or ())]
        for text in (" ".join(args.words), args.stdout, args.stderr, *behaviours):
            found |= dict.fromkeys(misspelt_placeholders(text or "", params))
    return list(found)


def say_about(args: argparse.Namespace, submission: "Submission", answer: "dict[str, Any]") -> None:
    """Print warnings, and with -v what was not sent."""
    for warning in answer.get("warnings") or ():
        print(f"rota: warning: {warning}", file=sys.stderr)
    for warning in odd_braces(args, submission):
        print(f"rota: warning: {warning}", file=sys.stderr)
    for line in answer.get("learned") or ():
        print(f"rota: {line}", file=sys.stderr)
    if args.verbose and submission.left_out:
        print(f"rota: not sent from your environment: {' '.join(submission.left_out)}", file=sys.stderr)
    elif submission.secrets and _first_time(args.home):
        names = " ".join(submission.secrets)
        print(f"rota: not sent, since they look secret: {names} (said once; -v says it each time)", file=sys.stderr)


def _first_time(home: "str | None") -> bool:
    """Whether nobody was told in this home yet what is not sent."""
    import os

    from rota.manager.paths import Paths

    try:
        mark = os.path.join(Paths(home).home, "said-environment")
        os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError:
        return False
    return True

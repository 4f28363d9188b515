"""`rota retry`, `modify`, `kill`, `hold`, `release`, `remove`: what changes jobs."""

import sys

from rota.cli.link import connect
from rota.cli.show import jobs_word, print_json
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from rota.cli.parser import Parser
    from rota.wire.client import Connection

_MANY = {"is": "are", "has": "have", "runs:": "run:", "stays": "stay"}
"""Verbs with which the words for one job begin → those for several."""
_DONE = {
    "retry": "will run again",
    "modify": "changed",
    "kill": "killed",
    "hold": "held",
    "release": "released",
    "remove": "removed",
}
_EXAMPLES = {
    "retry": (
        "rota retry 7 :failed",
        "rota retry 7 --memory x2 --time +1h",
        "rota retry 7.12",
        "rota retry :failed --all --dry-run",
    ),
    "modify": (
        "rota modify 7 --memory 8G --priority 10",
        "rota modify @align --time x1.5 --env THREADS=4 --unset-env DEBUG",
        "rota modify 7 --limit irods --drop-limit nfs",
        "rota modify 7.12 --command 'align --slow x12'",
        "rota modify 7 --name align2 --after 5 --after-any @prepare --not-before +2h",
        "rota modify 7 --after none --at-once 20 --max-failures 10%",
        "rota modify 7 --on-exit 'rm -f scratch' --partition long --stdout ''",
    ),
    "kill": ("rota kill 7", "rota kill 7.1-99", "rota kill 7 --age 2h", "rota kill 7.12 --confirm-dead"),
    "hold": ("rota hold 7", "rota hold 7 --stop"),
    "release": ("rota release 7",),
    "remove": ("rota remove 7", "rota remove :completed", "rota remove --all"),
}
_STATES = {
    "retry": "what is settled (by default not what COMPLETED: name :completed to run that again too)",
    "modify": "what does not run and has not succeeded",
    "kill": "what is not settled",
    "hold": "what waits",
    "release": "what is held",
    "remove": "what does not run",
}


def configure(parser: "Parser", command: str) -> None:
    """The options of a command that changes jobs."""
    parser.selectors()
    parser.add_argument("--all", action="store_true", help="everything; needed where no SELECTOR is given")
    parser.add_argument("--dry-run", action="store_true", help="only say which jobs it would be")
    if command == "kill":
        parser.add_argument(
            "--confirm-dead", action="store_true", help="you know that MISSING jobs are dead: give them up"
        )
        parser.add_argument("--age", metavar="TIME", help="only what has been running for longer: 90m, 2h, 1d")
    if command in ("retry", "modify"):
        configure_changes(parser, command == "modify")
    if command == "hold":
        parser.add_argument("--stop", action="store_true", help="also what runs: it is ended, and held")
    parser.json('{"jobs": …, "skipped": […], "sample": […]}')
    parser.description = f"{parser.description} Concerns {_STATES[command]}."
    parser.examples(*_EXAMPLES[command])


def configure_changes(parser: "Parser", of_batches: bool) -> None:
    """The options that say what is to be changed."""
    from rota.cli.submitting import add_flag
    from rota.model.fields import BATCH_CHANGES, CHANGES

    for title, fields in (CHANGES | BATCH_CHANGES if of_batches else CHANGES).items():
        group = parser.add_argument_group(title)
        for field in fields:
            add_flag(group, field, changing=True)


def changes_of(args: "argparse.Namespace") -> "Any":
    """The changes of jobs that the options ask for, as `rota.submission.Changes`."""
    from rota.cli.submitting import flag_value, natives
    from rota.model.fields import CHANGES

    out: dict[str, Any] = {}
    for field in (field for fields in CHANGES.values() for field in fields if field.place and field.name != "env"):
        given = getattr(args, field.name)
        if given == "" and field.clears:
            out[field.name] = None
        elif given is not None:
            out[field.name] = flag_value(field, [] if given == [""] and field.clears else given)
    if args.drop_native is not None:
        out["native"] = {**out.get("native", {}), **dict.fromkeys(natives(args.drop_native))}
    if args.env is not None or args.unset_env is not None:
        pairs = [text.partition("=") for text in args.env or ()]
        for name, equals, _ in pairs:
            if not equals or not name:
                raise UsageError(f"--env {name}: write NAME=VALUE (to take one away, --unset-env {name})")
        out["env"] = {**{name: value for name, _, value in pairs}, **dict.fromkeys(args.unset_env or ())}
    return out


def batch_changes_of(args: "argparse.Namespace") -> "Any":
    """The changes of whole batches that the options ask for."""
    from rota.cli.submitting import after_of, number

    out: dict[str, Any] = {}
    if args.after:
        without = args.after[0] == ["none", "success"]
        if any(row[0] == "none" for row in args.after[without:]):
            raise UsageError("--after none: give it once, by itself and first, as in --after none --after 5")
        args.after = args.after[without:]
        out["after"] = [*(["none"] if without else []), *after_of(args)]
    for name in ("name", "drop_after", "not_before", "on_batch_end"):
        if getattr(args, name) is not None:
            out[name] = getattr(args, name)
    if args.require_known:
        out["require_known"] = True
    if args.at_once is not None:
        out["at_once"] = None if args.at_once == "off" else number("--at-once", args.at_once)
    if args.max_failures is not None:
        out["max_failures"] = None if args.max_failures == "default" else args.max_failures
    if args.scouts is not None:
        out["scouts"] = args.scouts
    return out


def _outcome(op: str, count: int, ending: int, given_up: bool) -> str:
    """What was done, in words; jobs that run were only told to end."""
    if not ending:
        return f"{jobs_word(count)} {'given up' if given_up else _DONE[op]}"
    told = f"{jobs_word(ending)} {'is' if ending == 1 else 'are'} being ended"
    return told if ending == count else f"{jobs_word(count - ending)} killed, {told}"


def older_than(connection: "Connection", selector: "list[str]", age: str) -> "list[str]":
    """The jobs of a selector that have been running for longer than that."""
    import time

    from rota.cli.link import pages
    from rota.model.amounts import parse_duration

    since = time.time() - parse_duration(age)
    words = selector if any(word.startswith(":") for word in selector) else [*selector, ":active"]
    rows = (row for page in pages(connection, "jobs", "jobs", sel=words) for row in page)
    return [row["id"] for row in rows if row["ended"] is None and row["started"] is not None and row["started"] < since]


def execute(args: "argparse.Namespace") -> int:
    """Ask for the change and say what it met."""
    op = args.command_name
    if not args.selector and not args.all:
        raise UsageError(f"{op} which jobs? Give a SELECTOR (7, 7.12, @name, :state), or --all for everything")
    extra = {name: getattr(args, name) for name in ("confirm_dead", "stop") if hasattr(args, name)}
    if op in ("retry", "modify"):
        from rota.submission.patching import make_patch

        changes = changes_of(args)
        if op == "modify":
            changes |= batch_changes_of(args)
        extra["changes"] = make_patch(changes)
    with connect(args) as connection:
        selector = args.selector
        if getattr(args, "age", None) is not None:
            selector = older_than(connection, selector, args.age)
            if not selector:
                print_json({"jobs": 0, "skipped": [], "sample": []}) if args.json else print("no job runs for so long")
                return 0
        answer = connection.ask(op, sel=selector, all=args.all, dry_run=args.dry_run, **extra)
    if args.json:
        print_json(answer)
        return 0
    count = answer["jobs"]
    sample = answer.get("sample") or []
    if args.dry_run:
        more = f" ({', '.join(sample)}{', …' if count > len(sample) else ''})" if sample else ""
        print(f"{jobs_word(count)} would be concerned{more}; nothing was changed")
    else:
        batches = answer.get("batches")
        where = f" in {batches} batch{'' if batches == 1 else 'es'}" if batches is not None else ""
        print(f"{_outcome(op, count, answer.get('ending', 0), bool(extra.get('confirm_dead')))}{where}")
    for warning in answer.get("warnings") or ():
        print(f"rota: warning: {warning}", file=sys.stderr)
    for row in answer.get("skipped") or ():
        verb, space, rest = row["reason"].partition(" ")
        verb = verb if row["jobs"] == 1 else _MANY.get(verb, verb)
        print(f"rota: {jobs_word(row['jobs'])} left alone: {verb}{space}{rest}", file=sys.stderr)
    return 0

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
    "kill": ("rota kill 7", "rota kill 7.1-99", "rota kill :pending --dry-run", "rota kill 7.12 --confirm-dead"),
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
    """The options of all of them."""
    parser.selectors()
    parser.add_argument("--all", action="store_true", help="everything; needed where no SELECTOR is given")
    parser.add_argument("--dry-run", action="store_true", help="only say which jobs it would be")
    if command == "kill":
        parser.add_argument(
            "--confirm-dead", action="store_true", help="you know that MISSING jobs are dead: give them up"
        )
    if command in ("retry", "modify"):
        configure_changes(parser)
    if command == "modify":
        configure_batches(parser)
    if command == "hold":
        parser.add_argument("--stop", action="store_true", help="also what runs: it is ended, and held")
    parser.json('{"jobs": …, "skipped": […], "sample": […]}')
    parser.description = f"{parser.description} Concerns {_STATES[command]}."
    parser.examples(*_EXAMPLES[command])


def configure_changes(parser: "Parser") -> None:
    """The options that say what is to be different."""
    add = parser.add_argument_group("what changes (all else stays as it is)").add_argument
    add("--memory", "--mem", metavar="SIZE", help="4G, x2 (twice what it asks for now), +1G")
    add("-t", "--time", metavar="TIME", help="90m, x2, +1h")
    add("--disk", metavar="SIZE", help="10G, x2, +5G")
    add("-c", "--cores", metavar="N", help="4, 2..8, x2, +1")
    add("--gpus", type=int, metavar="N", help="GPUs")
    add("--resource", action="append", metavar="NAME=N", help="named resources (all of them)")
    add("--tag", action="append", metavar="TAG", help="tags (all of them)")
    add("--on", metavar="SITE", help="only at this site")
    add("--command", metavar="TEXT", help="another command")
    add("-p", "--priority", type=int, metavar="N", help="0 to 255")
    add("--retries", type=int, metavar="N", help="try again so often")
    add("--retry-on", metavar="LIST", help="only on these exit codes and reasons: 75,time,oom")
    add("--never-retry-on", metavar="LIST", help="never on these")
    add("--no-retry-after", metavar="TIME", help="not if it failed after so long")
    add("--limit", action="append", metavar="NAME", help="count against this limit too")
    add("--drop-limit", action="append", metavar="NAME", help="and not against this one any more")
    add("--cwd", metavar="DIR", help="working directory")
    add("--env", action="append", metavar="K=V", help="set a variable")
    add("--unset-env", action="append", metavar="K", help="take a variable away that --env had set")
    add("--module", action="append", metavar="NAME", help="environment modules (all of them)")
    add("--setup", metavar="FILE", help="source this file first")
    add("--stdin", metavar="FILE", help="standard input")
    add("-o", "--stdout", metavar="FILE", help="standard output to a file")
    add("-e", "--stderr", metavar="FILE", help="standard error to a file")
    add("--enforce", choices=("none", "time", "memory", "both"), help="what ends a job that exceeds it")
    add("--grace", metavar="TIME", help="from TERM to KILL")
    add("--output-cap", metavar="SIZE", help="of each output stream, keep so much")
    add("--rerunnable", choices=("yes", "no"), help="may be started again when its runner is silent for long")
    add("--group", metavar="NAME", help="learning group")
    add("--override", choices=("never", "higher", "always"), help="when your figures are used, not the learned ones")
    configure_more_changes(parser)


def configure_more_changes(parser: "Parser") -> None:
    """The same for what surrounds a job, and for what a batch system is asked for."""
    add = parser.add_argument_group("what changes around the job ('' takes away what was said)").add_argument
    add("--env-from", choices=("submit", "site", "none"), help="the environment to begin with")
    add("--workdir", choices=("shared", "unique"), help="unique: a fresh directory for each attempt")
    add("--cleanup", choices=("success", "failure", "always", "never"), help="when that is removed")
    add("--change-home", choices=("yes", "no"), help="HOME is that directory")
    add("--on-success", action="append", metavar="COMMAND", help="run this if it succeeded (all of them)")
    add("--on-failure", action="append", metavar="COMMAND", help="run this if it failed (all of them)")
    add("--on-exit", action="append", metavar="COMMAND", help="run this in any case (all of them)")
    add("--behaviour-time", metavar="TIME", help="the longest each of these may take")
    add("--remove-on", choices=("success", "failure", "exit", ""), help="forget the job once it has settled so")
    add("--signal", metavar="NAME@TIME", help="warn it so long before its time is over: USR1@120")
    add = parser.add_argument_group("what changes where there is a batch system ('' as above)").add_argument
    add("-A", "--account", metavar="NAME", help="account or project to charge")
    add("--partition", "--queue", metavar="NAME", help="partition or queue")
    add("--qos", metavar="NAME", help="quality of service")
    add("--reservation", metavar="NAME", help="use this reservation")
    add("--constraint", metavar="TEXT", help="features that a node must have")
    add("--exclusive", choices=("yes", "no"), help="share the node with nobody")
    add("--nodes", type=int, metavar="N", help="so many nodes (mode direct only)")
    add("--tasks-per-node", type=int, metavar="N", help="what the batch system is told for srun and mpirun")
    add("--native", action="append", metavar="--KEY=VALUE", help="set an option of the batch system itself")
    add("--drop-native", action="append", metavar="--KEY", help="take one away")


def configure_batches(parser: "Parser") -> None:
    """The options that say what is to be different about whole batches."""
    from rota.cli.submitting import RERUN, After, HowAfter

    add = parser.add_argument_group("what changes about whole batches (SELECTOR: 7 or @name)").add_argument
    add("--name", metavar="TEXT", help="another name ('' takes it away)")
    add("--after", action=After, metavar="SEL", help="wait for these too: 7, 7.12, @name; none: for nothing it had")
    add("--after-any", action=After, metavar="SEL", help="until these are settled in any way")
    add("--after-failure", action=After, metavar="SEL", help="until these have failed")
    add("--each", action=HowAfter, nargs=0, help="of the --after before it: job by job")
    add("--live", action=HowAfter, nargs=0, help="of the --after @NAME before it: also for new batches of that name")
    add(RERUN, action=HowAfter, nargs=0, help="… and what has completed runs again after them")
    add("--require-known", action="store_true", help="refuse an --after @NAME that nothing has yet")
    add("--drop-after", action="append", metavar="SEL", help="and not for this any more")
    add("--not-before", metavar="WHEN", help="22:30, 2030-01-31T22:30 or +2h; now: at once")
    add("--at-once", metavar="N|off", help="at most so many of the batch at a time")
    add("--max-failures", metavar="N|P%|off|default", help="hold the rest after so many failures")
    add("--on-batch-end", metavar="COMMAND", help="run this once, when all of it is settled ('' takes it away)")


_SAME = ("memory", "time", "disk", "cores", "gpus", "on", "command", "priority", "retries", "no_retry_after", "cwd",
         "setup", "stdin", "stdout", "stderr", "enforce", "grace", "output_cap", "group", "override", "env_from",
         "workdir", "cleanup", "behaviour_time", "remove_on", "signal", "account", "partition", "qos", "reservation",
         "constraint", "nodes", "tasks_per_node")  # fmt: skip
_NONE_IF_EMPTY = ("on", "no_retry_after", "setup", "stdin", "stdout", "stderr", "remove_on", "signal", "account",
                  "partition", "qos", "reservation", "constraint")  # fmt: skip


def changes_of(args: "argparse.Namespace") -> "Any":
    """What was said, in the words of `rota.submission.Changes`."""
    out: dict[str, Any] = {name: getattr(args, name) for name in _SAME if getattr(args, name) is not None}
    out |= {name: None for name in _NONE_IF_EMPTY if out.get(name) == ""}
    for name, key in (("limit", "limits"), ("drop_limit", "drop_limits")):
        if getattr(args, name) is not None:
            out[key] = getattr(args, name)
    lists = {"tag": "tags", "module": "modules", "on_success": "on_success", "on_failure": "on_failure",
             "on_exit": "on_exit"}  # fmt: skip
    for name, key in lists.items():
        if getattr(args, name) is not None:
            out[key] = [] if getattr(args, name) == [""] else getattr(args, name)
    for name in ("retry_on", "never_retry_on"):
        if getattr(args, name) is not None:
            out[name] = [word for word in getattr(args, name).split(",") if word]
    for name in ("rerunnable", "change_home", "exclusive"):
        if getattr(args, name) is not None:
            out[name] = getattr(args, name) == "yes"
    if args.resource is not None:
        from rota.cli.submitting import number, pairs

        out["resources"] = {} if args.resource == [""] else pairs("--resource", args.resource, number)
    if args.native is not None or args.drop_native is not None:
        from rota.cli.submitting import natives

        out["native"] = {**natives(args.native or ()), **dict.fromkeys(natives(args.drop_native or ()))}
    if args.env is not None or args.unset_env is not None:
        given = [text.partition("=") for text in args.env or ()]
        for name, equals, _ in given:
            if not equals or not name:
                raise UsageError(f"--env {name}: write NAME=VALUE (to take one away, --unset-env {name})")
        out["env"] = {**{name: value for name, _, value in given}, **dict.fromkeys(args.unset_env or ())}
    return out


def batch_changes_of(args: "argparse.Namespace") -> "Any":
    """The same for whole batches."""
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
    return out


def _did(op: str, count: int, ending: int, given_up: bool) -> str:
    """What was done, in words; of jobs that run no more than that they were told."""
    if not ending:
        return f"{jobs_word(count)} {'given up' if given_up else _DONE[op]}"
    told = f"{jobs_word(ending)} {'is' if ending == 1 else 'are'} being ended"
    return told if ending == count else f"{jobs_word(count - ending)} killed, {told}"


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
        answer = connection.ask(op, sel=args.selector, all=args.all, dry_run=args.dry_run, **extra)
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
        print(f"{_did(op, count, answer.get('ending', 0), bool(extra.get('confirm_dead')))}{where}")
    for warning in answer.get("warnings") or ():
        print(f"rota: warning: {warning}", file=sys.stderr)
    for row in answer.get("skipped") or ():
        print(f"rota: {jobs_word(row['jobs'])} left alone: {row['reason']}", file=sys.stderr)
    return 0

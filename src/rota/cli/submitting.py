"""The options that `rota add` and `rota run` share, and the sending of what they made."""

import argparse
import sys

from rota.cli.parser import Parser
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO, Any

    from rota.submission import Options, Submission

__all__ = ["configure_submission", "print_dry_run", "say_about", "submission_of"]


RERUN = "--live=rerun"


def configure_submission(parser: Parser) -> None:
    """Add every option that says what to run and how."""
    parser.usage = f"{parser.prog} [options] -- COMMAND …\n       {parser.prog} [options] -f FILE"
    _what(parser)
    _needs(parser)
    _batch_system(parser)
    _surroundings(parser)
    _when(parser)
    _after(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="say what is left out of the environment")
    parser.takes_command()


def _what(parser: Parser) -> None:
    group = parser.add_argument_group("what to run")
    add = group.add_argument
    add("-f", "--file", metavar="FILE", help="one command (or JSON object) per line; - is standard input")
    add("--array", metavar="RANGES", help="numbers for {index}: 1-1000, 1-1000:2, 1-5,9, and %%50: at most 50 at once")
    add("--values", metavar="A,B,…", help="one job per value, which goes into {}")
    add("--values-from", metavar="FILE", help="the same, one value per line; - is standard input")
    add("--param", action="append", default=[], metavar="NAME=A,B,…", help="values for {NAME}; or NAME@FILE")
    add("--zip", action="store_true", help="pair the parameters; default: every combination")
    add("--name", default="", help="a name for the batch, for use as @NAME")


def _needs(parser: Parser) -> None:
    group = parser.add_argument_group("what each job needs")
    add = group.add_argument
    add("-c", "--cores", metavar="N", help="4, 0.5, or a range 2..8 (default 1)")
    add("--memory", "--mem", metavar="SIZE", help="500M, 4G")
    add("-t", "--time", metavar="TIME", help="the longest it may take: 90m, 1h30m, 2d, HH:MM:SS")
    add("--disk", metavar="SIZE", help="10G")
    add("--gpus", type=int, default=0, metavar="N", help="GPUs")
    add("--resource", action="append", default=[], metavar="NAME=N", help="a named resource")
    add("--tag", action="append", default=[], metavar="TAG", help="only where this tag is")
    add("--on", metavar="SITE", help="only at this site")
    add("--group", metavar="NAME", help="learn with jobs of this group (default: the program's name)")
    add(
        "--override",
        choices=("never", "higher", "always"),
        default="never",
        help="when your --memory, --time, --disk are used and not what was learned (default never)",
    )
    add(
        "--limit",
        action="append",
        default=[],
        metavar="NAME[:RULE]",
        help="obey a limit; with :10, :100/min or :22:00-06:00 set it as well (see rota limit --help)",
    )
    add("--enforce", choices=("none", "time", "memory", "both"), default="time", help="what ends a job that exceeds it")
    add("--grace", metavar="TIME", help="from TERM to KILL (default 10s)")
    add("--output-cap", metavar="SIZE", help="of each output stream, keep so much (default 16M)")


def _batch_system(parser: Parser) -> None:
    group = parser.add_argument_group("where there is a batch system")
    add = group.add_argument
    add("-A", "--account", metavar="NAME", help="account or project to charge")
    add("--partition", "--queue", metavar="NAME", help="partition or queue")
    add("--qos", metavar="NAME", help="quality of service")
    add("--reservation", metavar="NAME", help="use this reservation")
    add("--constraint", metavar="TEXT", help="features that a node must have")
    add("--exclusive", action="store_true", help="share the node with nobody")
    add("--nodes", type=int, default=1, metavar="N", help="so many nodes (mode direct only); --cores is per node")
    add("--tasks-per-node", type=int, default=1, metavar="N", help="what the batch system is told for srun and mpirun")
    add("--native", action="append", default=[], metavar="--KEY=VALUE", help="an option of the batch system itself")


def natives(texts: "Sequence[str]") -> "dict[str, str]":
    """--native words."""
    out = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not key.startswith("-"):
            raise UsageError(f"--native {text}: write it as the batch system does, as in --native=--licenses=matlab")
        out[key] = value
    return out


def _surroundings(parser: Parser) -> None:
    group = parser.add_argument_group("where and with what it runs")
    add = group.add_argument
    add("--cwd", metavar="DIR", help="working directory (default: this one)")
    add("--env", action="append", default=[], metavar="K=V", help="set a variable; K alone passes yours on")
    add("--env-from", choices=("submit", "site", "none"), default="submit", help="the environment to begin with")
    add("--module", action="append", default=[], metavar="NAME", help="load this environment module first")
    add("--setup", metavar="FILE", help="source this file first")
    add("--stdin", metavar="FILE", help="standard input (default: /dev/null)")
    add("-o", "--stdout", metavar="FILE", help="standard output to a file; {} and {index} may be used")
    add("-e", "--stderr", metavar="FILE", help="standard error to a file")
    add("--workdir", choices=("shared", "unique"), default="shared", help="unique: a fresh directory for each attempt")
    add("--cleanup", choices=("success", "failure", "always", "never"), help="when it is removed (default success)")
    add("--change-home", action="store_true", help="HOME is that directory")


def _when(parser: Parser) -> None:
    group = parser.add_argument_group("when it runs, and what if it fails")
    add = group.add_argument
    add("-p", "--priority", type=int, default=0, metavar="N", help="0 (default) to 255 (first)")
    add("--after", action=After, metavar="SEL", help="once these have COMPLETED: 7, 7.12, @name")
    add("--after-any", action=After, metavar="SEL", help="once these are settled in any way")
    add("--after-failure", action=After, metavar="SEL", help="once these have failed")
    add("--each", action=HowAfter, nargs=0, help="of the --after before it: job by job, each for its own number")
    add("--live", action=HowAfter, nargs=0, help="of the --after @NAME before it: also for new batches of that name")
    add(RERUN, action=HowAfter, nargs=0, help="… and what has completed runs again after them")
    add("--require-known", action="store_true", help="refuse an --after @NAME that nothing has yet (default: wait)")
    add("--not-before", metavar="WHEN", help="22:30, 2030-01-31T22:30 or +2h")
    add("--retries", type=int, default=0, metavar="N", help="try again so often (default 0)")
    add("--retry-on", metavar="LIST", default="", help="only on these exit codes and reasons: 75,time,oom")
    add("--never-retry-on", metavar="LIST", default="", help="never on these")
    add("--no-retry-after", metavar="TIME", help="not if it failed after so long")
    add("--max-failures", metavar="N|P%|off", help="hold the rest after so many failures (default: the first 50, all)")
    add("--on-batch-end", metavar="COMMAND", help="run this once, when all of the batch is settled")
    add("--rerunnable", action="store_true", help="may be started again when its runner is silent for long")
    add("--signal", metavar="NAME@TIME", help="warn it so long before its time is over: USR1@120")


def _after(parser: Parser) -> None:
    group = parser.add_argument_group("what comes after each job, where it ran")
    add = group.add_argument
    add("--on-success", action="append", default=[], metavar="COMMAND", help="run this if it succeeded (repeat)")
    add("--on-failure", action="append", default=[], metavar="COMMAND", help="run this if it failed")
    add("--on-exit", action="append", default=[], metavar="COMMAND", help="run this in any case, after those")
    add("--behaviour-time", metavar="TIME", help="the longest each of these may take (default 10m)")
    add("--remove-on", choices=("success", "failure", "exit"), help="forget the job once it has settled so")


class After(argparse.Action):
    """Collects what is waited for, in order: [target, condition, words of HowAfter …]."""

    def __call__(self, parser: "Any", namespace: "Any", values: "Any", option: "str | None" = None) -> None:
        """Take one."""
        given = getattr(namespace, "after", None)
        if given is None:
            given = namespace.after = []
        given.append([values, (option or "")[8:] or "success"])


class HowAfter(argparse.Action):
    """Says more about the dependency before it."""

    def __call__(self, parser: "Any", namespace: "Any", values: "Any", option: "str | None" = None) -> None:
        """Take one."""
        given = getattr(namespace, "after", None)
        if not given:
            why = f"{option} says more about the --after before it: write it behind one, as in --after 7 --each"
            raise argparse.ArgumentError(None, why)
        given[-1].append(option)


def after_of(args: argparse.Namespace) -> "list[Any]":
    """The dependencies."""
    from rota.model.batch import Dependency, check_after_count

    given = args.after or []
    check_after_count(len(given))
    return [
        Dependency(target, condition, "--each" in how, any(word.startswith("--live") for word in how), RERUN in how)
        for target, condition, *how in given
    ]


def submission_of(args: argparse.Namespace, at_once: "int | None" = None) -> "Submission":
    """Everything read and checked."""
    from rota.submission import LineFile, build

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
        values = args.values.split(",")
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


def options_of(args: argparse.Namespace, at_once: "int | None") -> "Options":
    """What was said of every job."""
    from rota.submission import Options

    return Options(
        name=args.name, cores=args.cores, memory=args.memory, time=args.time, disk=args.disk, gpus=args.gpus,
        resources=pairs("--resource", args.resource, number), tags=args.tag, on=args.on, limits=args.limit,
        enforce=args.enforce, grace=args.grace, output_cap=args.output_cap, cwd=args.cwd,
        env=environment(args.env), env_from=args.env_from, modules=args.module, setup=args.setup,
        stdin=args.stdin, stdout=args.stdout, stderr=args.stderr, priority=args.priority, after=after_of(args),
        require_known=args.require_known, on_batch_end=args.on_batch_end, not_before=args.not_before,
        retries=args.retries,
        retry_on=words(args.retry_on), never_retry_on=words(args.never_retry_on), no_retry_after=args.no_retry_after,
        max_failures=args.max_failures,
        account=args.account, partition=args.partition, qos=args.qos, reservation=args.reservation,
        constraint=args.constraint, exclusive=args.exclusive, nodes=args.nodes,
        tasks_per_node=args.tasks_per_node, native=natives(args.native),
        rerunnable=args.rerunnable, at_once=at_once, group=args.group, override=args.override,
        workdir=args.workdir, cleanup=args.cleanup,
        change_home=args.change_home, on_success=args.on_success, on_failure=args.on_failure, on_exit=args.on_exit,
        behaviour_time=args.behaviour_time, remove_on=args.remove_on, signal=args.signal,
    )  # fmt: skip


def words(text: str) -> "list[str]":
    """The words of a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]


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
    """--env words; a name alone takes its value from here."""
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
    """--param words: NAME=A,B or NAME@FILE, whichever sign comes first."""
    from rota.submission import LineFile

    out: dict[str, list[str]] = {}
    for text in texts:
        cut = min((at for at in (text.find("="), text.find("@")) if at > 0), default=0)
        if not cut:
            raise UsageError(f"--param {text}: write NAME=A,B,C or NAME@FILE")
        name, rest = text[:cut], text[cut + 1 :]
        if name in out:
            raise UsageError(f"--param {name} is given twice")
        out[name] = rest.split(",") if text[cut] == "=" else LineFile(rest, stdin).as_values(name).values()
    return out


def print_dry_run(args: argparse.Namespace, submission: "Submission") -> None:
    """What would be added."""
    from rota.cli.native import native_submissions, print_native
    from rota.cli.show import clean, jobs_word, print_json

    spec = submission.spec
    first = submission.preview(10)
    native = native_submissions(args.home, spec)
    if args.json:
        commands = [{"index": index, "command": command} for index, command in first]
        needs = [template.needs.words() for template in spec.templates[:10]]
        row = {"dry_run": True, "jobs": spec.count, "name": spec.name, "needs": needs, "first": commands}
        print_json(row | {"native": native})
        return
    template = spec.templates[0]
    print(f"{jobs_word(spec.count)} would be added; nothing was")
    print(f"  each needs {template.needs.words()}" + ("" if len(spec.templates) == 1 else " or as its line says"))
    print(f"  in {clean(template.cwd)}")
    for index, command in first:
        print(f"  {index}: {clean(command)}")
    if spec.count > len(first):
        print(f"  … and {spec.count - len(first):,} more")
    for each in native:
        print_native(each)


def say_about(args: argparse.Namespace, submission: "Submission", answer: "dict[str, Any]") -> None:
    """Warnings, and with -v what was not sent."""
    for warning in answer.get("warnings") or ():
        print(f"rota: warning: {warning}", file=sys.stderr)
    if args.verbose and submission.left_out:
        print(f"rota: not sent from your environment: {' '.join(submission.left_out)}", file=sys.stderr)

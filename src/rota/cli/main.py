"""The command `rota`: finds the command that was asked for and imports only that one's module."""

import os
import sys

from rota.cli.parser import Parser
from rota.model.errors import NotFoundError, RotaError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

COMMANDS = {
    "run": ("rota.cli.run", "run commands to the end, in the foreground"),
    "pilot": ("rota.cli.pilot", "run commands to the end inside an allocation, on its nodes"),
    "add": ("rota.cli.add", "queue commands; prints the batch id"),
    "up": ("rota.cli.control", "start the manager"),
    "down": ("rota.cli.control", "stop the manager"),
    "drain": ("rota.cli.control", "start no more jobs, let those that run end, then stop"),
    "pause": ("rota.cli.control", "start no more jobs"),
    "resume": ("rota.cli.control", "go on after pause or drain"),
    "ping": ("rota.cli.control", "is the manager there?"),
    "reload": ("rota.cli.control", "read config.toml again: sites are added, changed, removed"),
    "status": ("rota.cli.status", "counts per batch"),
    "jobs": ("rota.cli.jobs", "one line per job"),
    "wait": ("rota.cli.wait", "wait until jobs are settled"),
    "watch": ("rota.cli.watch", "the same as status, live"),
    "log": ("rota.cli.log", "what a job printed"),
    "explain": ("rota.cli.explain", "why a job is not running, or how it ended"),
    "failures": ("rota.cli.failures", "what failed, in groups, and what helps"),
    "show": ("rota.cli.specification", "everything of a job's specification"),
    "history": ("rota.cli.jobs", "every attempt of jobs"),
    "retry": ("rota.cli.change", "run settled jobs again"),
    "modify": ("rota.cli.change", "change jobs that do not run"),
    "kill": ("rota.cli.change", "end jobs"),
    "hold": ("rota.cli.change", "keep jobs from starting"),
    "release": ("rota.cli.change", "let held jobs go"),
    "remove": ("rota.cli.change", "forget jobs that do not run"),
    "report": ("rota.cli.report", "what was learned"),
    "data": ("rota.cli.data", "which files are where; transfers and caches"),
    "limit": ("rota.cli.limit", "list, set or remove named limits"),
    "backup": ("rota.cli.backup", "copy the queue while it is in use"),
    "restore": ("rota.cli.backup", "put a backup of the queue back"),
    "prune": ("rota.cli.backup", "forget batches that are settled"),
    "sites": ("rota.cli.places", "where jobs can run"),
    "runners": ("rota.cli.places", "the processes that run jobs"),
    "allocations": ("rota.cli.places", "what was asked of clusters"),
    "cloud": ("rota.cli.cloud", "the manager on a server in a cloud, used from here"),
    "rsh": ("rota.cli.rsh", "inside a job on several nodes: run a command on another of them"),
    "broker": ("rota.cli.broker", "which of many queues a task goes to, and why"),
    "plugins": ("rota.cli.plugins", "what policies can be made of"),
    "config": ("rota.cli.config", "every setting, its value, and where that comes from"),
    "doctor": ("rota.cli.doctor", "check this installation, end to end"),
    "token": ("rota.cli.token", "tokens by which others may use this manager"),
    "audit": ("rota.cli.token", "who did what, and what was refused"),
    "completion": ("rota.cli.completion", "completion for bash, zsh or fish"),
}
"""Command → (module, one line of help). A module has `configure(parser, command)` and `execute(args)`."""

ALIASES = {"submit": "add", "cancel": "kill"}
HIDDEN = {"__complete": "rota.cli.completion"}

GROUPS = (
    ("Run", ("run", "add", "pilot")),
    ("Look", ("status", "jobs", "wait", "watch", "log", "explain", "failures", "show", "history", "report")),
    ("Change", ("retry", "modify", "kill", "hold", "release", "remove", "limit", "data")),
    ("The manager", ("up", "down", "drain", "pause", "resume", "ping", "reload", "backup", "restore", "prune")),
    ("Places", ("sites", "runners", "allocations", "cloud", "broker", "rsh")),
    ("Set-up", ("config", "plugins", "token", "audit", "doctor", "completion")),
)

OK, FAILED, USAGE, NO_MANAGER, TIMEOUT, UNABLE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

SELECTORS = """\
A SELECTOR is a batch 7, a job 7.12, a range 7.1-99, a name @align or a state :failed.
Words of one kind add, words of different kinds intersect: `7 8 :failed` is what failed in 7 or 8.
"""


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command; the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    try:
        code = dispatch(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = quiet_pipe()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else USAGE
    except Exception as error:
        if os.environ.get("ROTA_DEBUG"):
            raise
        code = complain(error)
    return code


def dispatch(words: "list[str]") -> int:
    """Import the module of the command and run it."""
    words = home_last(words)
    if not words or words[0] in ("-h", "--help", "help"):
        if len(words) > 1 and words[0] == "help":
            return dispatch([words[1], "--help"])
        print(overview(), end="")
        return OK if words else USAGE
    if words[0] in ("-V", "--version", "version"):
        from rota import __version__

        print(f"rota {__version__}")
        return OK
    name = ALIASES.get(words[0], words[0])
    if name in HIDDEN:
        module = HIDDEN[name]
    elif name in COMMANDS:
        module = COMMANDS[name][0]
    else:
        raise UsageError(unknown(words[0]))
    import importlib

    face = importlib.import_module(module)
    if name in HIDDEN:
        return int(face.execute_hidden(words[1:]))
    parser = Parser(name, COMMANDS[name][1])
    face.configure(parser, name)
    return int(face.execute(parser.parse(words[1:])))


def home_last(words: "list[str]") -> "list[str]":
    """The words with a `--home DIR` that stands before the command behind it."""
    count = 1 if words and words[0].startswith("--home=") else 2 if words and words[0] == "--home" else 0
    if count and len(words) > count:
        return [words[count], *words[:count], *words[count + 1 :]]
    return words


def overview() -> str:
    """The text of `rota --help`."""
    lines = ["rota: run many commands, here or on clusters", "", "usage: rota COMMAND …    rota COMMAND --help", ""]
    for title, names in GROUPS:
        lines.append(f"{title}:")
        lines += [f"  {name:<12} {COMMANDS[name][1]}" for name in names]
        lines.append("")
    lines.append(SELECTORS)
    lines += [
        "Everything lives in $ROTA_HOME (default ~/.rota).",
        "Exit status: 0 well, 1 jobs failed, 2 wrong usage, 3 no manager, 4 time is up, 5 refused or not possible.",
        "",
    ]
    return "\n".join(lines)


def unknown(word: str) -> str:
    """What to say of a command that does not exist."""
    import difflib

    from rota.cli.foreign import COMMANDS as OF_OTHERS

    near = [OF_OTHERS[word]] if word in OF_OTHERS else difflib.get_close_matches(word, [*COMMANDS, *ALIASES], 1)
    return f"there is no command '{word}'" + (f": did you mean {near[0]}?" if near else "; see rota --help")


def complain(error: Exception) -> int:
    """Say in one or two lines what went wrong; the exit status for it."""
    code = getattr(error, "code", "")
    if isinstance(error, RotaError):
        from rota.cli.show import clean

        print(f"rota: {clean(error)}", file=sys.stderr)  # it may quote what was given, whatever that can do
        if code in ("no-manager", "lost"):
            return NO_MANAGER
        return USAGE if isinstance(error, UsageError | NotFoundError) else UNABLE
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        print(f"rota: {where}{error.strerror or error}", file=sys.stderr)
        return UNABLE
    print(f"rota: internal error: {type(error).__name__}: {error}", file=sys.stderr)
    print("rota: this is a bug, please report it; ROTA_DEBUG=1 shows where it happened", file=sys.stderr)
    return UNABLE


def prepare_streams() -> None:
    """Standard streams that exist, and that can print anything in any locale."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif stream.encoding.lower() not in ("utf-8", "utf8") and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def quiet_pipe() -> int:
    """Whoever read our output has gone away: end without a word, as other tools do."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    return 141

"""Words of other tools: what they mean here. What has no meaning here is refused, with our way to say it."""

import re

from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

__all__ = ["COMMANDS", "add_foreign_flags", "in_our_words", "misspelt_placeholders", "unlikely_placeholders"]

COMMANDS = {
    "list": "status",
    "ls": "status",
    "ps": "jobs",
    "queue": "status",
    "squeue": "status",
    "qstat": "status",
    "bjobs": "status",
    "top": "watch",
    "delete": "kill (ends jobs) or remove (forgets them)",
    "del": "kill (ends jobs) or remove (forgets them)",
    "rm": "remove",
    "scancel": "kill",
    "qdel": "kill",
    "bkill": "kill",
    "stop": "kill (jobs) or down (the manager)",
    "rerun": "retry",
    "restart": "retry (jobs), or down and up (the manager)",
    "sbatch": "add",
    "qsub": "add",
    "bsub": "add",
    "srun": "run",
    "parallel": "run",
    "manager": "up, down, status",
    "mod": "modify",
    "conf": "config",
    "settings": "config",
    "why": "explain",
    "output": "log",
    "cat": "log",
    "tail": "log JOB --tail 10",
    "info": "status, or show JOB",
    "describe": "show (what a job is) or explain (why it is where it is)",
    "start": "up",
}
"""Commands of other tools → ours."""
_PATTERNS = {"a": "{index}", "A": "{batch}", "j": "{job}", "%": "%"}
"""What stands behind % in the names of output files → ours."""
_WORD = re.compile(r"(?<![$\w{])\{([A-Za-z_]\w*)\}(?!\})")
_PARALLEL = re.compile(r"(?<![$\w])\{(?:[./#%]|//|/\.|[0-9]+)\}")


def add_foreign_flags(add: "argparse._ActionsContainer") -> None:
    """Take options as sbatch and others have them; the help does not list them."""
    import argparse

    hidden = argparse.SUPPRESS
    add.add_argument("-J", "--job-name", dest="name", default=hidden, help=hidden)
    add.add_argument("--cpus", "--cpus-per-task", dest="cores", default=hidden, help=hidden)
    add.add_argument("--mem-per-cpu", default=None, help=hidden)
    add.add_argument("-n", "--ntasks", default=None, help=hidden)
    add.add_argument("--wrap", default=None, help=hidden)
    add.add_argument("-N", dest="foreign_nodes", default=None, help=hidden)
    add.add_argument("--gres", dest="foreign_gres", default=None, help=hidden)
    add.add_argument("-d", "--dependency", dest="foreign_dependency", default=None, help=hidden)


def in_our_words(args: "argparse.Namespace") -> None:
    """Change arguments that were given in other tools' words to ours."""
    if args.ntasks is not None:
        raise UsageError(
            f"-n {args.ntasks}: write -c {args.ntasks} for cores of one job, --array 1-{args.ntasks} for so many jobs, "
            f"--nodes and --tasks-per-node for MPI on several nodes"
        )
    _refuse(args)
    if args.wrap is not None:
        if args.words or args.file is not None:
            raise UsageError("--wrap: give the command once, with --wrap='…' or after --")
        args.words = [args.wrap]
    if args.mem_per_cpu is not None:
        args.memory = _memory_of(args)
    if args.values is not None and "--" in args.words:  # --values a b c -- COMMAND
        at = args.words.index("--")
        args.values, args.words = ",".join([args.values, *args.words[:at]]), args.words[at + 1 :]
    _take_triple_colon(args)
    for name in ("stdout", "stderr", "stdin"):
        given = getattr(args, name)
        if given is not None and "%" in given:
            setattr(args, name, re.sub("%([aAj%])", lambda match: _PATTERNS[match[1]], given))


def _refuse(args: "argparse.Namespace") -> None:
    """Refuse what is said in other words here, with these."""
    if (nodes := args.foreign_nodes) is not None:
        ours = f"--nodes {nodes}" if nodes.isdigit() else f"--name {nodes}"
        raise UsageError(f"-N {nodes}: write {ours}")
    if (gres := args.foreign_gres) is not None:
        kind, _, count = gres.rpartition(":")
        ours = f"--gpus {count}" if kind.startswith("gpu") and count.isdigit() else f"--native --gres={gres}"
        ours = "--gpus 1" if gres == "gpu" else ours
        raise UsageError(f"--gres {gres}: write {ours}")
    if (given := args.foreign_dependency) is not None:
        kind, _, jobs = given.partition(":")
        ours = {"afterany": "--after-any", "afternotok": "--after-failure"}.get(kind, "--after")
        which = ",".join(jobs.split(":")) if jobs else "7"
        raise UsageError(f"--dependency {given}: write {ours} {which} (batches, jobs or names of rota)")


def _memory_of(args: "argparse.Namespace") -> str:
    """The memory of a job whose memory is given per core."""
    from rota.model.amounts import parse_cores, parse_size

    low, high = parse_cores(args.cores) if args.cores else (1000, 1000)
    if args.memory is not None:
        raise UsageError("--mem-per-cpu and --memory: give one of them")
    if low != high:
        raise UsageError(f"--mem-per-cpu with -c {args.cores}: give --memory, for all its cores together")
    return f"{parse_size(args.mem_per_cpu) * low // 1000}B"


def _take_triple_colon(args: "argparse.Namespace") -> None:
    """`COMMAND ::: a b c`, as GNU parallel has it: a job per word, put behind the command if it has no {}."""
    marks = [at for at, word in enumerate(args.words) if word in (":::", "::::", ":::+", "::::+")]
    if not marks:
        return
    mark, rest = args.words[marks[0]], args.words[marks[0] + 1 :]
    if len(marks) > 1 or mark.endswith("+"):
        raise UsageError("one ::: only; for several write --param x=a,b --param y=c,d (and --zip to pair them)")
    if args.values is not None or args.values_from is not None or args.param or args.array or args.file:
        raise UsageError(f"{mark} makes the jobs, and so does another option: give one of them")
    command = args.words[: marks[0]]
    if not rest or not command:
        raise UsageError(f"{mark}: write COMMAND {mark} {'a b c' if mark == ':::' else 'FILE'}")
    if mark == "::::":
        if len(rest) > 1:
            raise UsageError(":::: takes one file here; --values-from FILE is our form")
        args.values_from = rest[0]
    else:
        args.values = rest
    if not any("{}" in word for word in command):
        command = [f"{command[0]} {{}}"] if len(command) == 1 else [*command, "{}"]
    args.words = command


def unlikely_placeholders(text: str, replaced: bool) -> "Iterator[str]":
    """What looks like a placeholder in a command and is none; `replaced`: ours are (not in a file of lines)."""
    if not replaced:
        for name in ("{index}", "{batch}", "{job}", "{attempt}"):
            if re.search(r"(?<!\$)" + re.escape(name), text):
                yield f"{name} stays as it is in a file of commands: use $ROTA_{name[1:-1].upper()}"
    for match in _PARALLEL.finditer(text):
        yield f"{match[0]} stays as it is: our placeholders are {{}}, {{index}}, {{NAME}} of --param NAME=…"


def misspelt_placeholders(text: str, params: "Sequence[str]") -> "Iterator[str]":
    """Words in braces that are almost a placeholder."""
    from difflib import get_close_matches

    names = ["index", "batch", "job", "attempt", *params]
    for match in _WORD.finditer(text):
        meant = get_close_matches(match[1], names, 1, 0.7) if match[1] not in names else []
        if meant:
            yield f"{match[0]} stays as it is: did you mean {{{meant[0]}}}?"

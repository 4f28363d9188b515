"""The shell script that a batch system runs on a node: it finds a Python and becomes the runner.

For an allocation of several nodes it first starts itself on each of them, by what the batch system has for that. So
each node finds its own Python, and nothing has to be quoted twice: the words are a path, a number and a host name.
"""

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rota.model.errors import UsageError

__all__ = ["ELEMENT", "NODE", "NO_PYTHON", "SPREADS", "Spread", "build_script"]

ELEMENT = "\0element\0"
"""Inside a word: the element's number. No real word can have it."""
NODE = "\0node\0"
"""Inside a word: the short name of the node, if there are several."""
NO_PYTHON = 69
"""Exit status when the node has no Python that will do."""
NO_ELEMENT = 70
FEW_NODES = 72
NOT_OURS = 77
"""Exit status when what is to be started is not what it should be."""
CHECK = """\
import hashlib, os, sys
top, want = sys.argv[1:]
place = os.path.join(top, "rota", "runner")
digest = hashlib.sha256()
for name in sorted(os.listdir(place)):
    if name.endswith((".py", ".c")):
        content = open(os.path.join(place, name), "rb").read()
        digest.update(b"%s\\0%d\\0" % (name.encode(), len(content)) + content)
paths = [top] + [os.path.join(at, name) for at, names, files in os.walk(top) for name in names + files]
for path in paths:
    try:
        seen = os.lstat(path)
    except FileNotFoundError:  # what another start compiles has a passing name first
        continue
    if seen.st_uid != os.getuid() or seen.st_mode & 0o022 or seen.st_mode >> 12 not in (4, 8):
        sys.exit("rota: %s is a link, not ours, or can be written by others: not started" % path)
if digest.hexdigest() != want:
    sys.exit("rota: %s is not what the manager put there: not started" % place)
"""
"""What a node runs before it starts the runner: whose it is, and whether it is what it should be (`installing`)."""
PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
PYTHONS = ("python3", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10", "python3.9", "python3.8")
LSF_HOSTS = 'if [ -r "${LSB_DJOB_HOSTFILE:-}" ]; then cat "$LSB_DJOB_HOSTFILE"; else printf \'%s\\n\' $LSB_HOSTS; fi'
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIABLES = {ELEMENT: '"$ROTA_ELEMENT"', NODE: '"$rota_node"'}
ENDED_S = 30
"""How long a script stays after a signal that its launcher has passed on without waiting for the ends."""


class Spread(NamedTuple):
    """How a script gets to all nodes of its allocation."""

    by: str
    """A name in SPREADS."""
    path: str
    """Where the nodes find the script."""
    output: str
    """Where output is looked for; ELEMENT may be in it."""
    nodes: int
    hosts: tuple[str, ...] = ()
    """The hosts, where they are known before."""
    here: str = ""
    """Of these, the one where the script is begun; "": none."""
    once: str = ""
    """Where each node leaves a mark, so that it is started there only once, however often it is named."""


def build_script(
    words: Sequence[str],
    *,
    title: str = "rota",
    python: str | None = None,
    exports: Mapping[str, str] | None = None,
    setup: str = "",
    per_element: Sequence[Sequence[str]] = (),
    per_node: Mapping[str, Sequence[str] | None] | None = None,
    spread: Spread | None = None,
    digest: str | None = None,
) -> str:
    """Make a POSIX shell script that runs `PYTHON -I -S WORDS…`, with ELEMENT in them replaced on the node.

    `words` begin with the program's path. `per_element` has further words for each element, `per_node` for each node by
    its short name (None: it is left alone). `python` is a path to be tried before those that the node finds; `setup`
    lines of shell to be run first, as they are. With `spread` it does so on every node, with NODE in the words
    replaced, and ends when the last of them has ended, whatever became of the others. With `digest` the program is a
    copy of the runner, and is started only if it is that.
    """
    lines = ["#!/bin/sh", *(f"# {line}" for line in title.splitlines()), *setup.splitlines()]
    for name, value in (exports or {}).items():
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot be the name of a variable: letters, digits and _, no digit first")
        lines.append(f"{name}={_quoted(value)}; export {name}")
    if spread is not None:
        lines += _on_each_node(spread)
    lines += [
        'if [ -z "${ROTA_ELEMENT:-}" ]; then',
        "    echo 'rota: ROTA_ELEMENT is not set' >&2",
        f"    exit {NO_ELEMENT}",
        "fi",
        *_find_python(python),
        *_check(words[0], digest),
        f"set -- {' '.join(map(_quoted, words))}",
        *_cases(per_element),
        *_node_cases(per_node or {}),
        'exec "$rota_python" -I -S "$@"',
    ]
    return "\n".join(lines) + "\n"


def _find_python(python: str | None) -> list[str]:
    candidates = ([python] if python else []) + list(PYTHONS)
    named = " ".join(re.sub(r'[$`"\\]', "?", word) for word in candidates)
    test = "import sys; sys.exit(sys.version_info < (3, 8))"
    return [
        "rota_python=",
        f"for rota_try in {' '.join(map(shlex.quote, candidates))}; do",
        '    rota_try=$(command -v "$rota_try" 2>/dev/null) || continue',
        f"    if \"$rota_try\" -I -S -c '{test}' </dev/null >/dev/null 2>&1; then",
        "        rota_python=$rota_try",
        "        break",
        "    fi",
        "done",
        'if [ -z "$rota_python" ]; then',
        f'    echo "rota: $(uname -n) has no Python 3.8 or newer (looked for: {named}; PATH=$PATH)" >&2',
        "    echo 'rota: set `python` of this site to one that its nodes have' >&2",
        f"    exit {NO_PYTHON}",
        "fi",
    ]


def _check(program: str, digest: str | None) -> list[str]:
    if digest is None:
        return []
    top = os.path.dirname(os.path.dirname(os.path.dirname(program)))
    return [f'"$rota_python" -I -S -c {shlex.quote(CHECK)} {_quoted(top)} {digest} </dev/null || exit {NOT_OURS}']


def _cases(per_element: Sequence[Sequence[str]]) -> list[str]:
    if not per_element:
        return []
    lines = ["case $ROTA_ELEMENT in"]
    for number, words in enumerate(per_element):
        lines.append(f'{number}) set -- "$@" {" ".join(map(_quoted, words))};;')
    lines.append(f'*) echo "rota: there is no element $ROTA_ELEMENT" >&2; exit {NO_ELEMENT};;')
    return [*lines, "esac"]


def _node_cases(per_node: Mapping[str, Sequence[str] | None]) -> list[str]:
    if not per_node:
        return []
    lines = ["case $rota_node in"]
    for name, words in per_node.items():
        what = "exit 0" if words is None else f'set -- "$@" {" ".join(map(_quoted, words))}'
        lines.append(f"{_quoted(node_word(name))}) {what};;")
    return [*lines, f'*) echo "rota: nobody knows of a node $rota_node here" >&2; exit {FEW_NODES};;', "esac"]


def node_word(host: str) -> str:
    """A host as the script on it calls its node."""
    return re.sub(r"[^A-Za-z0-9-]", "-", host.partition(".")[0])


def _quoted(word: str) -> str:
    """A text as one word for the shell, whatever is in it."""
    parts = re.split(f"({ELEMENT}|{NODE})", word)
    if any("\0" in part and part not in VARIABLES for part in parts):
        raise UsageError(f"a word of a command cannot have a NUL character in it: {word!r}")
    return "".join(VARIABLES.get(part) or (shlex.quote(part) if part or len(parts) == 1 else "") for part in parts)


# ---- several nodes ---------------------------------------------------------------------------------------------------


def _on_each_node(spread: Spread) -> list[str]:
    """Lines that start the script on every node, with its element (and the node's name) as arguments, and wait."""
    if not PLAIN.fullmatch(spread.path):  # ssh and its like give their words to a shell once more
        raise UsageError(f"directory of '{spread.path}': for several nodes give one of letters, digits and _@%+=:,./-")
    return [
        "if [ $# -eq 0 ]; then",
        "    rota_pids= rota_signal= rota_ended=0 rota_code=0",
        "    rota_pass() {",
        "        rota_signal=$1",
        '        for rota_pid in $rota_pids; do kill -s "$1" "$rota_pid" 2>/dev/null; done',
        "    }",
        "    trap 'rota_pass TERM' TERM INT HUP URG",
        f'    set -- /bin/sh {spread.path} "${{ROTA_ELEMENT:?}}"',
        *(f"    {line}" for line in SPREADS[spread.by](spread)),
        "    for rota_pid in $rota_pids; do",  # a signal ends `wait` too: so each is waited for until it is gone
        '        while kill -0 "$rota_pid" 2>/dev/null; do wait "$rota_pid"; rota_ended=$?; done',
        '        [ "$rota_ended" -le "$rota_code" ] || rota_code=$rota_ended',
        "    done",
        '    exit "$rota_code"',
        "fi",
        "ROTA_ELEMENT=$1",
        "export ROTA_ELEMENT",
        "rota_node=${2:-${SLURMD_NODENAME:-$(uname -n)}}",
        "rota_node=$(printf %s \"${rota_node%%.*}\" | tr -c 'A-Za-z0-9-' -)",
        *([f'mkdir {_quoted(spread.once)}-"$rota_node" 2>/dev/null || exit 0'] if spread.once else []),
    ]


def _srun(spread: Spread) -> list[str]:
    """One step with a task on each node.

    It has all that the job has there: no `--cpus-per-task`, which would make it `--exact`, and no binding, which would
    leave it one core. Neither the end of a task nor the loss of a node ends the others. A warning goes to the tasks.
    """
    return [
        "unset SLURM_CPUS_PER_TASK SRUN_CPUS_PER_TASK SLURM_CPU_BIND SLURM_NTASKS_PER_NODE",
        "unset SLURM_MEM_PER_CPU SLURM_MEM_PER_NODE SLURM_MEM_PER_GPU SLURM_EXACT SLURM_EXCLUSIVE",
        "rota_overlap=",
        "if srun --help 2>/dev/null | grep -q -e --overlap; then rota_overlap=--overlap; fi",
        "trap 'rota_pass USR1' USR1",
        f"srun --nodes={spread.nodes} --ntasks={spread.nodes} --ntasks-per-node=1 $rota_overlap \\",
        '    --mem=0 --cpu-bind=none --no-kill --kill-on-bad-exit=0 --wait=0 --input=none "$@" &',
        'rota_pids="$rota_pids $!"',
    ]


def _pbsdsh(spread: Spread, options: str) -> list[str]:
    """One task for each line of the node file, or (`-u`) for each host in it.

    It passes on no environment, and output only to the batch system's own file. A signal it passes on, and ends at
    once: the end of the script would end the tasks, which have still to do.
    """
    return [
        *_hosts(spread.nodes, 'cat "$PBS_NODEFILE"'),
        "trap : USR1",
        f'pbsdsh {options} /bin/sh -c \'exec "$@" >>"$0" 2>&1\' {_quoted(spread.output)} "$@" &',
        "rota_pids=$!",
        'wait "$!"',
        "rota_ended=$?",
        f'[ -z "$rota_signal" ] || sleep {ENDED_S}',
    ]


def _one_by_one(spread: Spread, hosts: str, command: str) -> list[str]:
    """A launcher process for each host; the first is this one, unless it was said which is."""
    elsewhere = '[ -n "$rota_pids" ]'
    if spread.hosts:
        hosts, elsewhere = f"printf '%s\\n' {' '.join(spread.hosts)}", f'[ "$rota_host" != "{spread.here}" ]'
    return [
        *_hosts(spread.nodes, hosts),
        "trap : USR1",
        "for rota_host in $rota_hosts; do",
        f'    if {elsewhere}; then {command} "$@" "$rota_host" & else "$@" "$rota_host" & fi',
        '    rota_pids="$rota_pids $!"',
        "done",
    ]


def _hosts(nodes: int, hosts: str) -> list[str]:
    """Lines that set `rota_hosts`, each once, and end it all where there are not as many as were asked for.

    Some systems put several of the parts that were asked for on one host, as the site's settings are.
    """
    words = f"rota: {nodes} nodes were asked for, and these given: $rota_hosts; the site packs several on one"
    return [
        f"rota_hosts=$({hosts} | awk 'NF && !seen[$1]++ {{ printf \"%s \", $1 }}')",
        f'[ "$(echo $rota_hosts | wc -w)" -eq {nodes} ] || {{ echo "{words}" >&2; exit {FEW_NODES}; }}',
    ]


SPREADS: Mapping[str, Callable[[Spread], list[str]]] = {
    "srun": _srun,
    "pbsdsh": lambda spread: _pbsdsh(spread, "--"),
    "pbsdsh-u": lambda spread: _pbsdsh(spread, "-u"),
    "blaunch": lambda spread: _one_by_one(spread, LSF_HOSTS, 'blaunch "$rota_host"'),
    "qrsh": lambda spread: _one_by_one(spread, 'cat "$PE_HOSTFILE"', 'qrsh -inherit -nostdin "$rota_host"'),
    "ssh": lambda spread: _one_by_one(spread, LSF_HOSTS, 'ssh -o BatchMode=yes "$rota_host"'),
}
"""How a script gets to its nodes, by the name that a dialect gives: shell lines that start `"$@"` there."""

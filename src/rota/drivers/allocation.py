"""The allocation that we are in, by what its batch system says in the environment. Pure: text in, a value out."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from rota.drivers import pbs_records, slurm_answers
from rota.drivers.script import node_word
from rota.model.errors import UsageError

__all__ = [
    "FILES", "HERE", "Given", "Node", "asks_for_end", "choose", "expand_hosts", "parse_nodes", "read_allocation",
    "read_end", "read_granted", "reserve_core", "seen_from", "short",
]  # fmt: skip

HERE = "here"
FILES = ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE")
"""Variables that name a file with the hosts."""
NODES_MOST = 100_000
CORES_MOST = 1_000_000
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
"""What may be the name of a host: it goes into scripts."""
SHOWN = 80


class Node(Struct, frozen=True):
    """A node, or the part of one that was granted."""

    name: str
    cores: int
    """Whole cores; 0: it is left alone."""
    gpus: int = 0
    memory: int | None = None
    """Bytes; None: what it has."""


class Given(Struct, frozen=True):
    """An allocation that is there: what was granted, by whom, until when."""

    system: str
    """The batch system (a dialect's name), or `hosts`: given by hand."""
    nodes: tuple[Node, ...]
    job: str | None = None
    """The batch system's number of it."""
    until: float | None = None
    """When it ends, by the clock of the wall; None: nobody said."""
    spread: str = "ssh"
    """How its nodes are reached: a name in `SPREADS` of `rota.drivers.script`, or HERE: it is this host alone."""

    @property
    def used(self) -> tuple[Node, ...]:
        """The nodes that are not left alone."""
        return tuple(node for node in self.nodes if node.cores)


def read_allocation(
    environ: Mapping[str, str], files: Mapping[str, str], host: str, began: float | None = None
) -> Given | None:
    """The allocation that an environment tells of; None: none.

    `files` has the texts of those of FILES that are set; `host` is the name of this host, `began` when its session
    began. Raises UsageError, with variable and text, for what cannot be read.
    """
    if environ.get("SLURM_JOB_ID") and (environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")):
        return _slurm(environ)
    if environ.get("LSB_JOBID") and any(environ.get(name) for name in ("LSB_MCPU_HOSTS", "LSB_DJOB_HOSTFILE")):
        return _lsf(environ, files)
    if environ.get("PBS_JOBID") and environ.get("PBS_NODEFILE"):
        return _pbs(environ, files, began)
    if environ.get("JOB_ID") and (environ.get("PE_HOSTFILE") or environ.get("SGE_TASK_ID")):
        return _sge(environ, files, host)
    return None


# ---- its end ---------------------------------------------------------------------------------------------------------


def asks_for_end(given: Given) -> tuple[str, ...] | None:
    """The command that says when an allocation ends, where the environment does not; None: there is none."""
    if given.job is None or given.until is not None:
        return None
    commands = {
        "slurm": ("squeue", "--noheader", f"--jobs={given.job}", "--format=%L"),
        "lsf": ("bjobs", "-noheader", "-o", "time_left", given.job),
        "openlava": ("bjobs", "-noheader", "-WL", given.job),
        "sge": ("qstat", "-j", given.job.partition(".")[0]),
    }
    return commands.get(given.system, ("qstat", "-f", given.job))


def read_end(given: Given, answer: str, now: float, began: float | None) -> float | None:
    """When an allocation ends, by the answer to `asks_for_end`; None: it does not say.

    `began`: when its script did. What it was granted counts from there.
    """
    text = answer.strip()
    if given.system == "slurm":
        left = slurm_answers.seconds(text)
        return None if left is None else now + left
    if given.system in ("lsf", "openlava"):  # hours and minutes; L: that is when it is ended
        found = re.search(r"(?:^|\s)([0-9]{1,6}):([0-9]{1,2}) L *(?:\n|$)", text, re.ASCII)
        return None if found is None else now + int(found[1]) * 3600 + int(found[2]) * 60
    if given.system == "sge":
        found = re.search(r"^hard resource_list:.*\bh_rt=([0-9]{1,9})\b", text, re.ASCII | re.MULTILINE)
        granted = None if found is None else int(found[1])
    else:
        found = re.search(r"^\s*Resource_List\.walltime = (\S+)$", text, re.MULTILINE)
        granted = None if found is None else pbs_records.seconds(found[1])
    return None if granted is None or began is None else began + granted


def read_granted(given: Given, answer: str) -> Given:
    """An allocation with what OpenPBS says of each chunk, by the answer to `asks_for_end`.

    Several chunks may be on one host, of different sizes: the environment has the size of the first only. Memory is
    known of hosts where all chunks asked for some. What does not fit to the hosts that we know is not believed.
    """
    if given.system != "pbs":
        return given
    record = re.sub(r"\n\t", "", answer)  # a long value goes on there
    lines = [re.search(rf"^\s*{name} = (\S+)$", record, re.MULTILINE) for name in ("exec_host", "exec_vnode")]
    hosts = [_CHUNK.fullmatch(part) for part in lines[0][1].split("+")] if lines[0] else []
    parts = re.findall(r"\(([^()]*)\)", lines[1][1]) if lines[1] else []
    names = [short(found[1]) for found in hosts if found is not None]
    if not names or len(names) != len(hosts) or set(names) != {short(node.name) for node in given.nodes}:
        return given
    cores: Counter[str] = Counter()
    for name, found in zip(names, hosts, strict=True):
        cores[name] += int(found[2] or "1") if found is not None else 0
    if not all(0 < count <= CORES_MOST for count in cores.values()):
        return given
    asked = _asked_of(names, parts) if len(parts) == len(names) else {}
    return replace(
        given,
        nodes=tuple(
            Node(node.name, cores[short(node.name)], *asked.get(short(node.name), (node.gpus, node.memory)))
            for node in given.nodes
        ),
    )


_CHUNK = re.compile(r"([^/+*\s]+)/[0-9]+(?:\*([0-9]{1,7}))?", re.ASCII)
"""A chunk's host, its number there, and its cores, if not one."""


def _asked_of(names: Sequence[str], parts: Sequence[str]) -> dict[str, tuple[int, int | None]]:
    """Host → (gpus, bytes of memory) of all its chunks, each of which is `vnode:ncpus=2:mem=5kb+vnode:…`."""
    out: dict[str, tuple[int, int | None]] = {}
    for name, part in zip(names, parts, strict=True):
        gpus = sum(map(int, re.findall(r":ngpus=([0-9]{1,6})\b", part, re.ASCII)))
        sizes = [pbs_records.size(text) for text in re.findall(r":mem=([^:+]+)", part)]
        memory = sum(size or 0 for size in sizes) or None
        before, known = out.get(name, (0, 0))
        out[name] = (before + gpus, None if memory is None or known is None else known + memory)
    return out


# ---- what was given by hand ------------------------------------------------------------------------------------------


def parse_nodes(text: str) -> tuple[Node, ...]:
    """The nodes of `host1:8,host2:8`."""
    nodes = []
    for part in text.split(","):
        name, colon, cores = part.strip().rpartition(":")
        if not colon or not HOST.fullmatch(name):
            raise UsageError(f"--nodes '{_cut(text)}': '{_cut(part)}' is not HOST:CORES, as in node1:8,node2:8")
        nodes.append(Node(name, _number("--nodes", text, cores, 1)))
    _check_names("--nodes", text, [node.name for node in nodes])
    return tuple(nodes)


def choose(given: Given, wanted: Sequence[Node]) -> Given:
    """An allocation of which only these nodes, with so many cores each, are used."""
    there = {short(node.name): node for node in given.nodes}
    asked = {short(node.name): node.cores for node in wanted}
    for node in wanted:
        has = there.get(short(node.name))
        if has is None:
            names = " ".join(each.name for each in given.nodes[:20])
            raise UsageError(f"--nodes {node.name}: this allocation has no such node, only {names}")
        if node.cores > has.cores:
            raise UsageError(f"--nodes {node.name}:{node.cores}: {has.cores} cores of it were granted")
    return replace(given, nodes=tuple(replace(node, cores=asked.get(short(node.name), 0)) for node in given.nodes))


def reserve_core(given: Given, host: str) -> Given:
    """An allocation with one core less, for ourselves: of this host's node, or of the first if we are elsewhere."""
    own = next((node for node in given.used if short(node.name) == short(host)), given.used[0])
    if sum(node.cores for node in given.used) == 1:
        raise UsageError(f"--reserve-core: {own.name} has one core in this allocation, and no job could run")
    return replace(
        given, nodes=tuple(replace(node, cores=node.cores - 1) if node is own else node for node in given.nodes)
    )


def seen_from(given: Given, host: str) -> Given:
    """The allocation as it is reached from a host: of which it may be all that is used."""
    return replace(given, spread=HERE) if [short(node.name) for node in given.used] == [short(host)] else given


def short(host: str) -> str:
    """The name of a host without its domain."""
    return host.partition(".")[0]


# ---- batch systems ---------------------------------------------------------------------------------------------------


def _slurm(environ: Mapping[str, str]) -> Given:
    variable = "SLURM_JOB_NODELIST" if environ.get("SLURM_JOB_NODELIST") else "SLURM_NODELIST"
    names = expand_hosts(variable, environ[variable])
    counted = "SLURM_JOB_CPUS_PER_NODE" if environ.get("SLURM_JOB_CPUS_PER_NODE") else "SLURM_TASKS_PER_NODE"
    cores = _counts(counted, environ.get(counted, ""), len(names))
    per_node, per_cpu = (_megabytes(environ, name) for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"))
    gpus = _gpus(environ)
    nodes = tuple(
        Node(name, count, gpus, per_node if per_node is not None else None if per_cpu is None else per_cpu * count)
        for name, count in zip(names, cores, strict=True)
    )
    end = environ.get("SLURM_JOB_END_TIME", "")
    until = float(_number("SLURM_JOB_END_TIME", end, end, 1, 1 << 40)) if end else None
    array = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array[0]}_{array[1]}" if all(array) else environ["SLURM_JOB_ID"]
    return Given("slurm", nodes, job, until, "srun")


def _gpus(environ: Mapping[str, str]) -> int:
    """Gpus of each node: SLURM_GPUS_PER_NODE, such as `2` or `a100:2,v100:1`; else as many as this node has."""
    variable = "SLURM_GPUS_PER_NODE" if environ.get("SLURM_GPUS_PER_NODE") else "SLURM_GPUS_ON_NODE"
    text = environ.get(variable, "")
    if not text:
        return 0
    return sum(_number(variable, text, part.rpartition(":")[2], 0) for part in text.split(","))


def _megabytes(environ: Mapping[str, str], variable: str) -> int | None:
    text = environ.get(variable, "")
    return (_number(variable, text, text, 0, 1 << 40) << 20 or None) if text else None


def _lsf(environ: Mapping[str, str], files: Mapping[str, str]) -> Given:
    counts: Counter[str] = Counter()
    if text := environ.get("LSB_MCPU_HOSTS", ""):
        words = text.split()
        if not words or len(words) % 2:
            raise _wrong("LSB_MCPU_HOSTS", text, "give hosts and counts in pairs, as in: node1 4 node2 4")
        for name, count in zip(words[::2], words[1::2], strict=True):
            counts[name] += _number("LSB_MCPU_HOSTS", text, count, 1)
        _check_names("LSB_MCPU_HOSTS", text, list(counts))
    else:
        counts.update(_hosts_in("LSB_DJOB_HOSTFILE", environ, files))
    index = environ.get("LSB_JOBINDEX", "0")
    job = environ["LSB_JOBID"] + (f"[{index}]" if index not in ("", "0") else "")
    is_lsf = any(environ.get(name) for name in ("LSB_DJOB_HOSTFILE", "LSF_VERSION"))  # OpenLava has neither
    system, spread = ("lsf", "blaunch") if is_lsf else ("openlava", "ssh")
    return Given(system, tuple(Node(name, count) for name, count in counts.items()), job, None, spread)


def _pbs(environ: Mapping[str, str], files: Mapping[str, str], began: float | None) -> Given:
    """TORQUE has a line for each core. OpenPBS has one for each rank, and says the cores of a chunk in NCPUS."""
    lines = Counter(_hosts_in("PBS_NODEFILE", environ, files))
    torque = bool(environ.get("PBS_NUM_PPN") or environ.get("PBS_NP"))
    least, until = 1, None
    if not torque and (text := environ.get("NCPUS", "")):
        least = _number("NCPUS", text, text, 1)
    if began is not None and (text := environ.get("PBS_WALLTIME", "")):
        until = began + _number("PBS_WALLTIME", text, text, 1, 1 << 40)
    nodes = tuple(Node(name, max(count, least)) for name, count in lines.items())
    system, spread = ("torque", "pbsdsh-u") if torque else ("pbs", "pbsdsh")
    return Given(system, nodes, environ["PBS_JOBID"], until, spread)


def _sge(environ: Mapping[str, str], files: Mapping[str, str], host: str) -> Given:
    counts: Counter[str] = Counter()
    if environ.get("PE_HOSTFILE"):
        path, text = environ["PE_HOSTFILE"], files.get("PE_HOSTFILE", "")
        for line in filter(str.strip, text.splitlines()):
            words = line.split()
            if len(words) < 2:
                raise _wrong(f"PE_HOSTFILE {path}", line, "a line has a host and a number of slots")
            counts[words[0]] += _number(f"PE_HOSTFILE {path}", line, words[1], 1)
        _check_names(f"PE_HOSTFILE {path}", text, list(counts))
    else:
        slots = environ.get("NSLOTS", "1")
        counts[host] = _number("NSLOTS", slots, slots, 1)
    task = environ.get("SGE_TASK_ID", "undefined")
    job = environ["JOB_ID"] + (f".{task}" if task not in ("", "undefined") else "")
    return Given("sge", tuple(Node(name, count) for name, count in counts.items()), job, None, "qrsh")


# ---- texts -----------------------------------------------------------------------------------------------------------


def expand_hosts(variable: str, text: str) -> list[str]:
    """The hosts of `n[1-3,07],m7`, as Slurm writes them."""
    names: list[str] = []
    for part in _parts(variable, text):
        pieces = re.split(r"\[([^][]*)\]", part)
        if any(char in piece for piece in pieces for char in "[]"):
            raise _wrong(variable, text, "brackets do not match")
        choices = [list(_ranges(variable, text, piece)) if at % 2 else [piece] for at, piece in enumerate(pieces)]
        if len(names) + prod(map(len, choices)) > NODES_MOST:
            raise _wrong(variable, text, f"more than {NODES_MOST} hosts")
        names += ["".join(words) for words in product(*choices)]
    _check_names(variable, text, names)
    return names


def _parts(variable: str, text: str) -> Iterator[str]:
    """The words between commas that are in no brackets."""
    depth, word = 0, ""
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            yield word
            word = ""
        else:
            word += char
    if depth:
        raise _wrong(variable, text, "brackets do not match")
    yield word


def _ranges(variable: str, text: str, inner: str) -> Iterator[str]:
    """The numbers of `1-3,07`, with their zeros in front."""
    count = 0
    for part in inner.split(","):
        low, dash, high = part.partition("-")
        first = _number(variable, text, low, 0, 1 << 40)
        last = _number(variable, text, high, 0, 1 << 40) if dash else first
        count += last - first + 1
        if last < first:
            raise _wrong(variable, text, f"'{_cut(part)}' ends before it begins")
        if count > NODES_MOST:
            raise _wrong(variable, text, f"more than {NODES_MOST} hosts")
        for number in range(first, last + 1):
            yield str(number).zfill(len(low))


def _counts(variable: str, text: str, nodes: int) -> list[int]:
    """The numbers of `2(x3),4`, one for each of so many nodes."""
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part.strip(), re.ASCII)
        if found is None:
            raise _wrong(variable, text, f"'{_cut(part)}' is no count such as 4 or 2(x3)")
        times = _number(variable, text, found[2] or "1", 1, NODES_MOST)
        if len(counts) + times > nodes:
            raise _wrong(variable, text, f"it counts more than the {nodes} nodes that there are")
        counts += [_number(variable, text, found[1], 1)] * times
    if len(counts) != nodes:
        raise _wrong(variable, text, f"it counts {len(counts)} of {nodes} nodes")
    return counts


def _hosts_in(variable: str, environ: Mapping[str, str], files: Mapping[str, str]) -> list[str]:
    """The hosts of a file that has one in each line."""
    path, text = environ[variable], files.get(variable, "")
    names = [line.split()[0] for line in text.splitlines() if line.strip()]
    _check_names(f"{variable} {path}", text, list(dict.fromkeys(names)))
    return names


def _check_names(variable: str, text: str, names: list[str]) -> None:
    """Each must be the name of a host, and there once, also without its domain: so its runner is called."""
    if not names:
        raise _wrong(variable, text, "it names no host")
    for name in names:
        if not HOST.fullmatch(name):
            raise _wrong(variable, text, f"'{_cut(name)}' is not the name of a host")
    twice = [name for name, count in Counter(map(node_word, names)).items() if count > 1]
    if twice:
        raise _wrong(variable, text, f"{_cut(twice[0])} is named twice")


def _number(variable: str, text: str, word: str, least: int, most: int = CORES_MOST) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 20 and least <= int(word) <= most):
        raise _wrong(variable, text, f"'{_cut(word)}' is not a whole number from {least} to {most}")
    return int(word)


def _wrong(variable: str, text: str, why: str) -> UsageError:
    return UsageError(f"{variable} '{_cut(text)}': {why}")


def _cut(text: str) -> str:
    """A text for a message: not too long, and nothing in it that a terminal obeys."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"

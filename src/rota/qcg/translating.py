"""From QCG's descriptions to one batch: each iteration is a job, and jobs keep their names.

What differs between iterations is in their values; what they need is in templates, one for each different set.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rota.model.batch import BatchSpec, Template, check_value
from rota.model.errors import UsageError
from rota.model.iterations import maximum_iters, split_into
from rota.qcg.requests import Description, Size, WrongRequestError, substitute
from rota.submission.build import Submission
from rota.submission.options import JobOptions, completed, make_template
from rota.submission.sources import Chunk, Ranges, pieces, size_of
from rota.submission.weaving import Weaver

__all__ = ["Room", "Translated", "make_submission", "too_large", "translate"]

LATE = ("ncores", "nnodes", "nlist")
"""Variables that are known when a job starts, and what tells them then."""
TOLD = {"ncores": "$QCG_PM_NPROCS", "nnodes": "$QCG_PM_NNODES", "nlist": "$QCG_PM_NODELIST"}


class Room(NamedTuple):
    """What the allocation has."""

    nodes: tuple[int, ...]
    """Cores of each node."""
    root: str
    """Directory to which a job's own is relative."""
    policy: str = "default"
    too_large: str = "refuse"
    """What becomes of a job that asks for more than there is: `refuse` the whole request, or let it `fail`."""

    @property
    def cores(self) -> int:
        """Cores of all nodes."""
        return sum(self.nodes)


class Line(NamedTuple):
    """One job of rota: one iteration, or a description without any."""

    id: str
    name: str
    after: tuple[str, ...] | None
    after_any: None = None
    after_failure: None = None
    live: None = None


class Translated(NamedTuple):
    """The jobs of one request."""

    templates: tuple[Template, ...]
    which: list[int]
    """The template of each job."""
    values: list[dict[str, Any]]
    lines: list[Line]
    directories: set[str]
    """Working directories: they are made if they are not there."""


Target = Callable[[str], "str | None"]
"""The selector of a job or iteration that was submitted before; None: it is of this request."""


def translate(jobs: Sequence[Description], room: Room, target: Target) -> Translated:
    """All jobs of one request. `target` finds what is waited for."""
    numbers: dict[str, int] = {}
    made: list[Template] = []
    out = Translated((), [], [], [], set())
    for job in jobs:
        check_room(job, room)
        shares = _shares(job, room)
        own: dict[int | None, int] = {}
        """What an iteration gets → the number of its template."""
        for at in range(job.size):
            share = None if shares is None else shares[at]
            if share not in own:
                options = _options(job, room, share)
                number = own[share] = numbers.setdefault(repr(options), len(made))
                if number == len(made):
                    made.append(_template(job, options, room))
            out.which.append(own[share])
            value = _value(job, at, room, share)
            try:
                check_value(value, (), True)
            except UsageError as error:
                raise WrongRequestError(f"{job.path}.execution", str(error)) from None
            out.values.append(value)
            out.lines.append(_line(job, at, target))
            out.directories.add(value.get("cwd", room.root))
    return out._replace(templates=tuple(made))


def make_submission(name: str, jobs: Translated) -> Submission:
    """The one batch of a request."""
    source = Translation(jobs)
    spec = BatchSpec(len(jobs.values), jobs.templates, name, max_failures=0)
    spec.check()
    return Submission(spec, source, completed({}))


class Translation:
    """The jobs of one request, as a source of a batch."""

    columns: tuple[str, ...] = ()
    ranges: Ranges | None = None
    longest = 0
    limits: Mapping[str, int | str] = {}

    def __init__(self, jobs: Translated) -> None:
        self._jobs = jobs
        self.count = len(jobs.values)
        self.templates = jobs.templates
        self.weaver: Weaver | None = Weaver()
        for pos, line in enumerate(jobs.lines):
            self.weaver.add(pos, pos + 1, line)
        self.weaver.weave(self.count)

    def chunks(self) -> Iterator[Chunk]:
        """The values in order, in pieces that fit into a request."""
        rows = ((value, size_of(value)) for value in self._jobs.values)
        return pieces(rows, self._jobs.which if len(self.templates) > 1 else None)


# ---- what a job needs ------------------------------------------------------------------------------------------------


def check_room(job: Description, room: Room) -> None:
    """Refuse what asks for more than the allocation has, with the numbers."""
    nodes, cores = job.nodes, job.cores
    has = f"the allocation has {len(room.nodes)} node{'' if len(room.nodes) == 1 else 's'} and {room.cores} cores"
    where = f"{job.path}.resources"
    if nodes is not None:
        least = max(1, cores.least) if cores is not None else 1
        large = sum(1 for node in room.nodes if node >= least)
        if max(1, nodes.least) > large:
            each = f" of {least} cores" if cores is not None else ""
            asked = f"{nodes.least} nodes{each} are asked for"
            raise WrongRequestError(where, f"Not enough resources for job {job.name}: {asked}, and {has}")
    elif cores is not None and cores.least > room.cores:
        asked = f"{cores.least} cores are asked for"
        raise WrongRequestError(where, f"Not enough resources for job {job.name}: {asked}, and {has}")


def too_large(jobs: Sequence[Description], room: Room) -> dict[str, str]:
    """The jobs that are to fail because they ask for more than the allocation has, by name, and why."""
    out: dict[str, str] = {}
    for job in jobs if room.too_large == "fail" else ():
        try:
            check_room(job, room)
        except WrongRequestError as error:
            out[job.name] = error.rule
    return out


def _shares(job: Description, room: Room) -> list[int] | None:
    """What each iteration gets of the cores, or of the nodes, if a scheduler says so."""
    size = next((size for size in (job.cores, job.nodes) if size is not None and size.scheduler), None)
    if size is None:
        return None
    total = room.cores if size is job.cores and job.nodes is None else len(room.nodes)
    if size is job.cores and job.nodes is not None:
        total = min(room.nodes)
    try:
        if size.scheduler == "split-into":
            return split_into(job.size, total, size.parts or job.size)
        return maximum_iters(job.size, total, size.least)
    except UsageError as error:
        raise WrongRequestError(f"{job.path}.resources", str(error)) from None


def _options(job: Description, room: Room, share: int | None) -> dict[str, Any]:
    """The options of rota for one iteration; what is not named has its default."""
    cores, nodes = job.cores, job.nodes
    if share is not None:
        if cores is not None and cores.scheduler:
            cores = Size(share, share)
        else:
            nodes = Size(share, share)
    options: dict[str, Any] = {"policy": room.policy, "group": ""}
    if nodes is None:
        assert cores is not None
        if cores != Size(1, 1):
            options |= {"cores": _range(cores), "span": "pack"}
    else:
        options |= {
            "nodes": nodes.least if nodes.exact else _range(nodes),
            "cores": "all" if cores is None else _range(cores),
        }
    if job.gpus:
        options["gpus"] = job.gpus
    if job.memory_mb is not None:
        options["memory"] = job.memory_mb << 20
    if job.time_s is not None:
        options["time"] = job.time_s
    if job.model != "default":
        options["model"] = job.model
        words = job.model_options.get("mpirun_args", ()) + job.model_options.get("srun_args", ())
        options |= {"mpirun_args": words} if words else {}
        if "mpirun" in job.model_options:
            options["mpirun"] = job.model_options["mpirun"]
    if job.modules:
        options["modules"] = job.modules
    if job.venv is not None:
        options["setup"] = os.path.join(room.root, job.venv, "bin", "activate")
    return options


def _range(size: Size) -> str:
    """A size in rota's words: `4`, `2..8`, `2..`."""
    if size.exact:
        return str(max(1, size.least))
    return f"{max(1, size.least)}..{'' if size.most is None else size.most}"


def _template(job: Description, options: dict[str, Any], room: Room) -> Template:
    given: JobOptions = completed({**options, "cwd": room.root})  # type: ignore[typeddict-item]
    try:
        return make_template(None, given)
    except UsageError as error:
        raise WrongRequestError(job.path, str(error)) from None


# ---- what a job runs -------------------------------------------------------------------------------------------------


def _value(job: Description, at: int, room: Room, share: int | None) -> dict[str, Any]:
    """The command, directory, variables and files of one iteration."""
    known = _known(job, at, room, share)

    def text(given: str, what: str) -> str:
        out = substitute(given, known)
        if late := next((name for name in LATE if f"${{{name}}}" in out), None):
            rule = f"${{{late}}} is known only when the job starts: use it in args or script"
            raise WrongRequestError(f"{job.path}.execution.{what}", rule)
        return out

    value: dict[str, Any] = {"command": _command(job, known)}
    wd = room.root if job.wd is None else os.path.join(room.root, os.path.expanduser(text(job.wd, "wd")))
    if wd != room.root:
        value["cwd"] = wd
    if job.env:
        value["env"] = {key: text(word, "env") for key, word in job.env.items()}
    for what in ("stdin", "stdout", "stderr"):
        if (path := getattr(job, what)) is not None:
            value[what] = os.path.join(wd, text(path, what))
    return value


def _known(job: Description, at: int, room: Room, share: int | None) -> dict[str, str]:
    """The variables that are known of an iteration before it starts."""
    known = {"root_wd": room.root}
    if job.iteration is not None:
        known |= {"it": str(job.iteration.start + at), "itval": job.iteration.value(at)}
    if job.nodes is None and job.cores is not None:
        cores = share if job.cores.scheduler else job.cores.least if job.cores.exact else None
        if cores is not None:
            known["ncores"] = str(cores)
        if cores == 1:
            known["nnodes"] = "1"
    elif job.nodes is not None and job.nodes.exact:
        known["nnodes"] = str(job.nodes.least)
        if job.cores is not None and job.cores.exact:
            known["ncores"] = str(job.nodes.least * job.cores.least)
    return known


def _command(job: Description, known: Mapping[str, str]) -> list[str]:
    """The argv; what is known only when it starts is put in by a shell then."""
    if job.script is not None:
        script = substitute(job.script, known)
        late = [name for name in LATE if f"${{{name}}}" in script or f"${name}" in script]
        told = "".join(f"{name}={TOLD[name]}\n" for name in late)
        return ["bash", "-l", "-c", told + script]
    assert job.program is not None
    words = [substitute(word, known) for word in (job.program, *job.args)]
    late = [name for name in LATE if any(f"${{{name}}}" in word for word in words)]
    if not late:
        return words
    filled = "; ".join(f'set -- "${{@//{shlex.quote(f"${{{name}}}")}/{TOLD[name]}}}"' for name in late)
    return ["bash", "-c", f'{filled}; exec "$@"', "bash", *words]


# ---- what it waits for -----------------------------------------------------------------------------------------------


def _line(job: Description, at: int, target: Target) -> Line:
    iteration = job.iteration
    own = job.name if iteration is None else f"{job.name}:{iteration.start + at}"
    known = {} if iteration is None else {"it": str(iteration.start + at), "itval": iteration.value(at)}
    after = []
    for given in job.after:
        word = substitute(given, known)
        selector = target(word)
        after.append(_of_request(word) if selector is None else selector)
    return Line(own, job.name, tuple(after) or None)


def _of_request(word: str) -> str:
    """How a line names another of its request: one by its id, all iterations of a job by their name."""
    return word if ":" in word else f"@{word}"

"""The options of the jobs of a batch, and how they become a Template."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Literal, TypedDict, cast

import msgspec

from rota.model.amounts import parse_duration
from rota.model.batch import BatchSpec, Dependency, Template, check_after_count
from rota.model.command import group_of
from rota.model.errors import UsageError
from rota.model.fields import OPTIONS, Field
from rota.model.needs import Needs
from rota.model.selector import parse_selector
from rota.submission.kinds import kept, option_words, several, working_directory

__all__ = ["Changes", "JobOptions", "completed", "make_template"]

Amount = str | int | None
Relative = str | int | float | None


class Words(TypedDict, total=False):
    """Options that are given in the same words for new jobs and for changes."""

    gpus: int | float | str
    """Whole ones, or a share of one: `0.5`."""
    bind: Literal["cores", "compact", "tight", "scatter", "compact!", "tight!", "scatter!", "none"]
    resources: Mapping[str, int]
    tags: Sequence[str]
    on: str | None
    override: Literal["never", "higher", "always"]
    limits: Sequence[str]
    """`name`; or what it is to be, from now on and for all: `name:N`, `name:100/min`, `name:22:00-06:00`."""
    enforce: Literal["none", "time", "memory", "both"]
    account: str | None
    partition: str | None
    qos: str | None
    reservation: str | None
    constraint: str | None
    exclusive: bool
    nodes: int | str
    """So many at once, or a range `2..4`; what the job needs is per node, and its command runs on the first of them."""
    span: str | None
    """Cores are in all, on any number of nodes: `pack`, `compact`, `tight`, `scatter`; with `!` the best or none."""
    variants: str | Sequence[str | Mapping[str, str | int | float]]
    """Other needs that will do, in this order: `"cores=2,gpus=1"`, or a mapping."""
    model: Literal["default", "threads", "openmpi", "intelmpi", "mpich", "hydra", "srunmpi"]
    """How the command is started on what the job got: once, or as ranks, one per core."""
    mpirun: str | None
    mpirun_args: Sequence[str]
    env_style: Sequence[Literal["slurm", "qcg", "none"]]
    tasks_per_node: int
    env_from: Literal["submit", "site", "none"]
    modules: Sequence[str]
    setup: str | None
    stdin: str | None
    stdout: str | None
    stderr: str | None
    workdir: Literal["shared", "unique"]
    change_home: bool
    inputs: str | Sequence[str]
    """Files and directories that it reads, or `s3://BUCKET/KEY`."""
    outputs: str | Sequence[str]
    leftovers: Literal["end", "wait", "keep"]
    container: str | None
    """An image: `debian:12`, `/images/blast.sif`, a directory."""
    engine: Literal["auto", "podman", "docker", "apptainer", "singularity", "ch-run"]
    mounts: Sequence[str]
    """What is seen inside besides the working directory: `SRC`, `SRC:DST`, `SRC:DST:ro`."""
    priority: int
    policy: str
    after_any: Sequence[str | int]
    after_failure: Sequence[str | int]
    each: bool | Literal["value"]
    """Job by job: each waits only for the one with its own number, or with its own value."""
    live: bool | Literal["rerun"]
    """Names in `after` count new batches too; `rerun`: what has completed runs again after them."""
    require_known: bool
    """Refuse names that nothing has yet."""
    not_before: str | float | None
    retries: int
    retry_on: Sequence[str | int]
    never_retry_on: Sequence[str | int]
    no_retry_after: Amount
    max_failures: str | int | None
    """A number of jobs, a share `10%`, or `off`; None: when the first 50 all failed."""
    scouts: str | int | None
    """So many jobs run first, and what they use decides what the rest asks for; None or `off`: none."""
    on_batch_end: str | None
    """A command line to run once, when all of the batch is settled."""
    rerunnable: bool
    signal: str | None
    """`USR1@120`: so many seconds before its time is over."""
    on_success: str | Sequence[str]
    on_failure: str | Sequence[str]
    on_exit: str | Sequence[str]
    remove_on: Literal["success", "failure", "exit"] | None
    at_once: int | None


class JobOptions(Words, total=False):
    """The options of every job of a batch. Sizes are `"4G"` or bytes, durations `"90m"` or seconds."""

    name: str
    cores: str | int | float | None
    memory: Amount
    time: Amount
    disk: Amount
    group: str | None
    """Learning group; None: the basename of the command; empty: learn nothing."""
    grace: Amount
    output_cap: Amount
    native: Mapping[str, str]
    """Options of the batch system itself: `{"--licenses": "matlab"}`."""
    cwd: str | None
    env: Mapping[str, str]
    cleanup: Literal["success", "failure", "always", "never"] | None
    after: Sequence[str | int | Dependency]
    behaviour_time: Amount


class Changes(Words, total=False):
    """Changes of jobs and batches. Sizes and times may be relative: `"x2"`, `"+1G"`, `"-30m"`.

    Dependencies in `after` are added; `"none"`, alone or as the first of several, takes away those that there are. None
    takes any other option away.
    """

    name: str | None
    cores: Relative
    memory: Relative
    time: Relative
    disk: Relative
    command: str | Sequence[str]
    group: str
    drop_limits: Sequence[str]
    grace: str | int
    output_cap: str | int
    native: Mapping[str, str | None]
    cwd: str
    env: Mapping[str, str | None]
    cleanup: Literal["success", "failure", "always", "never"]
    after: Sequence[str | int | Dependency] | Literal["none"] | None
    drop_after: Sequence[str | int]
    behaviour_time: str | int


_DEFAULTS = {name: field.default for name, field in OPTIONS.items()}
_SEVERAL = [name for name, field in OPTIONS.items() if field.kind in ("dependencies", "limits")]
_OF_JOBS = [field for field in OPTIONS.values() if field.place != "batch" and field.name != "cwd"]
_PLAIN = ("choice", "cores", "count", "duration", "gpus", "size", "switch", "text")
"""Kinds of options that name no file."""
LASTING = frozenset(("name", *(field.name for field in _OF_JOBS if field.kind in _PLAIN)))
"""Options that mean the same each time they are given."""
Command = str | tuple[str, ...] | None
Given = tuple[tuple[Field, Any], ...]
"""Options that are not as they are by default."""
Made = dict[str, dict[str, Any]]
"""What options make: fields of a Template, of its Needs, and options for a batch system."""


def completed(given: JobOptions) -> JobOptions:
    """All options: those that were not given have their defaults."""
    options: dict[str, Any] = _DEFAULTS | given
    if len(options) > len(_DEFAULTS):
        raise TypeError(f"Unexpected keyword argument '{next(name for name in given if name not in _DEFAULTS)}'")
    for name in _SEVERAL:
        options[name] = several(options[name])
    return cast(JobOptions, options)


def make_template(command: str | Sequence[str] | None, options: JobOptions) -> Template:
    """The Template of all options. A string is a command line, a list is executed as it is."""
    cwd = working_directory(options["cwd"])
    words = command if command is None or isinstance(command, str) else tuple(command)
    given: Given = tuple(
        [(field, word) for field in _OF_JOBS if (word := options[field.name]) is not field.default]  # type: ignore[literal-required]
    )
    plain = all(field.kind in _PLAIN and type(word) in (str, int, float, bool) for field, word in given)
    if plain and all(type(word) is str for word in words or ()):
        return _known_template(words, given, cwd, own_umask())
    return _new_template(words, given, cwd, own_umask())


def _new_template(words: Command, given: Given, cwd: str, umask: int) -> Template:
    made: Made = {place: {**fields} for place, fields in _usual().items()}
    made["template"] |= {"cwd": cwd, "group": group_of(words)}
    for field, word in given:
        _read(field, word, cwd, made)
    asked = tuple(sorted((key, word) for key, word in made["options"].items() if word is not None))
    template = Template(
        argv=None if isinstance(words, str) else words,
        shell=words if isinstance(words, str) else None,
        needs=Needs(**made["needs"], options=asked),
        umask=umask,
        **made["template"],
    )
    if template.setup is not None and not os.path.isfile(template.setup):
        raise UsageError(f"the setup file '{template.setup}' does not exist")
    template.check()
    return template


_known_template = lru_cache(256)(_new_template)
"""The same, remembered: where no option names a file, it is the same each time. Who submits often has few of them."""


def _read(field: Field, given: Any, cwd: str, made: Made) -> None:
    """Put what an option says where it is kept."""
    if field.place == "options":
        made["options"] |= option_words(field, given)
    elif field.kind == "path":
        made["template"][field.target] = os.path.join(cwd, os.path.expanduser(given))
    else:
        made[field.place] |= kept(field, given)


@cache
def _usual() -> Made:
    """What all options make that have a default, if none is given; the defaults name no path."""
    made: Made = {"template": {}, "needs": {}, "options": {}}
    for field in _OF_JOBS:
        if field.default is not None:
            _read(field, field.default, "", made)
    return made


def own_umask() -> int:
    """Our umask: files that jobs make should look as if the submitter had made them."""
    try:
        fd = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(fd, 4096).partition(b"\nUmask:")[2].split(None, 1)[0], 8)
        finally:
            os.close(fd)
    except (OSError, IndexError, ValueError):
        mask = os.umask(0o077)
        os.umask(mask)
        return mask


def dependencies(options: JobOptions) -> Iterator[Dependency]:
    """The dependencies of a batch."""
    if options["live"] not in (False, True, "rerun"):
        raise UsageError(f"live '{options['live']}': give True, False or 'rerun'")
    check_after_count(len(options["after"]) + len(options["after_any"]) + len(options["after_failure"]))
    given: list[tuple[str | int, Literal["success", "any", "failure"]]] = []
    for target in options["after"]:
        if isinstance(target, Dependency):
            yield msgspec.structs.replace(target, target=dependency_word(target.target))
        else:
            given.append((target, "success"))
    given += [(target, "any") for target in options["after_any"]]
    given += [(target, "failure") for target in options["after_failure"]]
    words = [(dependency_word(target), condition) for target, condition in given]
    if options["live"] and not any(word.startswith("@") for word, _ in words):
        raise UsageError("live: only a name, as in @align, can get new batches; none is waited for")
    if options["each"] not in (False, True, "value"):
        raise UsageError(f"each '{options['each']}': give True, False or 'value'")
    if options["each"] and not words:
        raise UsageError("each: there is nothing to wait for; give after")
    for word, condition in words:
        live = bool(options["live"]) and word.startswith("@")
        by_value = options["each"] == "value"
        yield Dependency(word, condition, bool(options["each"]), live, live and options["live"] == "rerun", by_value)


def end_spec(options: JobOptions, template: Template) -> BatchSpec | None:
    """The one job that runs when all of a batch with this template is settled."""
    if options["on_batch_end"] is None:
        return None
    command = options["on_batch_end"]
    if not command.strip():
        raise UsageError("--on-batch-end: the command is empty")
    last = Template(
        shell=command,
        needs=Needs(site=template.needs.site),
        cwd=template.cwd if "{" not in template.cwd else working_directory(None),
        set=template.set,
        env_from=template.env_from,
        modules=template.modules,
        setup=template.setup,
        umask=template.umask,
    )
    spec = BatchSpec(1, (last,))
    spec.check()
    return spec


def dependency_word(target: str | int) -> str:
    """The word of a selector that names jobs, not states; a name has its @ from here on."""
    word = str(target)
    selector = parse_selector([word])
    if selector.states:
        raise UsageError(f"'{word}': wait for a batch 7, a job 7.12, a range 7.1-99 or a name @align, not for a state")
    return f"@{selector.names[0]}" if selector.names else word


def moment(given: str | float | None) -> float | None:
    """Seconds since 1970 from `HH:MM` (the next), an ISO date and time, or `+2h`."""
    if given is None or isinstance(given, int | float):
        return given
    word = given.strip()
    if word.startswith("+"):
        return time.time() + parse_duration(word[1:])
    import datetime

    now = datetime.datetime.now()
    try:
        if len(word) <= 5 and ":" in word:
            clock = datetime.time.fromisoformat(word.zfill(5))
            when = datetime.datetime.combine(now.date(), clock)
            return (when if when > now else when + datetime.timedelta(days=1)).timestamp()
        return datetime.datetime.fromisoformat(word).timestamp()
    except ValueError:
        raise UsageError(f"'{given}' is not a time: write 22:30, 2030-01-31T22:30 or +2h") from None


def array_numbers(given: str | range | Iterable[int]) -> tuple[tuple[tuple[int, int, int], ...], int | None]:
    """Ranges (first, last, step) and the `%N` of an array: `1-1000:2%50`, `1-5,9,20-30:5`, a `range` or numbers."""
    if isinstance(given, range):
        if not given or given.step < 1:
            raise UsageError("array: an ascending range with at least one number is needed")
        return ((given[0], given[-1], given.step),), None
    if not isinstance(given, str):
        return runs_of(sorted(set(given))), None
    body, percent, most = given.partition("%")
    if percent and not (most.isascii() and most.isdigit()):
        raise UsageError(f"array '{given}': after % comes how many may run at once, as in 1-1000%50")
    ranges = []
    for part in body.split(","):
        span, colon, step = part.strip().partition(":")
        first, dash, last = span.partition("-")
        numbers = (first, last if dash else first, step if colon else "1")
        good = all(number.isascii() and number.isdigit() and len(number) <= 18 for number in numbers)
        if not good or int(numbers[1]) < int(numbers[0]) or int(numbers[2]) < 1:
            raise UsageError(
                f"array '{given}': write 1-1000, 1-1000:2 (every second), 1-5,9,20-30, and %50 for at most 50 at once"
            )
        ranges.append((int(numbers[0]), int(numbers[1]), int(numbers[2])))
    return tuple(sorted(ranges)), int(most) if percent else None


def runs_of(numbers: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Ascending numbers as ranges."""
    out: list[tuple[int, int, int]] = []
    for number in numbers:
        if out and out[-1][1] == number - 1:
            out[-1] = (out[-1][0], number, 1)
        else:
            out.append((number, number, 1))
    return tuple(out)

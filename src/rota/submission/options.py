"""What can be said of every job of a batch, and how it becomes a Template."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypedDict

import msgspec
from msgspec import Struct, field

from rota.model.amounts import parse_cores, parse_duration, parse_size
from rota.model.batch import SIGNALS, BatchSpec, Dependency, Template, check_after_count
from rota.model.command import group_of
from rota.model.errors import UsageError
from rota.model.limits import limit_name
from rota.model.needs import Needs, named_resources
from rota.model.selector import parse_selector

__all__ = ["JobOptions", "Options", "make_template"]

Amount = str | int | None
Cores = str | int | float | None


class JobOptions(TypedDict, total=False):
    """What can be said of every job of a batch. Sizes are `"4G"` or bytes, durations `"90m"` or seconds."""

    name: str
    cores: Cores
    memory: Amount
    time: Amount
    disk: Amount
    gpus: int
    resources: Mapping[str, int]
    tags: Sequence[str]
    on: str | None
    cwd: str | None
    env: Mapping[str, str]
    env_from: Literal["submit", "site", "none"]
    modules: Sequence[str]
    setup: str | None
    stdin: str | None
    stdout: str | None
    stderr: str | None
    retries: int
    retry_on: Sequence[str | int]
    never_retry_on: Sequence[str | int]
    no_retry_after: Amount
    max_failures: str | int | None
    priority: int
    limits: Sequence[str]
    after: Sequence[str | int | Dependency]
    after_any: Sequence[str | int]
    after_failure: Sequence[str | int]
    not_before: str | float | None
    enforce: Literal["none", "time", "memory", "both"]
    grace: Amount
    output_cap: Amount
    rerunnable: bool
    at_once: int | None
    group: str | None
    override: Literal["never", "higher", "always"]
    workdir: Literal["shared", "unique"]
    cleanup: Literal["success", "failure", "always", "never"] | None
    change_home: bool
    on_success: str | Sequence[str]
    on_failure: str | Sequence[str]
    on_exit: str | Sequence[str]
    behaviour_time: Amount
    remove_on: Literal["success", "failure", "exit"] | None
    signal: str | None
    account: str | None
    partition: str | None
    qos: str | None
    reservation: str | None
    constraint: str | None
    exclusive: bool
    nodes: int
    tasks_per_node: int
    native: Mapping[str, str]
    each: bool
    live: bool | Literal["rerun"]
    require_known: bool
    on_batch_end: str | None


class Options(Struct, kw_only=True):
    """JobOptions with their defaults."""

    name: str = ""
    cores: Cores = None
    memory: Amount = None
    time: Amount = None
    disk: Amount = None
    gpus: int = 0
    resources: Mapping[str, int] = field(default_factory=dict)
    tags: Sequence[str] = ()
    on: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    env_from: Literal["submit", "site", "none"] = "submit"
    modules: Sequence[str] = ()
    setup: str | None = None
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    retries: int = 0
    retry_on: Sequence[str | int] = ()
    never_retry_on: Sequence[str | int] = ()
    no_retry_after: Amount = None
    max_failures: str | int | None = None
    """A number of jobs, a share `10%`, or `off`; None: when the first 50 all failed."""
    priority: int = 0
    limits: Sequence[str] = ()
    """`name`; or what it is to be, from now on and for all: `name:N`, `name:100/min`, `name:22:00-06:00`."""
    after: Sequence[str | int | Dependency] = ()
    after_any: Sequence[str | int] = ()
    after_failure: Sequence[str | int] = ()
    not_before: str | float | None = None
    enforce: Literal["none", "time", "memory", "both"] = "time"
    grace: Amount = None
    output_cap: Amount = None
    rerunnable: bool = False
    at_once: int | None = None
    group: str | None = None
    """Learning group; None: the basename of the command; empty: learn nothing."""
    override: Literal["never", "higher", "always"] = "never"
    workdir: Literal["shared", "unique"] = "shared"
    cleanup: Literal["success", "failure", "always", "never"] | None = None
    change_home: bool = False
    on_success: str | Sequence[str] = ()
    on_failure: str | Sequence[str] = ()
    on_exit: str | Sequence[str] = ()
    behaviour_time: Amount = None
    remove_on: Literal["success", "failure", "exit"] | None = None
    signal: str | None = None
    """`USR1@120`: so many seconds before its time is over."""
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    exclusive: bool = False
    nodes: int = 1
    """Several: only where each job is a cluster job (mode `direct`), which itself starts what runs on them."""
    tasks_per_node: int = 1
    native: Mapping[str, str] = field(default_factory=dict)
    """Options of the batch system itself: `{"--licenses": "matlab"}`."""
    each: bool = False
    """Job by job: each waits only for the one with its own number."""
    live: bool | Literal["rerun"] = False
    """Names in `after` count new batches too; `rerun`: what has completed runs again after them."""
    require_known: bool = False
    """Refuse names that nothing has yet."""
    on_batch_end: str | None = None
    """A command line to run once, when all of the batch is settled."""

    def __post_init__(self) -> None:
        """One word may stand where several can: a string must not be taken for its letters."""
        for name in ("tags", "modules", "retry_on", "never_retry_on", "limits", "after", "after_any", "after_failure"):
            given = getattr(self, name)
            if isinstance(given, str | int | Dependency):
                setattr(self, name, (given,))
        if self.enforce not in ENFORCE:
            raise UsageError(f"enforce '{self.enforce}': give time, memory, both or none")
        if self.live not in (False, True, "rerun"):
            raise UsageError(f"live '{self.live}': give True, False or 'rerun'")


OPTIONS = ("account", "partition", "qos", "reservation", "constraint")
"""What batch systems can be asked for beyond amounts."""
ENFORCE: dict[str, tuple[str, ...]] = {
    "none": (),
    "time": ("time",),
    "memory": ("memory",),
    "both": ("time", "memory"),
}


def make_template(command: str | Sequence[str] | None, options: Options) -> Template:
    """The Template of these options. A string is a command line, a list is executed as it is."""
    cwd = working_directory(options.cwd)
    cores, most = _cores(options.cores)
    template = Template(
        argv=None if command is None or isinstance(command, str) else tuple(command),
        shell=command if isinstance(command, str) else None,
        needs=Needs(
            cores=cores,
            cores_most=most if most != cores else 0,
            memory=_size(options.memory),
            disk=_size(options.disk),
            time_s=_seconds(options.time),
            nodes=options.nodes,
            gpus=options.gpus,
            named=named_resources(options.resources),
            tags=tuple(sorted(set(options.tags))),
            site=options.on,
            options=batch_options(options),
        ),
        priority=options.priority,
        retries=options.retries,
        retry_on=tuple(str(word) for word in options.retry_on),
        never_retry_on=tuple(str(word) for word in options.never_retry_on),
        no_retry_after_s=_seconds(options.no_retry_after),
        limits=tuple(sorted({limit_name(limit) for limit in options.limits})),
        cwd=cwd,
        set=dict(options.env),
        env_from=options.env_from,
        stdin=_below(cwd, options.stdin),
        stdout=_below(cwd, options.stdout),
        stderr=_below(cwd, options.stderr),
        modules=tuple(options.modules),
        setup=_setup_file(options.setup),
        umask=_umask(),
        enforce=ENFORCE[options.enforce],
        rerunnable=options.rerunnable,
        group=options.group if options.group is not None else group_of(command),
        override=options.override,
        workdir=options.workdir,
        cleanup=options.cleanup,
        change_home=options.change_home,
        on_success=lines(options.on_success),
        on_failure=lines(options.on_failure),
        on_exit=lines(options.on_exit),
        remove_on=options.remove_on,
        warn=warning(options.signal),
    )
    if options.behaviour_time is not None:
        template = msgspec.structs.replace(template, behaviour_s=_seconds(options.behaviour_time) or 0)
    if options.grace is not None:
        template = msgspec.structs.replace(template, grace_s=_seconds(options.grace) or 0)
    if options.output_cap is not None:
        template = msgspec.structs.replace(template, cap=_size(options.output_cap) or 0)
    template.check()
    return template


def lines(given: str | Sequence[str]) -> tuple[str, ...]:
    """One command line, or several."""
    return (given,) if isinstance(given, str) else tuple(given)


def warning(given: str | None) -> tuple[str, int] | None:
    """(signal, seconds) of `USR1@120`."""
    if given is None:
        return None
    name, at, time_text = given.partition("@")
    name = name.upper().removeprefix("SIG")
    if not at or name not in SIGNALS:
        raise UsageError(f"signal '{given}': write NAME@TIME, as in USR1@120; the names are {', '.join(SIGNALS)}")
    # A bare number is seconds here, as in every batch system's option of this kind.
    plain = time_text.isascii() and time_text.isdigit() and len(time_text) < 10
    return name, int(time_text) if plain else parse_duration(time_text)


def batch_options(options: Options) -> tuple[tuple[str, str], ...]:
    """What is asked of a batch system, in the one order that makes equal needs equal."""
    given = {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
    if options.exclusive:
        given["exclusive"] = "yes"
    if options.tasks_per_node != 1:
        if not 1 <= options.tasks_per_node <= 100_000:
            raise UsageError(f"tasks per node {options.tasks_per_node}: give 1 or more")
        given["tasks-per-node"] = str(options.tasks_per_node)
    for key, value in options.native.items():
        if not key.startswith("-"):
            raise UsageError(f"native option '{key}': write it as the batch system does, as in --licenses=matlab")
        given[key] = value
    return tuple(sorted(given.items()))


def working_directory(given: str | None) -> str:
    """An absolute path; without placeholders it must be a directory."""
    path = os.path.expanduser(given) if given is not None else ""
    if not path.startswith("/"):
        try:
            path = os.path.normpath(os.path.join(os.getcwd(), path))
        except FileNotFoundError:
            raise UsageError("the directory you are in has been removed: cd to another, or give --cwd") from None
    if "{" not in path and not os.path.isdir(path):
        why = "is not a directory" if os.path.exists(path) else "does not exist"
        raise UsageError(f"the working directory '{path}' {why}")
    return path


def _below(cwd: str, path: str | None) -> str | None:
    return None if path is None else os.path.join(cwd, os.path.expanduser(path))


def _setup_file(given: str | None) -> str | None:
    if given is None:
        return None
    path = os.path.abspath(os.path.expanduser(given))
    if not os.path.isfile(path):
        raise UsageError(f"the setup file '{path}' does not exist")
    return path


def _umask() -> int:
    """Ours: files that jobs make should look as if the submitter had made them."""
    try:
        with open("/proc/self/status") as status:
            return int(next(line for line in status if line.startswith("Umask:")).split()[1], 8)
    except (OSError, StopIteration, ValueError):
        mask = os.umask(0o077)
        os.umask(mask)
        return mask


def _cores(given: Cores) -> tuple[int, int]:
    if given is None:
        return 1000, 1000
    return parse_cores(given if isinstance(given, str) else f"{given:.3f}".rstrip("0").rstrip("."))


def _size(given: Amount) -> int | None:
    return parse_size(given) if isinstance(given, str) else given


def _seconds(given: Amount) -> int | None:
    return parse_duration(given) if isinstance(given, str) else given


def dependencies(options: Options) -> Iterator[Dependency]:
    """What the batch waits for."""
    check_after_count(len(options.after) + len(options.after_any) + len(options.after_failure))
    given: list[tuple[str | int, Literal["success", "any", "failure"]]] = []
    for target in options.after:
        if isinstance(target, Dependency):
            yield msgspec.structs.replace(target, target=dependency_word(target.target))
        else:
            given.append((target, "success"))
    given += [(target, "any") for target in options.after_any]
    given += [(target, "failure") for target in options.after_failure]
    words = [(dependency_word(target), condition) for target, condition in given]
    if options.live and not any(word.startswith("@") for word, _ in words):
        raise UsageError("live: only a name, as in @align, can get new batches; none is waited for")
    if options.each and not words:
        raise UsageError("each: there is nothing to wait for; give after")
    for word, condition in words:
        live = bool(options.live) and word.startswith("@")
        yield Dependency(word, condition, options.each, live, live and options.live == "rerun")


def end_spec(options: Options, template: Template) -> BatchSpec | None:
    """The one job that runs when all of a batch with this template is settled."""
    if options.on_batch_end is None:
        return None
    command = options.on_batch_end
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
    """The word of a selector that names jobs, not states."""
    word = str(target)
    if parse_selector([word]).states:
        raise UsageError(f"'{word}': wait for a batch 7, a job 7.12, a range 7.1-99 or a name @align, not for a state")
    return word


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

"""Batches: what one submission made. A template, its values, and which job has which number."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from rota.model.data import URL
from rota.model.errors import UsageError
from rota.model.limits import limit_name
from rota.model.needs import NAME, Needs

__all__ = [
    "BatchSpec", "Dependency", "Template", "Value", "count_of", "index_at", "most_failures", "position_of",
    "scout_count",
]  # fmt: skip

Value = str | list[str] | dict[str, Any] | None
"""What makes a job different from its neighbours: one string, one per column, an object (JSON lines), or nothing."""

MAX_JOBS = 50_000_000
MAX_COMMAND = 131_071
"""Bytes in one argument of a command: Linux takes no more (MAX_ARG_STRLEN), and a shell line is one argument."""
MAX_NAME = 128
MAX_GROUP = 255
"""Characters in the name of a learning group: as many as the name of a program can have."""
MAX_TEMPLATES = 65_535
MAX_AFTER = 10_000
"""The most dependencies of one batch."""
MAX_INDEX = 10**18 - 1
"""The greatest number that a job id or a selector can be written with."""
MAX_LIMITS = 1_000
MAX_LEVEL = 10_000
MAX_SCOUTS = 1_000
MAX_WALL = 1e11
"""The latest time that can be meant: some thousand years from now."""
MAX_FIGURE = 1 << 53
"""Of seconds, bytes and the like, which nothing has more of."""
CAP = 16 << 20
REASONS = (
    "exit", "signal", "time", "memory", "oom", "disk-full", "cwd", "output", "not-found", "not-executable", "start",
    "container",
    "node-fail", "preempt", "requeue", "cancelled", "launch", "vanished", "deadline", "no-report", "refused",
    "input", "staging",
)  # fmt: skip
"""Why an attempt can fail: as runners report it, then as batch systems do."""
SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "CONT", "TSTP", "URG", "XCPU", "WINCH")
"""Signals that a job can be warned with."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Dependency(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Jobs of this batch wait for those that `target` names."""

    target: str
    """A batch `7`, a job `7.12`, a range `7.1-9`, or a name `@align`."""
    condition: Literal["success", "any", "failure"] = "success"
    each: bool = False
    """Each job waits only for the one with its own number."""
    live: bool = False
    """For a name: batches that get it later count too, whenever that is."""
    rerun: bool = False
    """With `live`: jobs that have COMPLETED run again after a new batch of the name."""
    by_value: bool = False
    """With `each`: it is the one with the same value, not with the same number."""

    def check(self) -> None:
        """Raise UsageError for what does not go together."""
        named = self.target.startswith("@")
        if self.live and not named:
            raise UsageError(f"--after {self.target} --live: only a name, as in @align, can get new batches")
        if self.rerun and not self.live:
            raise UsageError(f"--after {self.target}: rerun goes with live")
        if self.by_value and not self.each:
            raise UsageError(f"--after {self.target}: by value goes with each")
        if self.each and self.live:
            raise UsageError(f"--after {self.target}: --each and --live cannot be given for the same")


STYLES = ("slurm", "qcg", "none")


class Template(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the jobs of a batch are run. Both `argv` and `shell` None: each value is a command line of its own."""

    argv: tuple[str, ...] | None = None
    shell: str | None = None
    needs: Needs = Needs()
    priority: int = 0
    retries: int = 0
    retry_on: tuple[str, ...] = ()
    """The only exit codes and reasons that are tried again; empty: all but those where it cannot help."""
    never_retry_on: tuple[str, ...] = ()
    no_retry_after_s: int | None = None
    """An attempt that failed after so many seconds is not tried again."""
    limits: tuple[str, ...] = ()
    cwd: str = "/"
    set: dict[str, str] = field(default_factory=dict)
    env_from: Literal["submit", "site", "none"] = "submit"
    stdin: str | None = None
    stdout: str | None = None
    """A path (placeholders allowed), None for the segment files, or `/dev/null`."""
    stderr: str | None = None
    modules: tuple[str, ...] = ()
    setup: str | None = None
    umask: int | None = None
    """The umask of the submitter; None: 022."""
    enforce: tuple[str, ...] = ("time",)
    """Which needs end a job that exceeds them: `time`, `memory`."""
    grace_s: int = 10
    """Seconds between TERM and KILL."""
    cap: int = CAP
    """Bytes of each output stream that are kept."""
    rerunnable: bool = False
    """May be started again when its runner stays silent, though nobody knows that the first copy is dead."""
    group: str = ""
    """Learning group; empty: nothing is learned from these jobs, and nothing learned is used for them."""
    override: Literal["never", "higher", "always"] = "never"
    """When the user's own figures are used rather than what was learned: `higher`, if they are. (New jobs get `higher`
    from the table of fields; what is left out in older records means `never`.)"""
    level: int = 0
    """How often the needs were raised after a job exceeded them."""
    workdir: Literal["shared", "unique"] = "shared"
    """`unique`: each attempt runs in a fresh directory of its own below `cwd`."""
    cleanup: Literal["success", "failure", "always", "never"] | None = None
    """When a directory of its own is removed; None: on success."""
    change_home: bool = False
    """Whether HOME is the directory of its own."""
    on_success: tuple[str, ...] = ()
    """Command lines (behaviours) that the runner runs after the job (placeholders allowed)."""
    on_failure: tuple[str, ...] = ()
    on_exit: tuple[str, ...] = ()
    behaviour_s: int = 600
    """Seconds that each behaviour may take."""
    remove_on: Literal["success", "failure", "exit"] | None = None
    """How a job must have settled to be removed."""
    warn: tuple[str, int] | None = None
    """A signal (`USR1`), and how many seconds before the end of the job's time it is sent."""
    policy: str = "default"
    """The policy by which its jobs get their places."""
    share: str = ""
    """Who its jobs' use is counted for, if its policy shares fairly; the manager's to set."""
    over: tuple[str, ...] = ()
    """Fields that a change has set, and that so override a job's own line: `cwd`, `stdout`, `env.SEED` …"""
    time_ends: bool = False
    """Whether its jobs are ended after the time that they ask for, so that nothing learned makes it longer; the
    manager's to set. Kept, because shapes are numbered as they come: older records had no such difference."""
    leftovers: Literal["end", "wait", "keep"] = "end"
    """What becomes of processes that a job leaves behind when it succeeds."""
    inputs: tuple[str, ...] = ()
    """Paths that its jobs read."""
    near: tuple[str, ...] = ()
    """The same, if its policy looks at where these are; the manager's to set, and kept as `time_ends` is."""
    container: str | None = None
    """The image in which it runs: a name in a registry, or the path of a file or directory."""
    engine: Literal["auto", "podman", "docker", "apptainer", "singularity", "ch-run"] = "auto"
    """What runs the container; `auto`: what the node has."""
    mounts: tuple[str, ...] = ()
    """What of the host is seen in the container besides the job's directory: `SRC`, `SRC:DST`, `SRC:DST:ro`."""
    model: Literal["default", "threads", "openmpi", "intelmpi", "mpich", "hydra", "srunmpi"] = "default"
    """How its command is started on what the job got: once, or as ranks."""
    mpirun: str | None = None
    """The program that starts ranks; None: the model's own."""
    mpirun_args: tuple[str, ...] = ()
    env_style: tuple[str, ...] = ()
    """Whose variables tell a job what it got: `slurm`, `qcg`; `none`: nobody's, and nothing of the batch system that
    it runs in either. Empty: the site's own way."""
    outputs: tuple[str, ...] = ()
    """Paths, or patterns of such, that its jobs write."""
    scout: Literal["", "scout", "rest"] = ""
    """Whether its jobs are scouts of their batch, or wait for these; the manager's to set."""

    @property
    def apart(self) -> bool:
        """Whether its jobs are told of their nodes as jobs on several are, also if they got one."""
        return self.model != "default" or self.needs.together

    def with_time_ends(self) -> "Template":
        """The template with `time_ends` as its own figures say."""
        ends = self.needs.time_s is not None and "time" in self.enforce
        return self if ends == self.time_ends else replace(self, time_ends=ends)

    def check(self) -> None:
        """Raise UsageError for a field that cannot be meant."""
        self.needs.check()
        if self.mpirun is not None or self.mpirun_args:
            if self.model in ("default", "threads"):
                raise UsageError(f"model {self.model} starts no ranks: mpirun and mpirun_args are for the others")
            check_text("mpirun", " ".join((self.mpirun or "mpirun", *self.mpirun_args)))
        if self.container is not None and self.model not in ("default", "threads"):
            raise UsageError(f"model {self.model}: what runs in a container is started once; start its ranks inside")
        for style in self.env_style:
            if style not in STYLES or (style == "none" and len(self.env_style) > 1):
                raise UsageError(f"env_style '{','.join(self.env_style)[:40]}': give slurm, qcg, both, or none")
        if not 0 <= self.priority <= 255:
            raise UsageError(f"priority {self.priority}: give 0 (lowest, the default) to 255 (first)")
        if not NAME.fullmatch(self.policy):
            raise UsageError(f"policy '{self.policy[:40]}': a name of letters, digits, '_', '.', '-'")
        if not 0 <= self.retries <= 10_000:
            raise UsageError(f"retries {self.retries}: give 0 to 10000")
        for word in (*self.retry_on, *self.never_retry_on):
            if word not in REASONS and not (word.isascii() and word.isdigit() and int(word) <= 255):
                raise UsageError(f"'{word}' is neither an exit code nor a reason to retry on: {', '.join(REASONS)}")
        if self.argv is not None and (not self.argv or not self.argv[0]):
            raise UsageError("the command is empty")
        if self.shell is not None and not self.shell.strip():
            raise UsageError("the command is empty")
        for word in self.argv or ():
            check_text("the command", word)
        if self.shell is not None:
            check_text("the command", self.shell)
        for name in self.limits:
            if limit_name(name) != name:
                raise UsageError(f"limit '{name}': here only its name is given, as in {limit_name(name)}")
        if not self.cwd.startswith("/"):
            raise UsageError(f"the working directory '{self.cwd}' must be an absolute path")
        check_text("cwd", self.cwd)
        if self.stdin or self.stdout or self.stderr or self.setup or self.needs.site or self.modules:
            self._check_texts()
        if self.group:
            check_text("the learning group", self.group)
            if len(self.group) > MAX_GROUP or _CONTROL.search(self.group):
                raise UsageError(
                    f"group '{self.group[:40]}': at most {MAX_GROUP} characters, none of them control characters"
                )
        if self.set:
            check_environment(self.set)
        for word in self.enforce:
            if word not in ("time", "memory"):
                raise UsageError(f"enforce '{word}': give time, memory, both or none")
        if self.grace_s < 0 or self.cap < 0:
            raise UsageError("grace and output cap must not be negative")
        if self.umask is not None and not 0 <= self.umask <= 0o777:
            raise UsageError(f"umask {self.umask}: give 0 to 0o777")
        if not 0 <= self.level <= MAX_LEVEL:
            raise UsageError(f"level {self.level}: give 0 to {MAX_LEVEL}")
        if max(self.grace_s, self.cap, self.behaviour_s, self.no_retry_after_s or 0) > MAX_FIGURE:
            raise UsageError(f"a figure is more than {MAX_FIGURE}, which nothing has")
        if len(self.limits) > MAX_LIMITS:
            raise UsageError(f"{len(self.limits):,} limits: a job can have {MAX_LIMITS} at the most")
        if self.no_retry_after_s is not None and self.no_retry_after_s < 0:
            raise UsageError(f"no retry after {self.no_retry_after_s} s: give 0 or more")
        for path in (*self.inputs, *self.outputs):
            check_text("what a job reads or writes", path)
            if not path.startswith(("/", "s3://")):
                raise UsageError(f"'{path}' must be an absolute path, or s3://BUCKET/KEY")
        self._check_closing()
        self._check_files()
        if self.container is not None or self.engine != "auto" or self.mounts:
            self._check_container()

    def _check_texts(self) -> None:
        """Raise UsageError for paths and names that no process can be given."""
        for what, text in (
            ("stdin", self.stdin),
            ("stdout", self.stdout),
            ("stderr", self.stderr),
            ("setup", self.setup),
            ("the site", self.needs.site),
            *(("a module's name", name) for name in self.modules),
        ):
            if text:
                check_text(what, text)

    def _check_container(self) -> None:
        """Raise UsageError for a container that cannot be meant."""
        if self.container is None:
            what = "a mount" if self.mounts else f"engine '{self.engine}'"
            raise UsageError(f"{what}: only for jobs in a container (--container IMAGE)")
        check_text("the image", self.container)
        if not self.container.strip() or self.container.startswith("-"):
            raise UsageError(f"container '{self.container[:40]}': give the name of an image, or its path")
        if self.container.startswith("."):
            raise UsageError(f"container '{self.container[:40]}': give an absolute path")
        if any(each.nodes > 1 or each.nodes_most > 1 or each.span for each in self.needs.alternatives()):
            nodes = f"{self.needs.nodes} nodes" if self.needs.nodes > 1 else "several nodes"
            raise UsageError(f"container: a job on {nodes} cannot be in one; start it from its command")
        for text in self.mounts:
            check_text("a mount", text)
            parts = text.split(":")
            absolute = all(part.startswith("/") for part in parts[:2])
            if not absolute or len(parts) > 3 or parts[2:] not in ([], ["ro"], ["rw"]):
                raise UsageError(f"mount '{text[:80]}': write SRC, SRC:DST or SRC:DST:ro, with absolute paths")

    def _check_files(self) -> None:
        """Raise UsageError for files that would have one name in the directory of a job."""
        names: dict[str, str] = {}
        for path in self.inputs:
            if self.workdir == "unique" or path.startswith(URL):  # links are put there, by the last name
                other = names.setdefault(path.rpartition("/")[2], path)
                if other != path:
                    raise UsageError(f"inputs '{other}' and '{path}': the job would find both under one name")
        for path in self.outputs:
            if self.workdir == "unique" and path.startswith(URL):
                words = "it is taken from the working directory, which is removed (--workdir unique)"
                raise UsageError(f"output '{path}': {words}: use --workdir shared")

    def _check_closing(self) -> None:
        """Raise UsageError for directories, behaviours and warnings that cannot be meant."""
        if self.workdir != "unique" and (self.cleanup is not None or self.change_home):
            what = f"cleanup '{self.cleanup}'" if self.cleanup is not None else "to change HOME"
            raise UsageError(f"{what}: only for jobs with a directory of their own (--workdir unique)")
        for text in (*self.on_success, *self.on_failure, *self.on_exit):
            check_text("a behaviour", text)
            if not text.strip():
                raise UsageError("a behaviour (on success, failure or exit) is empty: give a command")
        if self.behaviour_s < 1:
            raise UsageError(f"behaviour time {self.behaviour_s}: give at least 1 second")
        if self.warn is not None:
            name, seconds = self.warn
            if name not in SIGNALS:
                raise UsageError(f"signal '{name}': give one of {', '.join(SIGNALS)}")
            if not 1 <= seconds <= MAX_FIGURE or (self.needs.time_s is not None and seconds >= self.needs.time_s):
                raise UsageError(f"signal {name}@{seconds}: give 1 second or more, and less than its --time")


class BatchSpec(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One submission, without its values."""

    count: int
    templates: tuple[Template, ...]
    name: str = ""
    columns: tuple[str, ...] = ()
    """Names of the parts of a value; `("",)` for one without a name; empty for arrays and for whole command lines."""
    ranges: tuple[tuple[int, int, int], ...] | None = None
    """Array numbers as (first, last, step); None: jobs are numbered from 1 by position."""
    at_once: int | None = None
    """The most jobs of this batch at a time (`--array 1-100%5`)."""
    after: tuple[Dependency, ...] = ()
    not_before: float | None = None
    """Wall-clock time before which none of its jobs starts."""
    max_failures: int | None = None
    """How many failed jobs hold the rest; 0: never; None: 50, if none has succeeded."""
    require_known: bool = False
    """Whether a name in `after` that no batch has yet is refused, and not waited for."""
    ends: int | None = None
    """The batch at whose end this one runs (`--on-batch-end`); the manager's to set."""
    scouts: int = 0
    """So many of its jobs run first, and what they used decides what the others ask for."""

    def check(self) -> None:
        """Raise UsageError for anything that could not be run as asked."""
        if self.count < 1:
            raise UsageError("there is nothing to run: no values, lines or array numbers were given")
        if self.count > MAX_JOBS:
            raise UsageError(f"{self.count} jobs in one batch: the most is {MAX_JOBS}")
        if not self.templates or len(self.templates) > MAX_TEMPLATES:
            raise UsageError(f"a batch has 1 to {MAX_TEMPLATES} different sets of options")
        self.check_name()
        for column in self.columns:
            if column and not NAME.fullmatch(column):
                raise UsageError(f"parameter '{column}': a name of letters, digits, '_', '.', '-'")
            if column in ("index", "batch", "job", "attempt"):
                raise UsageError(f"parameter '{column}': that name is rota's own")
        if len(self.columns) > 1 and len(set(self.columns)) != len(self.columns):
            raise UsageError("two parameters have the same name")
        if self.ranges is not None:
            self._check_ranges(self.ranges)
        if max(self.max_failures or 0, self.at_once or 0) > MAX_FIGURE:
            raise UsageError(f"a figure is more than {MAX_FIGURE}, which nothing has")
        if self.max_failures is not None and self.max_failures < 0:
            raise UsageError(f"max failures {self.max_failures}: give a number of jobs from 1, or 0 for never")
        if not 0 <= self.scouts <= MAX_SCOUTS:
            raise UsageError(f"scouts {self.scouts}: give 1 to {MAX_SCOUTS} jobs, or 0 (off)")
        if self.at_once is not None and self.at_once < 1:
            raise UsageError(f"%{self.at_once}: at least 1 job must be allowed at a time")
        if self.not_before is not None and not 0.0 <= self.not_before <= MAX_WALL:
            raise UsageError(f"not before {self.not_before}: give a time")
        check_after_count(len(self.after))
        for dependency in self.after:
            dependency.check()
        for template in self.templates:
            template.check()

    def check_name(self) -> None:
        """Raise UsageError for a name that no selector could have."""
        if len(self.name) > MAX_NAME or _CONTROL.search(self.name) or self.name[:1] in ("@", ":", "-"):
            raise UsageError(
                f"name '{self.name[:40]}': at most {MAX_NAME} characters, none of them control characters, "
                "and not beginning with '@', ':' or '-'"
            )
        check_text("the name", self.name)

    def _check_ranges(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        seen_last = -1
        for first, last, step in ranges:
            if first < 0 or last < first or step < 1:
                raise UsageError(f"array {first}-{last}:{step}: give FIRST-LAST or FIRST-LAST:STEP, ascending")
            if first <= seen_last:
                raise UsageError(f"array numbers must ascend without overlap ({first} comes after {seen_last})")
            seen_last = first + (last - first) // step * step
        if seen_last > MAX_INDEX:
            raise UsageError(f"array numbers go up to {MAX_INDEX}, not {seen_last}")
        if count_of(ranges) != self.count:
            raise UsageError(f"the array has {count_of(ranges)} numbers but {self.count} jobs")


def check_after_count(count: int) -> None:
    """Raise UsageError for more dependencies than one batch takes."""
    if count > MAX_AFTER:
        raise UsageError(
            f"{count:,} dependencies: a batch takes at most {MAX_AFTER:,}; wait for whole batches (7), "
            "ranges (7.1-99999) or a name that they share (@align) instead of job by job"
        )


def most_failures(given: str | int | None, count: int) -> int | None:
    """`BatchSpec.max_failures` from what a user gave: a number, a share of `count`, or `off`."""
    if given is None:
        return None
    text = str(given)
    if text == "off":
        return 0
    share = text.removesuffix("%")
    most = 100 if share != text else 999_999_999
    if not share.isascii() or not share.isdigit() or not 1 <= int(share[:10]) <= most:
        raise UsageError(f"max failures '{given}': give a number of jobs from 1, a share from 1% to 100%, or off")
    return int(share) if share == text else max(1, -(-count * int(share) // 100))


def scout_count(given: str | int | None) -> int:
    """`BatchSpec.scouts` from what a user gave: a number, or `off`."""
    if given is None or given == "off":
        return 0
    text = str(given)
    if not text.isascii() or not text.isdigit() or not 0 <= int(text[:10]) <= MAX_SCOUTS:
        raise UsageError(f"scouts '{given}': give a number of jobs from 1 to {MAX_SCOUTS}, or off")
    return int(text)


def count_of(ranges: Sequence[tuple[int, int, int]]) -> int:
    """How many numbers the ranges hold."""
    return sum((last - first) // step + 1 for first, last, step in ranges)


def index_at(ranges: Sequence[tuple[int, int, int]] | None, pos: int) -> int:
    """The number that people see for the job at this position."""
    if ranges is None:
        return pos + 1
    for first, last, step in ranges:
        size = (last - first) // step + 1
        if pos < size:
            return first + pos * step
        pos -= size
    raise IndexError(pos)


def position_of(ranges: Sequence[tuple[int, int, int]] | None, count: int, index: int) -> int | None:
    """The position of the job with this number, or None if the batch has no such number."""
    if ranges is None:
        return index - 1 if 1 <= index <= count else None
    before = 0
    for first, last, step in ranges:
        if first <= index <= last and (index - first) % step == 0:
            return before + (index - first) // step
        before += (last - first) // step + 1
    return None


def check_text(what: str, text: str) -> None:
    """Raise UsageError for text that no process can be given."""
    if "\0" in text:
        raise UsageError(f"{what} contains a NUL byte, which no program can be given")
    if len(text) > MAX_COMMAND // 4 and (size := len(text.encode("utf-8", "surrogatepass"))) > MAX_COMMAND:
        raise UsageError(
            f"{what} is {size:,} bytes long; the system takes at most {MAX_COMMAND:,}: "
            "put it into a script file and run that"
        )
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise UsageError(f"{what} is not valid UTF-8") from None


def check_environment(variables: Mapping[str, str]) -> None:
    """Raise UsageError for names and values that no environment can hold."""
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name:
            raise UsageError(f"environment variable '{name}': a name without '=' is needed")
        check_text(f"environment variable {name[:40]}", f"{name}={value}")


def _check_own(value: Mapping[str, Any]) -> None:
    """Raise UsageError for what a job's own line says of its paths and variables, if no process could have that."""
    for name in ("cwd", "stdin", "stdout", "stderr"):
        path = value.get(name)
        if path is not None and not isinstance(path, str):
            raise UsageError(f"field '{name}': give a string")
        check_text(f"field '{name}'", path or "")
    own = value.get("env")
    if own is not None and not (isinstance(own, dict) and all(isinstance(text, str) for text in own.values())):
        raise UsageError("field 'env': give an object of strings")
    check_environment(own or {})


def check_value(value: Value, columns: Sequence[str], lines: bool) -> None:
    """Raise UsageError for a value that does not fit its batch."""
    if lines:
        if isinstance(value, dict):
            command = value.get("command")
            words: list[Any] = command if isinstance(command, list) else [command]
            if not words or not all(isinstance(word, str) for word in words) or not words[0].strip():
                raise UsageError("field 'command': give a non-empty string, or a list of strings")
            for word in words:
                check_text("field 'command'", word)
            _check_own(value)
        elif isinstance(value, str) and value.strip():
            check_text("the command", value)
        else:
            raise UsageError("the command is empty")
    elif not columns:
        if value is not None:
            raise UsageError("the jobs of an array have no values")
    elif len(columns) == 1:
        if not isinstance(value, str):
            raise UsageError("each value must be a string")
        check_text("the value", value)
    elif not isinstance(value, list) or len(value) != len(columns) or not all(isinstance(v, str) for v in value):
        raise UsageError(f"each row must be a list of {len(columns)} strings ({', '.join(columns)})")
    else:
        for word in value:
            check_text("the value", word)

"""QCG-PilotJob's requests, checked. What is wrong is named by its path in the JSON, and by the rule that it breaks."""

import datetime
import re
import string
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rota.model.errors import UsageError

__all__ = ["Description", "Iteration", "Request", "Size", "WrongRequestError", "read_request", "request_variables"]

REQUESTS = (
    "submit", "listJobs", "jobStatus", "jobInfo", "cancelJob", "removeJob", "resourcesInfo", "status", "control",
    "finish", "register", "notify",
)  # fmt: skip
GOVERNOR = ("register", "notify")
"""What QCG's managers of parts of an allocation say to each other: here one manager has all of it."""
FINISH_AFTER = "finishAfterAllTasksDone"
MODELS = ("default", "threads", "openmpi", "intelmpi", "srunmpi")
EXECUTION = (
    "exec", "args", "script", "env", "wd", "stdin", "stdout", "stderr", "modules", "venv", "model", "model_opts",
)  # fmt: skip
SCHEDULERS = ("maximum-iters", "split-into")
NOT_IN_NAMES = "${}()'\" \t\n"
MOST = 1_000_000_000
_TIME = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")


class WrongRequestError(UsageError):
    """A request that breaks a rule."""

    def __init__(self, path: str, rule: str) -> None:
        super().__init__(f"{path}: {rule}" if path else rule)
        self.rule = rule


class Request(NamedTuple):
    """One request that is sound in itself."""

    name: str
    jobs: tuple["Description", ...] = ()
    """Of `submit`."""
    names: tuple[str, ...] = ()
    """Jobs, or iterations `job:3`, that are asked about."""
    with_children: bool = False
    all_finished: bool = False


class Size(NamedTuple):
    """How many cores or nodes: at least, at most (None: as many as there are), and how iterations share them."""

    least: int
    most: int | None
    scheduler: str = ""
    parts: int | None = None

    @property
    def exact(self) -> bool:
        """Whether it is one number."""
        return not self.scheduler and self.least == self.most


class Iteration(NamedTuple):
    """The iterations of a job: indices from `start` on, with their values if it has some."""

    start: int
    size: int
    values: tuple[str, ...] | None = None

    def value(self, at: int) -> str:
        """The `${itval}` of the iteration at this place."""
        return str(self.start + at) if self.values is None else self.values[at]


class Description(NamedTuple):
    """One job of a `submit`, after the variables that are known then were put in."""

    path: str
    """Where it stands in its request."""
    name: str
    program: str | None
    script: str | None
    args: tuple[str, ...]
    env: dict[str, str]
    wd: str | None
    stdin: str | None
    stdout: str | None
    stderr: str | None
    modules: tuple[str, ...]
    venv: str | None
    model: str
    model_options: dict[str, Any]
    cores: Size | None
    nodes: Size | None
    time_s: int | None
    gpus: int
    memory_mb: int | None
    iteration: Iteration | None
    after: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many jobs of rota it is."""
        return 1 if self.iteration is None else self.iteration.size


def request_variables(number: int, now: datetime.datetime) -> dict[str, str]:
    """The variables of one `submit` request; its jobs add their `jname`."""
    return {
        "rcnt": str(number),
        "uniq": str(uuid.uuid4()),
        "sname": "local",
        "date": str(now.date()),
        "time": str(now.time()),
        "dateTime": str(now),
    }


def read_request(data: Any, variables: Mapping[str, str], path: str = "") -> Request:
    """Check one request. `path` is where it stands, if it is one of several."""
    if not isinstance(data, dict):
        raise WrongRequestError(path, f"a request must be an object, not {_kind(data)}")
    name = data.get("request")
    if name not in REQUESTS:
        known = ", ".join(REQUESTS)
        what = "is missing" if name is None else f"'{str(name)[:40]}' is unknown"
        raise WrongRequestError(_join(path, "request"), f"{what}; the requests are {known}")
    if name in GOVERNOR:
        rule = f"'{name}' is for QCG's governor; here one manager has all nodes of the allocation"
        raise WrongRequestError(_join(path, "request"), rule)
    if name == "submit":
        return Request(name, _jobs(data, variables, path))
    if name in ("jobStatus", "jobInfo", "cancelJob", "removeJob"):
        params = _object(data, "params", path)
        return Request(name, names=_names(data, path), with_children=bool(params.get("withChilds")))
    if name == "control" and data.get("command") != FINISH_AFTER:
        raise WrongRequestError(_join(path, "command"), f"must be '{FINISH_AFTER}'")
    options = _object(data, "options", path) if name == "status" else {}
    return Request(name, all_finished=bool(options.get("allJobsFinished")))


def _names(data: Mapping[str, Any], path: str) -> tuple[str, ...]:
    names = data.get("jobNames")
    where = _join(path, "jobNames")
    if not isinstance(names, list) or not names:
        raise WrongRequestError(where, "must be a list of at least one name")
    for at, name in enumerate(names):
        if not isinstance(name, str):
            raise WrongRequestError(f"{where}[{at}]", f"must be a string, not {_kind(name)}")
    return tuple(names)


def _jobs(data: Mapping[str, Any], variables: Mapping[str, str], path: str) -> tuple[Description, ...]:
    jobs = data.get("jobs")
    where = _join(path, "jobs")
    if not isinstance(jobs, list) or not jobs:
        raise WrongRequestError(where, "must be a list of at least one job")
    out: list[Description] = []
    seen: dict[str, str] = {}
    for at, job in enumerate(jobs):
        read = _description(job, variables, f"{where}[{at}]")
        if read.name in seen:
            raise WrongRequestError(f"{read.path}.name", f"'{read.name}' is the name of {seen[read.name]} too")
        seen[read.name] = read.path
        out.append(read)
    return tuple(out)


def _description(job: Any, variables: Mapping[str, str], path: str) -> Description:
    if not isinstance(job, dict):
        raise WrongRequestError(path, f"a job must be an object, not {_kind(job)}")
    name = _text(job, "name", path)
    if not name:
        raise WrongRequestError(_join(path, "name"), "is missing")
    known = {**variables, "jname": substitute(name, variables)}
    job = _substituted(job, known)
    _only(job, ("name", "execution", "resources", "iteration", "dependencies", "attributes"), path)
    name = known["jname"]
    if wrong := [char for char in name if char in NOT_IN_NAMES or not char.isprintable()]:
        raise WrongRequestError(_join(path, "name"), f"'{name[:60]}' has {wrong[0]!r}, or an unknown variable")
    if ":" in name or name[0] in "@-" or len(name) > 200:
        rule = "must have no ':', begin with neither '@' nor '-', and be at most 200 characters long"
        raise WrongRequestError(_join(path, "name"), f"'{name[:60]}': a name {rule}")
    _object(job, "attributes", path)
    iteration = _iteration(job, path)
    resources = _resources(job, path, iteration)
    return Description(path, name, **_execution(job, path), **resources, iteration=iteration, after=_after(job, path))


# ---- the parts of a job ----------------------------------------------------------------------------------------------


def _execution(job: Mapping[str, Any], path: str) -> dict[str, Any]:
    if job.get("execution") is None:
        raise WrongRequestError(_join(path, "execution"), "is missing")
    execution = _object(job, "execution", path)
    where = _join(path, "execution")
    _only(execution, EXECUTION, where)
    texts = {key: _text(execution, key, where) for key in ("exec", "script", "wd", "stdin", "stdout", "stderr", "venv")}
    program, script = texts.pop("exec") or None, texts.pop("script") or None
    if program is None and script is None:
        raise WrongRequestError(where, "has neither exec nor script")
    if script is not None and any(execution.get(key) for key in ("exec", "args", "env")):
        raise WrongRequestError(_join(where, "script"), "cannot be given with exec, args or env")
    model = (_text(execution, "model", where) or "default").lower()
    if model not in MODELS:
        raise WrongRequestError(_join(where, "model"), f"'{model[:40]}' is unknown; the models are {', '.join(MODELS)}")
    options = _object(execution, "model_opts", where)
    return {
        **texts,
        "program": program,
        "script": script,
        "args": _words(execution, "args", where),
        "env": {str(key): _plain(value) for key, value in _object(execution, "env", where).items()},
        "modules": _words(execution, "modules", where, one=True),
        "model": model,
        "model_options": _model_options(options, _join(where, "model_opts")),
    }


def _model_options(options: Mapping[str, Any], path: str) -> dict[str, Any]:
    _only(options, ("mpirun", "mpirun_args", "srun_args"), path)
    out: dict[str, Any] = {}
    if mpirun := _text(options, "mpirun", path):
        out["mpirun"] = mpirun
    for key in ("mpirun_args", "srun_args"):
        if words := _words(options, key, path):
            out[key] = words
    return out


def _resources(job: Mapping[str, Any], path: str, iteration: Iteration | None) -> dict[str, Any]:
    none: dict[str, Any] = {"cores": Size(1, 1), "nodes": None, "time_s": None, "gpus": 0, "memory_mb": None}
    if job.get("resources") is None:
        return none
    resources, where = _object(job, "resources", path), _join(path, "resources")
    _only(resources, ("numCores", "numNodes", "wt", "nodeCrs"), where)
    cores = _size(resources, "numCores", where, iteration)
    nodes = _size(resources, "numNodes", where, iteration)
    if cores is None and nodes is None:
        raise WrongRequestError(where, "has neither numCores nor numNodes")
    crs = _consumables(resources, where)
    if crs and nodes is None:
        raise WrongRequestError(_join(where, "nodeCrs"), "is per node: numNodes is needed")
    return {
        "cores": cores,
        "nodes": nodes,
        "time_s": _wall_time(resources, where),
        "gpus": crs.get("gpu", 0),
        "memory_mb": crs.get("mem"),
    }


def _size(resources: Mapping[str, Any], key: str, path: str, iteration: Iteration | None) -> Size | None:
    given = resources.get(key)
    where = _join(path, key)
    if given is None:
        return None
    if isinstance(given, int) and not isinstance(given, bool):
        given = {"exact": given}
    if not isinstance(given, dict):
        raise WrongRequestError(where, f"must be a number or an object, not {_kind(given)}")
    _only(given, ("exact", "min", "max", "scheduler"), where)
    exact, least, most = (_count(given, word, where) for word in ("exact", "min", "max"))
    scheduler = given.get("scheduler")
    if exact is not None and (least is not None or most is not None or scheduler is not None):
        raise WrongRequestError(where, "exact cannot be given with min, max or scheduler")
    if scheduler is not None:
        if most is not None:
            raise WrongRequestError(where, "max cannot be given with a scheduler, which decides how much each one gets")
        if iteration is None:
            raise WrongRequestError(_join(where, "scheduler"), "divides among iterations: iteration is needed")
        name, parts = _scheduler(scheduler, _join(where, "scheduler"))
        return Size(least or 1, None, name, parts)
    if exact is None and least is None and most is None:
        raise WrongRequestError(where, "has none of exact, min, max")
    if least is not None and most is not None and least > most:
        raise WrongRequestError(where, f"min is {least}, and max {most}: min must not be above max")
    return Size(exact, exact) if exact is not None else Size(least or 1, most)


def _scheduler(given: Any, path: str) -> tuple[str, int | None]:
    if isinstance(given, str):  # so the client's simple form has it
        given = {"name": given}
    if not isinstance(given, dict):
        raise WrongRequestError(path, f"must be an object with a name, not {_kind(given)}")
    _only(given, ("name", "params"), path)
    name = (_text(given, "name", path) or "").lower()
    if name not in SCHEDULERS:
        known = " and ".join(SCHEDULERS)
        raise WrongRequestError(_join(path, "name"), f"'{name[:40]}' is unknown; the schedulers are {known}")
    params = _object(given, "params", path)
    parts = _count(params, "parts", _join(path, "params"))
    if parts == 0:
        raise WrongRequestError(_join(path, "params.parts"), "must be at least 1")
    return name, parts


def _consumables(resources: Mapping[str, Any], path: str) -> dict[str, int]:
    where, out = _join(path, "nodeCrs"), dict[str, int]()
    for name, count in _object(resources, "nodeCrs", path).items():
        kind = str(name).lower()
        if kind not in ("gpu", "mem"):
            raise WrongRequestError(_join(where, str(name)[:40]), "is unknown; there are gpu and mem")
        if kind in out:
            raise WrongRequestError(_join(where, str(name)), "is given twice")
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST:
            raise WrongRequestError(_join(where, str(name)), f"must be a number of at least 1, not {_shown(count)}")
        out[kind] = count
    return out


def _wall_time(resources: Mapping[str, Any], path: str) -> int | None:
    given = _text(resources, "wt", path)
    if given is None:
        return None
    match = _TIME.fullmatch(given.strip())
    hours, minutes, seconds = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total <= MOST:
        raise WrongRequestError(_join(path, "wt"), f"'{given[:40]}' is no time above 0: write it as in 1h30m, 10m, 90s")
    return total


def _iteration(job: Mapping[str, Any], path: str) -> Iteration | None:
    if job.get("iteration") is None:
        return None
    given, where = _object(job, "iteration", path), _join(path, "iteration")
    _only(given, ("start", "stop", "values"), where)
    start, stop, values = given.get("start"), given.get("stop"), given.get("values")
    if (stop is None) == (values is None):
        raise WrongRequestError(where, "must have either stop or values")
    if values is not None:
        if not isinstance(values, list) or not values:
            raise WrongRequestError(_join(where, "values"), "must be a list of at least one value")
        if start not in (None, 0):
            raise WrongRequestError(_join(where, "start"), "cannot be given with values, which are numbered from 0")
        return Iteration(0, len(values), tuple(_plain(value) for value in values))
    first, last = _count(given, "start", where) or 0, _count(given, "stop", where)
    assert last is not None
    if first >= last:
        raise WrongRequestError(where, f"start is {first}, and stop {last}: start must be below stop")
    return Iteration(first, last - first)


def _after(job: Mapping[str, Any], path: str) -> tuple[str, ...]:
    given, where = _object(job, "dependencies", path), _join(path, "dependencies")
    _only(given, ("after",), where)
    return _words(given, "after", where, one=True)


# ---- variables -------------------------------------------------------------------------------------------------------


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """A text with `${name}` and `$name` replaced where the name is known; `$$` is a dollar."""
    return string.Template(text).safe_substitute(variables) if "$" in text else text


def _substituted(data: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(data, str):
        return substitute(data, variables)
    if isinstance(data, dict):
        return {_substituted(key, variables): _substituted(value, variables) for key, value in data.items()}
    return [_substituted(value, variables) for value in data] if isinstance(data, list) else data


# ---- kinds of values -------------------------------------------------------------------------------------------------


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, int | float) and abs(value) < MOST else _kind(value)


def _plain(value: Any) -> str:
    """A value as a word of a command or a variable."""
    return value if isinstance(value, str) else str(value)


def _only(given: Mapping[str, Any], known: Sequence[str], path: str) -> None:
    for key in given:
        if key not in known:
            raise WrongRequestError(_join(path, str(key)[:40]), f"is unknown; there are {', '.join(known)}")


def _object(data: Mapping[str, Any], key: str, path: str) -> dict[str, Any]:
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise WrongRequestError(_join(path, key), f"must be an object, not {_kind(value)}")
    return value


def _text(data: Mapping[str, Any], key: str, path: str) -> str | None:
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise WrongRequestError(_join(path, key), f"must be a string, not {_kind(value)}")
    if value is not None and "\0" in value:
        raise WrongRequestError(_join(path, key), "has a NUL byte, which no program can be given")
    return value


def _count(data: Mapping[str, Any], key: str, path: str) -> int | None:
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise WrongRequestError(_join(path, key), f"must be a whole number from 0, not {_shown(value)}")
    return value


def _words(data: Mapping[str, Any], key: str, path: str, one: bool = False) -> tuple[str, ...]:
    value = data.get(key)
    if value is None:
        return ()
    if one and isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise WrongRequestError(_join(path, key), f"must be a list, not {_kind(value)}")
    return tuple(_checked_words(value, _join(path, key)))


def _checked_words(words: Sequence[Any], path: str) -> Iterator[str]:
    for at, word in enumerate(words):
        if isinstance(word, dict | list):
            raise WrongRequestError(f"{path}[{at}]", f"must be a word, not {_kind(word)}")
        if "\0" in (text := _plain(word)):
            raise WrongRequestError(f"{path}[{at}]", "has a NUL byte, which no program can be given")
        yield text

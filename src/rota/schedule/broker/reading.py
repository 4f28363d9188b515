"""Reading: tasks, queues and what is known of them, from JSON in the form of the vectors.

    {"task": {…}, "chunk": {…}, "files": […],
     "queues": {name: {…}}, "job_stats": {queue: {share: {state: n}}}, "extra": {…}}

A task that cannot be read is an error that names the field. A queue that cannot be read is kept, with its problem: it
is no candidate, and says why.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from rota.model.errors import UsageError
from rota.schedule.broker.queue import Queue
from rota.schedule.broker.task import Chunk, File, Rules, Task, rules_of
from rota.schedule.broker.world import Jobs, Link, Outcomes, UserJobs, World

__all__ = ["read_queue", "read_task", "read_world"]

QUEUE_NAMES = {
    "pandasite": "site", "storage_site": "site", "coreCount": "core_count", "corecount": "core_count",
    "fairsharePolicy": "fairshare_policy", "fairsharepolicy": "fairshare_policy", "maxDiskio": "max_diskio",
    "maxDiskIO": "max_diskio", "maxdiskio": "max_diskio", "pledgedCPU": "pledged_cpu", "pledgedcpu": "pledged_cpu",
    "directAccessLan": "direct_access_lan", "directAccessWan": "direct_access_wan",
}  # fmt: skip
"""A name in JSON → a field of a queue, if they differ."""
SPACE = {"storage_free_gb": 1, "storage_expired_gb": 1, "storage_min_free_gb": -1, "storage_unavailable_gb": -1}
NOT_NEGATIVE = ("core_count", "corepower", "maxrss", "minrss", "maxtime", "mintime", "maxwdir", "transferringlimit")
SIZES = (
    "core_count", "merge_core_count", "ram_count", "base_ram_count", "merge_ram_count", "cpu_time", "base_walltime",
    "walltime", "work_disk_count", "io_intensity", "disk_io", "cpu_efficiency",
)  # fmt: skip
ALIASES = {
    "jediTaskID": "taskId", "resource_type": "resourceType", "container_name": "containerName", "diskIO": "diskIo",
    "task_class": "userClass", "allowInputLAN": "allowInputLan", "useLocalIO": "useLocalIo", "avoidVP": "avoidVp",
    "onlyTagsForFC": "onlyTagsForFc", "nGBPerJob": "nGbPerJob", "maxAttemptES": "maxAttemptEs",
    "useJobCloning": "jobCloning",
}  # fmt: skip
CHUNK_ALIASES = {"merging": "isMerging", "useScout": "scouting", "preassignedSite": "preassigned"}


def read_task(data: Mapping[str, Any]) -> Task:
    """The task of a document: its `task`, `chunk` and `files`. UsageError names the field that is wrong."""
    said = data.get("task")
    if not isinstance(said, Mapping):
        raise UsageError("task: an object is expected")
    fields = {ALIASES.get(name, name): value for name, value in said.items()}
    extra = data.get("extra") or {}
    if isinstance(fields.get("architecture"), Mapping):
        fields["architecture"] = msgspec.json.encode(fields["architecture"]).decode()
    for name in ("includedSite", "excludedSite"):
        if name in extra and name not in fields:
            fields[name] = extra[name]
    chunk = {CHUNK_ALIASES.get(name, name): value for name, value in (data.get("chunk") or {}).items()}
    files = tuple(_convert(data.get("files") or [], list[File], "files"))
    for number, each in enumerate(files):
        if each.bytes < 0 or (each.events or 0) < 0:
            raise UsageError(f"files[{number}] ({each.lfn}): its size is negative")
    named = {name: fields[name] for name in _camel(Rules) if fields.get(name) is not None}
    rules = rules_of(fields.get("splitRule"), _convert(named, Rules, "task"))
    own = {name: value for name, value in fields.items() if name not in ("rules", "chunk", "files")}
    task: Task = _convert({name: value for name, value in own.items() if value is not None}, Task, "task")
    for name in SIZES:
        value = getattr(task, name)
        if value is not None and value < 0:
            raise UsageError(f"task.{_camel_name(name)} is {value:g}: it cannot be negative")
    chunk = {name: value for name, value in chunk.items() if value is not None}
    return replace(task, rules=rules, chunk=_convert(chunk, Chunk, "chunk"), files=files)


def _camel(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))


def _camel_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _convert(value: Any, kind: Any, what: str) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{what}: {error}") from None


def read_queue(name: str, data: Any) -> Queue:
    """A queue; what is wrong with it becomes its `problem`."""
    if not isinstance(data, Mapping):
        return Queue(name=name, problem=f"it is {data!r}: an object is expected")
    fields: dict[str, Any] = {"name": name}
    for key, value in data.items():
        if value is not None and key not in SPACE and key not in ("blacklisted", "catchall", "num_slots", "name"):
            fields[QUEUE_NAMES.get(str(key), str(key))] = value
    try:
        fields["blacklisted"] = data.get("blacklisted") in ("Y", True, 1)
        fields["catchall"] = _catchall(data.get("catchall"))
        fields["num_slots"] = _slots(data.get("num_slots") or {})
        fields["storage_free_gb"] = _space(data)
        if isinstance(fields.get("releases"), str):
            fields["releases"] = [fields["releases"]]
        found = msgspec.convert(fields, Queue, strict=False)
    except (msgspec.ValidationError, UsageError, TypeError, ValueError) as error:
        kind = data.get("type")
        known = kind if kind in ("production", "analysis", "unified") else "unified"
        return Queue(name=name, type=known, problem=f"its description cannot be read: {_short(error)}")
    for field in NOT_NEGATIVE:
        if (getattr(found, field) or 0) < 0:
            return replace(found, problem=f"its {field} is {getattr(found, field):g}: it cannot be negative")
    if "per_core_attr" in found.catchall:
        found = replace(found, maxrss=(found.maxrss or 0) * found.cores, minrss=(found.minrss or 0) * found.cores)
    return found


def _short(error: Exception) -> str:
    return str(error).replace("`", "'").replace("$.", "")


def _catchall(value: Any) -> dict[str, str | None]:
    if value is None or value == "":
        return {}
    if isinstance(value, Mapping):
        return {str(key): None if each is None else str(each) for key, each in value.items()}
    parts = value.split(",") if isinstance(value, str) else list(value)
    found = {}
    for part in parts:
        key, sign, each = str(part).strip().partition("=")
        if key:
            found[key] = each if sign else None
    return found


def _slots(value: Any) -> dict[str | None, dict[str | None, int]]:
    if not isinstance(value, Mapping):
        raise UsageError("num_slots: an object {share: {resource type: slots}} is expected")

    def named(key: Any) -> str | None:
        return None if key in (None, "", "None", "null") else str(key)

    found: dict[str | None, dict[str | None, int]] = {}
    for share, by_type in value.items():
        rows = by_type if isinstance(by_type, Mapping) else {None: by_type}
        found[named(share)] = {named(key): int(count) for key, count in rows.items() if count is not None}
    return found


def _space(data: Mapping[str, Any]) -> float | None:
    if data.get("storage_free_gb") is None:
        return None
    return sum(sign * float(data.get(name) or 0) for name, sign in SPACE.items())


def read_world(data: Mapping[str, Any], software: Mapping[str, Any] | None = None) -> World:
    """What is known beside the task: `queues`, `job_stats` and `extra` of a document."""
    said = data.get("queues")
    if not isinstance(said, Mapping) or not said:
        raise UsageError("queues: an object {name: {…}} with at least one queue is expected")
    queues = {name: read_queue(name, one) for name, one in said.items()}
    extra = data.get("extra") or {}
    if not isinstance(extra, Mapping):
        raise UsageError("extra: an object is expected")
    problems: dict[str, str] = {}
    stats = data.get("job_stats") or {}
    return World(
        queues=queues,
        jobs=_by_queue(stats, lambda row: {share: _jobs(one) for share, one in row.items()}, problems, "job_stats"),
        jobs_by_type=_by_queue(
            extra.get("resource_type_stats") or {},
            lambda row: {kind: _jobs(one) for kind, one in row.items()},
            problems,
            "resource_type_stats",
        ),
        workers=_by_queue(extra.get("workers") or {}, _workers, problems, "workers"),
        streaming=frozenset(_listed(extra.get("ups_queues")))
        | {name for name, queue in queues.items() if queue.capability == "ucore" and queue.workflow == "pull_ups"},
        pilots={**(extra.get("pilots") or {}), **dict.fromkeys(extra.get("queues_without_pilot") or (), 0)},
        hours_since_start=dict(extra.get("hours_since_start") or {}),
        live=dict(extra.get("live") or {}),
        diskio=dict(extra.get("avg_diskio") or {}),
        **_network(extra, problems),
        **_files(extra),
        locked=frozenset(extra.get("locked") or ()),
        cores_used=dict(extra.get("cores_used") or {}),
        software=software or extra.get("software") or {},
        **_users(extra, problems),
        problems=problems,
    )


def _by_queue(data: Any, read: Callable[[Any], Any], problems: dict[str, str], what: str) -> dict[str, Any]:
    """Read a table by queue; a row that cannot be read becomes a problem of its queue."""
    found = {}
    for name, row in (data if isinstance(data, Mapping) else {}).items():
        try:
            found[name] = read(row)
        except (msgspec.ValidationError, UsageError, AttributeError, TypeError, ValueError) as error:
            problems[name] = f"what is known of it cannot be read: {what}: {_short(error)}"
    return found


def _jobs(row: Any) -> Jobs:
    found = msgspec.convert({key: value for key, value in row.items() if value is not None}, Jobs, strict=False)
    for name in Jobs.__struct_fields__:
        if getattr(found, name) < 0:
            raise UsageError(f"{name} is {getattr(found, name)}: it cannot be negative")
    return found


def _workers(row: Any) -> int:
    if not isinstance(row, Mapping):
        return int(row)
    total = 0
    for key, value in row.items():
        if isinstance(value, Mapping):
            total += _workers(value)
        elif key in ("running", "submitted"):
            total += int(value)
    return total


def _listed(value: Any) -> list[str]:
    return list((value.get("list") if isinstance(value, Mapping) else value) or ())


QUEUED = "_queued"


def _network(extra: Mapping[str, Any], problems: dict[str, str]) -> dict[str, Any]:
    links, total = {}, {}
    for site, row in (extra.get("network_to_nucleus") or {}).items():
        queued = {
            key[: -len(QUEUED)]: int(value) for key, value in row.items() if key.endswith(QUEUED) and value is not None
        }
        if site == "total":
            total = queued
            continue
        hour, day, week = (row.get(f"dashb_mbps_{window}") for window in ("1h", "1d", "1w"))
        links[site] = Link(row.get("AGIS_closeness"), queued, hour, day, week, row.get("age_minutes") or 0)
    writable = extra.get("nucleus_writable", True)
    return {"links": links, "queued_to_nucleus": total, "nucleus_writable": bool(writable)}


def _files(extra: Mapping[str, Any]) -> dict[str, Any]:
    def counted(rows: Mapping[str, Any]) -> dict[str, int]:
        return {name: int(count) for name, count in rows.items() if name != "default" and count != "all"}

    said = extra.get("local_files") or {}
    local = counted(said)
    local.update(dict.fromkeys(extra.get("queues_without_data") or (), 0))
    default = said.get("default", "all")
    return {
        "files_local": local,
        "files_local_default": None if default in ("all", None) else int(default),
        "files_tape": counted(extra.get("tape_files") or {}),
        "source_readable": bool(extra.get("source_readable", True)),
        "incomplete": tuple(extra.get("incomplete_datasets") or ()),
    }


def _users(extra: Mapping[str, Any], problems: dict[str, str]) -> dict[str, Any]:
    def of_users(row: Any) -> dict[str, dict[str, UserJobs]]:
        return {
            share: {
                name: UserJobs(int(one.get("nQueue") or 0), int(one.get("nRunning") or 0))
                for name, one in users.items()
            }
            for share, users in row.items()
        }

    counts, rate = extra.get("user_counts") or {}, extra.get("start_rate_per_hour") or 0
    outcomes = next((value for key, value in extra.items() if key.startswith("job_outcomes")), None) or {}
    return {
        "user_jobs": _by_queue(extra.get("user_stats") or {}, of_users, problems, "user_stats"),
        "user": str(extra.get("user") or "me"),
        "start_rate": dict(rate) if isinstance(rate, Mapping) else {},
        "start_rate_default": 0.0 if isinstance(rate, Mapping) else float(rate),
        "outcomes": _by_queue(
            outcomes, lambda row: msgspec.convert(dict(row), Outcomes, strict=False), problems, "job_outcomes"
        ),
        "used": frozenset(extra.get("used_by_task") or ()),
        "user_running": int(counts.get("nRunJobs") or 0),
        "user_queued": int(counts.get("nQueuedJobs") or 0),
        "user_running_cores": int(counts.get("nRunCores") or 0),
        "user_queued_cores": int(counts.get("nQueuedCores") or 0),
        "quota_percent": 101.0 if extra.get("quota_ok") is False else extra.get("quota_percent"),
        "share_usage_percent": extra.get("share_usage_percent"),
        "slots_left": extra.get("slots_left"),
    }

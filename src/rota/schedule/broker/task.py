"""Tasks: what is brokered. A task makes many jobs that are alike; a chunk is the slice of its input looked at now.

The names in JSON are the reference's. Units: memory and scratch MB, time seconds, diskIO and ioIntensity kB/s, cpuTime
HS06 seconds per event, sizes of files bytes.
"""

from typing import Any

from msgspec import Struct

from rota.model.errors import UsageError

__all__ = ["RULES", "Chunk", "File", "Rules", "Task", "rules_of"]


class File(Struct, frozen=True):
    """A file of the input."""

    lfn: str
    bytes: int = 0
    events: int | None = None


class Rules(Struct, frozen=True, rename="camel"):
    """What a task asks of the way in which it is split and placed."""

    n_files_per_job: int | None = None
    n_events_per_job: int | None = None
    n_gb_per_job: float | None = None
    max_core_count: int | None = None
    ip_connectivity: str | None = None
    ip_stack: str | None = None
    allow_input_lan: str | None = None
    """`use` or `only`: input is read directly from the local storage."""
    use_local_io: bool = False
    avoid_vp: bool = False
    only_tags_for_fc: bool = False
    merge_output: bool = False
    t1_weight: int = 0
    n_jumbo_jobs: int | None = None
    dynamic_num_events: int | None = None
    """Least granularity, in events, if their number per job is chosen by the site."""
    max_events_per_job: int | None = None
    n_es_consumers: int | None = None
    max_attempt_es: int | None = None
    full_chain: str | None = None
    """`only`, `require` or `capable`."""
    input_pre_staging: bool = False
    job_cloning: bool = False
    n_sites_per_job: int | None = None
    disable_reassign: bool = False
    limited_sites: str | None = None
    use_scout: str | None = None


RULES: dict[str, tuple[str, dict[str, Any] | None]] = {
    "NF": ("n_files_per_job", None),
    "NE": ("n_events_per_job", None),
    "NG": ("n_gb_per_job", None),
    "CC": ("max_core_count", None),
    "IP": ("ip_connectivity", {"1": "full", "2": "http"}),
    "IK": ("ip_stack", {"4": "IPv4", "6": "IPv6"}),
    "IL": ("allow_input_lan", {"1": "use", "2": "only"}),
    "LI": ("use_local_io", {"1": True, "0": False}),
    "AV": ("avoid_vp", {"1": True, "0": False}),
    "OT": ("only_tags_for_fc", {"1": True, "0": False}),
    "MO": ("merge_output", {"1": True, "0": False}),
    "TW": ("t1_weight", None),
    "NJ": ("n_jumbo_jobs", None),
    "DY": ("dynamic_num_events", None),
    "MX": ("max_events_per_job", None),
    "EC": ("n_es_consumers", None),
    "XA": ("max_attempt_es", None),
    "FU": ("full_chain", {"1": "only", "2": "require", "3": "capable"}),
    "IS": ("input_pre_staging", {"1": True, "0": False}),
    "UC": ("job_cloning", {"1": True, "2": True, "3": True, "0": False}),
    "NS": ("n_sites_per_job", None),
    "DI": ("disable_reassign", {"1": True, "0": False}),
    "LS": ("limited_sites", {"1": "allow", "2": "deny", "3": "both"}),
    "US": ("use_scout", {"1": "no", "2": "yes", "3": "done"}),
}
"""Letters of a split rule → (field, what its values mean; None: a number)."""


def rules_of(text: str | None, base: Rules | None = None) -> Rules:
    """The rules that a text such as `NF=1,IP=1` says; letters that nothing here looks at are passed over."""
    found: dict[str, Any] = {}
    for part in (text or "").split(","):
        letters, sign, value = part.strip().partition("=")
        known = RULES.get(letters)
        if known is None:
            if part.strip() and not sign:
                raise UsageError(f"splitRule: '{part}' is not of the form NF=1")
            continue
        name, meanings = known
        if meanings is None:
            try:
                found[name] = float(value) if name == "n_gb_per_job" else int(value)
            except ValueError:
                raise UsageError(f"splitRule: {letters}={value}: a number is expected") from None
        elif value in meanings:
            found[name] = meanings[value]
        else:
            raise UsageError(f"splitRule: {letters}={value}: there are {', '.join(sorted(meanings))}")
    before = {} if base is None else {name: getattr(base, name) for name in Rules.__struct_fields__}
    return Rules(**{**before, **found})


class Chunk(Struct, frozen=True, rename="camel"):
    """The slice of a task's input that is turned into jobs now."""

    scouting: bool | None = None
    """Whether its jobs are scouts; None: if not all files are to be used yet."""
    is_merging: bool = False
    """Whether it merges the output of earlier jobs."""
    ram_count: int | None = None
    preassigned: str | None = None
    """The queue where what is merged was made."""
    hours_since_modification: float | None = None
    """Since the input last changed; None: never since it was made."""
    n_files: int = 0
    n_files_to_be_used: int | None = None
    ready_events: int | None = None
    jobs: int | None = None
    """How many jobs it would make; None: one per group of files."""
    distributed: bool = False
    """Whether a dataset of it is spread over many places on purpose."""
    n_datasets: int = 1


class Task(Struct, frozen=True, rename="camel"):
    """What is brokered."""

    task_id: int | str | None = None
    vo: str = "atlas"
    prod_source_label: str = "managed"
    processing_type: str = ""
    working_group: str | None = None
    user_name: str | None = None
    gshare: str | None = None
    resource_type: str | None = None
    task_priority: int = 0
    current_priority: int = 0
    nucleus: str | None = None
    cloud: str | None = None
    site: str | None = None
    hours_frozen: float | None = None
    """Since it was last brokered with success; None: it is not frozen."""
    core_count: int | None = None
    merge_core_count: int | None = None
    ram_count: int | None = None
    ram_unit: str | None = None
    base_ram_count: int | None = None
    merge_ram_count: int | None = None
    cpu_time: float | None = None
    cpu_time_unit: str | None = None
    cpu_efficiency: float | None = None
    base_walltime: float | None = None
    walltime: float | None = None
    out_disk_count: float | None = None
    out_disk_unit: str | None = None
    work_disk_count: float | None = None
    work_disk_unit: str | None = None
    io_intensity: float | None = None
    disk_io: float | None = None
    architecture: str | None = None
    trans_home: str | None = None
    trans_uses: str | None = None
    container_name: str | None = None
    event_service: bool = False
    split_rule: str | None = None
    included_site: tuple[str, ...] | str | None = None
    excluded_site: tuple[str, ...] | str | None = None
    user_class: str | None = None
    """S, A, B or C: how much of its share its user has (modern)."""
    cpu_level: str | None = None
    """The level of CPU that it prefers (modern)."""
    rules: Rules = Rules()
    chunk: Chunk = Chunk()
    files: tuple[File, ...] = ()

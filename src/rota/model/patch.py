"""Changing templates: what a `modify`, or a `retry` with changes, says of the jobs it means.

A patch merges: what it does not name stays as it is, environment variables are set or unset one by one, limits are
added or dropped one by one, and so are dependencies. Amounts may be given relative to what a job asks for now (`x2`,
`+1G`).
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from rota.model.amounts import MAX_BYTES, MAX_SECONDS
from rota.model.batch import BatchSpec, Dependency, Template, most_failures, scout_count
from rota.model.errors import UsageError
from rota.model.fields import OPTIONS
from rota.model.needs import Needs

__all__ = ["BatchPatch", "Change", "Patch", "decode_patch", "patched", "respecified"]


class Change(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An amount relative to the present one: `times` it, `plus` so much."""

    times: float = 1.0
    plus: int = 0


Amount = int | Change | UnsetType
Text = str | UnsetType | None


class BatchPatch(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What changes about whole batches. Fields are those of a BatchSpec."""

    name: str | UnsetType = UNSET
    """The new name; empty: none."""
    after: tuple[Dependency, ...] = ()
    """Dependencies to add; one with the same target takes the place of the old one."""
    after_drop: tuple[str, ...] = ()
    """Targets of dependencies to drop."""
    after_none: bool = False
    """Whether all dependencies that there are now are dropped."""
    require_known: bool = False
    not_before: float | UnsetType | None = UNSET
    at_once: int | UnsetType | None = UNSET
    max_failures: int | str | UnsetType | None = UNSET
    scouts: int | str | UnsetType | None = UNSET
    """A number, a share `10%`, or `off`; None: as usual."""
    on_batch_end: str | UnsetType = UNSET
    """The command line to run at the end of the batch; empty: none."""


class Patch(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What changes about jobs. Fields are those of a Template and of its Needs."""

    memory: Amount = UNSET
    disk: Amount = UNSET
    time_s: Amount = UNSET
    cores: Amount = UNSET
    cores_most: int | UnsetType = UNSET
    nodes: int | UnsetType = UNSET
    gpus: int | UnsetType = UNSET
    gpu_share: int | UnsetType = UNSET
    bind: str | UnsetType = UNSET
    named: tuple[tuple[str, int], ...] | UnsetType = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET
    site: Text = UNSET
    argv: tuple[str, ...] | UnsetType = UNSET
    shell: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    policy: str | UnsetType = UNSET
    retries: int | UnsetType = UNSET
    retry_on: tuple[str, ...] | UnsetType = UNSET
    never_retry_on: tuple[str, ...] | UnsetType = UNSET
    no_retry_after_s: int | UnsetType | None = UNSET
    limits_add: tuple[str, ...] = ()
    limits_drop: tuple[str, ...] = ()
    cwd: str | UnsetType = UNSET
    set: dict[str, str | None] = {}
    """Environment variables to set; None takes one away."""
    env_from: Literal["submit", "site", "none"] | UnsetType = UNSET
    stdin: Text = UNSET
    stdout: Text = UNSET
    stderr: Text = UNSET
    modules: tuple[str, ...] | UnsetType = UNSET
    setup: Text = UNSET
    enforce: tuple[str, ...] | UnsetType = UNSET
    grace_s: int | UnsetType = UNSET
    cap: int | UnsetType = UNSET
    rerunnable: bool | UnsetType = UNSET
    group: str | UnsetType = UNSET
    override: Literal["never", "higher", "always"] | UnsetType = UNSET
    workdir: Literal["shared", "unique"] | UnsetType = UNSET
    cleanup: Literal["success", "failure", "always", "never"] | UnsetType = UNSET
    change_home: bool | UnsetType = UNSET
    on_success: tuple[str, ...] | UnsetType = UNSET
    on_failure: tuple[str, ...] | UnsetType = UNSET
    on_exit: tuple[str, ...] | UnsetType = UNSET
    behaviour_s: int | UnsetType = UNSET
    remove_on: Literal["success", "failure", "exit"] | UnsetType | None = UNSET
    warn: tuple[str, int] | UnsetType | None = UNSET
    options_add: tuple[tuple[str, str], ...] = ()
    options_drop: tuple[str, ...] = ()
    batch: BatchPatch | None = None
    """What changes about the whole batches of the jobs."""
    leftovers: Literal["end", "wait", "keep"] | UnsetType = UNSET
    container: Text = UNSET
    engine: Literal["auto", "podman", "docker", "apptainer", "singularity", "ch-run"] | UnsetType = UNSET
    mounts: tuple[str, ...] | UnsetType = UNSET
    nodes_most: int | UnsetType = UNSET
    span: str | UnsetType = UNSET
    whole: bool | UnsetType = UNSET
    variants: tuple[tuple[tuple[str, int], ...], ...] | UnsetType = UNSET
    model: Literal["default", "threads", "openmpi", "intelmpi", "mpich", "hydra", "srunmpi"] | UnsetType = UNSET
    mpirun: Text = UNSET
    mpirun_args: tuple[str, ...] | UnsetType = UNSET
    env_style: tuple[str, ...] | UnsetType = UNSET
    inputs: tuple[str, ...] | UnsetType = UNSET
    outputs: tuple[str, ...] | UnsetType = UNSET


_AMOUNTS = {"memory": MAX_BYTES, "disk": MAX_BYTES, "time_s": MAX_SECONDS, "cores": 10**12}
_NEEDS = [
    "cores_most",
    "nodes_most",
    "whole",
    "gpu_share",
    *(row.target for row in OPTIONS.values() if row.place == "needs" and not row.relative),
]
_PLAIN = [row.target for row in OPTIONS.values() if row.place == "template" and row.name not in ("limits", "env")]


def decode_patch(raw: bytes) -> Patch:
    """A Patch from JSON; an error names the field."""
    try:
        return msgspec.json.decode(raw, type=Patch)
    except msgspec.MsgspecError as error:
        raise UsageError(f"the changes: {error}") from None


def patched(template: Template, patch: Patch, asked: Needs) -> Template:
    """The template with the changes; `asked` is what its jobs ask for now, with what was learned.

    Raises UsageError for a change that gives something impossible.
    """
    needs: dict[str, Any] = {name: value for name in _NEEDS if (value := getattr(patch, name)) is not UNSET}
    for name, most in _AMOUNTS.items():
        change = getattr(patch, name)
        if change is not UNSET:
            needs[name] = _amount(name, change, getattr(template.needs, name), getattr(asked, name), most)
    if patch.options_add or patch.options_drop:
        kept = {key: value for key, value in template.needs.options if key not in patch.options_drop}
        needs["options"] = tuple(sorted((kept | dict(patch.options_add)).items()))
    if "cores" in needs:
        needs = {"cores_most": 0, "whole": False} | needs
    if "nodes" in needs:
        needs = {"nodes_most": 0} | needs
    changes: dict[str, Any] = {name: value for name in _PLAIN if (value := getattr(patch, name)) is not UNSET}
    if patch.workdir == "shared":  # what was said of a directory of its own goes with it, unless it is said anew
        changes = {"cleanup": None, "change_home": False} | changes
    if needs:
        changes["needs"] = replace(template.needs, **needs)
        if not {"memory", "disk", "time_s"}.isdisjoint(needs) and template.override == "never":
            changes.setdefault("override", "higher")
    said = [name for name in ("cwd", "stdin", "stdout", "stderr") if name in changes]
    over = {*said, *(f"env.{key}" for key in patch.set)}
    if not over <= {*template.over}:
        changes["over"] = tuple(sorted(over | {*template.over}))
    if patch.set:
        merged = {**template.set, **patch.set}
        changes["set"] = {name: value for name, value in merged.items() if value is not None}
    if patch.limits_add or patch.limits_drop:
        dropped = {*patch.limits_drop} - {*patch.limits_add}
        changes["limits"] = tuple(sorted(({*template.limits} | {*patch.limits_add}) - dropped))
    if patch.argv is not UNSET:
        changes["argv"], changes["shell"] = patch.argv, None
    elif patch.shell is not UNSET:
        changes["argv"], changes["shell"] = None, patch.shell
    out = replace(template, **changes).with_time_ends() if changes else template
    out.check()
    return out


def respecified(batch: int, spec: BatchSpec, patch: BatchPatch) -> BatchSpec:
    """The specification of a batch with the changes, but for what runs at its end.

    Raises UsageError for a change that gives something impossible.
    """
    changes: dict[str, Any] = {
        name: value for name in ("name", "not_before", "at_once") if (value := getattr(patch, name)) is not UNSET
    }
    if patch.scouts is not UNSET:
        changes["scouts"] = scout_count(patch.scouts)
    if patch.max_failures is not UNSET:
        changes["max_failures"] = most_failures(patch.max_failures, spec.count)
    have = {} if patch.after_none else {dependency.target: None for dependency in spec.after}
    for target in patch.after_drop:
        if target not in have:
            words = f"it waits for {', '.join(list(have)[:10])}" if have else "it waits for nothing"
            raise UsageError(f"--drop-after {target}: batch {batch} does not wait for that: {words}")
    if patch.after or patch.after_drop or patch.after_none:
        gone = {*patch.after_drop, *(dependency.target for dependency in patch.after)}
        kept = [dependency for dependency in spec.after if dependency.target in have and dependency.target not in gone]
        changes["after"] = (*kept, *patch.after)
    out = replace(spec, **changes) if changes else spec
    out.check()
    return out


def _amount(name: str, change: int | Change, given: int | None, asked: int | None, most: int) -> int:
    if isinstance(change, int):
        return change
    base = given if given is not None else asked
    if base is None:
        word = name.removesuffix("_s")
        raise UsageError(f"{word}: these jobs ask for none, so there is nothing to change: give an amount")
    value = base * change.times + change.plus
    if not 0 <= value <= most:
        raise UsageError(f"{name.removesuffix('_s')}: {value:.0f} is not possible")
    return round(value)

"""Software and hardware: releases, nightlies, containers, and the CPUs and GPUs of queues with `releases` AUTO."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from rota.schedule.broker.architecture import Architecture, ArchitectureError, Cpu, Gpu, parse_architecture
from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.context import Context
from rota.schedule.broker.decision import Skip
from rota.schedule.broker.queue import Queue
from rota.schedule.broker.task import Task

__all__ = ["Asked", "accepts", "asked_of", "check_software", "left_to_release_check"]

NIGHTLY = re.compile(r"rel_\d+(\n|$)|\d{4}-\d{2}-\d{2}T\d{4}$")
RELEASE = re.compile(r"-\d+\.\d+\.\d+$")
EVERYWHERE = ("any", "/cvmfs")
Entry = Mapping[str, Any]


class Asked(Struct, frozen=True):
    """What a task asks of the software of a queue."""

    architecture: Architecture = Architecture()
    platform: str | None = None
    cvmfs_tag: str | None = None
    project: str | None = None
    version: str | None = None
    container_name: str | None = None
    only_tags: bool = False
    need_container: bool = False
    need_cvmfs: bool = False
    """Whether nothing but a mounted release will do."""


def asked_of(task: Task, context: Context) -> Asked | None:
    """What a task asks for; None: nothing. ArchitectureError: nobody can tell."""
    found = parse_architecture(task.architecture, context.profile)
    base = Asked(
        found, found.sw_platform or None, container_name=task.container_name or None,
        only_tags=context.rules.only_tags_for_fc, need_container=found.base_platform is not None,
    )  # fmt: skip
    home = task.trans_home
    if context.flow == "analysis" and home:
        home = home.partition("-")[2].replace("_", "-") if "-" in home else home
    if not home:
        return (
            base
            if found.hardware or base.container_name or (found.sw_platform and context.flow == "analysis")
            else None
        )
    if NIGHTLY.search(home) and not RELEASE.search(home):
        return _with(base, cvmfs_tag="nightlies", need_cvmfs=not context.modern)
    project, _, version = home.partition("-")
    return _with(base, cvmfs_tag="atlas", project=project, version=version)


def _with(asked: Asked, **changes: Any) -> Asked:
    return Asked(**{name: changes.get(name, getattr(asked, name)) for name in Asked.__struct_fields__})


def check_software(context: Context) -> Callable[[Queue], Skip | None] | None:
    """The queue must have the software and hardware that the task asks for."""
    try:
        asked = asked_of(context.task, context)
    except ArchitectureError as error:
        no = Skip("-cache", f"what the task asks for cannot be read: {error}")
        return lambda queue: no
    if asked is None or (
        context.flow == "production" and not context.task.trans_home and not asked.architecture.hardware
    ):
        return None
    if context.flow == "analysis" and context.site_pre:
        return None
    published, values = context.world.software, context.values

    def check(queue: Queue) -> Skip | None:
        entry = published.get(queue.unified) if queue.releases == ("AUTO",) else None
        if entry is None:
            if left_to_release_check(asked):
                if "ANY" in queue.releases or not queue.releases:
                    return None
                if context.task.trans_home is None or f"{asked.project}-{asked.version}" in queue.releases:
                    return None
                words = f"asks for {context.task.trans_home}, it has {', '.join(queue.releases)}"
                return Skip("-cache", words)
            if "ANY" in queue.releases and values.on("RELEASES_ANY_SKIPS_CHECK"):
                return None
            return Skip("-cache", "the task asks for hardware or a container, and it publishes nothing of these")
        why = accepts(entry, asked, published.get("ALL"), values)
        tag = "-regexpcmtconfig" if why is not None and why.startswith("no platform") and context.modern else "-cache"
        return None if why is None else Skip(tag, why)

    return check


def left_to_release_check(asked: Asked) -> bool:
    """Whether a queue that publishes nothing may be asked by its list of releases alone."""
    return not asked.container_name and not asked.architecture.hardware


def accepts(entry: Entry, asked: Asked, every: Entry | None, thresholds: Thresholds) -> str | None:
    """Why a queue that publishes `entry` does not accept what is asked for; None: it does.

    `every` is what is published of all queues: containers by their names.
    """
    why = _hardware(entry, asked.architecture, thresholds)
    if why is not None:
        return why
    if not (asked.cvmfs_tag or asked.platform or asked.project or asked.version or asked.container_name):
        return None
    if asked.container_name:
        return _container(entry, asked.container_name, asked.only_tags, every)
    return _release(entry, asked, thresholds)


def _hardware(entry: Entry, asked: Architecture, thresholds: Thresholds) -> str | None:
    described = entry.get("architectures") or ()
    if not isinstance(described, Sequence) or any(not isinstance(one, Mapping) for one in described):
        return "what it publishes of its architectures cannot be read: a list of objects is expected"
    by_type = {one.get("type"): one for one in described}
    cpu, gpu = by_type.get("cpu"), by_type.get("gpu")
    for name, device, wanted in (("CPU", cpu, asked.cpus), ("GPU", gpu, asked.gpu)):
        if device is not None and wanted is None and _exclusive(device):
            return f"it is only for tasks that ask for a {name}"
    if not asked.hardware:
        return None
    if not described:
        return "it publishes nothing of its hardware"
    modern, empty_is_any = thresholds.profile == "modern", thresholds.on("EMPTY_HARDWARE_IS_ANY")
    if asked.cpus is not None:
        if cpu is None:
            return "it publishes nothing of its CPUs"
        whys = [_device(cpu, _of_cpu(one), modern, empty_is_any) for one in asked.cpus]
        if all(why is not None for why in whys):
            return whys[0]
    if asked.gpu is not None:
        if gpu is None:
            return "it has no GPU"
        return _device(gpu, _of_gpu(asked.gpu), modern, empty_is_any)
    return None


def _exclusive(device: Entry) -> bool:
    return any("excl" in value for value in device.values() if isinstance(value, list | tuple))


def _of_cpu(cpu: Cpu) -> tuple[tuple[str, str], ...]:
    return (("arch", cpu.arch), ("vendor", cpu.vendor), ("instr", cpu.instr))


def _of_gpu(gpu: Gpu) -> tuple[tuple[str, str], ...]:
    return (("vendor", gpu.vendor), ("model", gpu.model))


def _device(device: Entry, asked: tuple[tuple[str, str], ...], modern: bool, empty_is_any: bool) -> str | None:
    """Why a device is not the one asked for; None: it is."""
    for key, value in asked:
        has = device.get(key)
        if has is None:
            if value == "*":
                continue
            return f"asks for {key} {value}, of which it publishes nothing"
        if value == "*":
            if "excl" in has:
                return f"it is only for tasks that ask for {key} {' or '.join(one for one in has if one != 'excl')}"
            continue
        if "any" in has or value in has or (empty_is_any and "" in has):
            continue
        if modern and key == "arch" and any(one and re.fullmatch(value, one) for one in has):
            continue
        return f"asks for {key} {value}, it has {', '.join(one for one in has if one) or 'none'}"
    return None


def _container(entry: Entry, name: str, only_tags: bool, every: Entry | None) -> str | None:
    containers, tags = entry.get("containers") or (), entry.get("tags") or ()
    if not only_tags and any(one in containers for one in EVERYWHERE):
        return None
    if any(name == tag.get("container_name") or name in (tag.get("sources") or ()) for tag in tags):
        return None
    if only_tags:
        return f"none of its tags has the container {name}"
    sources = [name]
    for tag in (every or {}).get("tags") or ():
        if tag.get("container_name") == name:
            sources += tag.get("sources") or ()
    if any(source.startswith(prefix) for source in sources for prefix in containers):
        return None
    return f"it has no container {name}: {', '.join(containers) or 'none'}"


def _release(entry: Entry, asked: Asked, thresholds: Thresholds) -> str | None:
    modern = thresholds.profile == "modern"
    cmtconfigs, containers = entry.get("cmtconfigs") or (), entry.get("containers") or ()
    cvmfs, tags = entry.get("cvmfs") or (), entry.get("tags") or ()
    platform = asked.platform
    if modern and platform and platform not in cmtconfigs and re.search(r"[*|()\[\]+?]", platform):
        resolved = next((one for one in cmtconfigs if re.fullmatch(platform, one)), None)
        if resolved is None:
            return f"no platform of its own matches {platform}: {', '.join(cmtconfigs) or 'none'}"
        platform = resolved
    if not asked.cvmfs_tag and not asked.project and not asked.version:
        return None if modern or not platform or platform in cmtconfigs else f"it has no platform {platform}"
    if "any" in cvmfs or asked.cvmfs_tag in cvmfs:
        if any(one in containers for one in EVERYWHERE):
            return None
        if asked.need_container:
            return f"platform {platform} needs a container, and it has none"
        return None if platform in cmtconfigs else f"it has no platform {platform}: {', '.join(cmtconfigs) or 'none'}"
    what = f"{asked.project}-{asked.version} for {platform}" if asked.project else asked.cvmfs_tag
    if asked.need_cvmfs:
        return f"it does not mount {asked.cvmfs_tag}"
    if (asked.need_container or thresholds.on("TAGS_NEED_ANY_CONTAINER")) and "any" not in containers:
        return f"it has no {what}, and no containers to run it in"
    wanted = (platform, asked.project, asked.version)
    if any((tag.get("cmtconfig"), tag.get("project"), tag.get("release")) == wanted for tag in tags):
        return None
    return f"it has no {what}"

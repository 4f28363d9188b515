"""Architecture of a task: `sw_platform<@base_platform><#host_cpu_spec><&host_gpu_spec>`.

The CPU is `architecture<-vendor<-instruction_set>>`, the GPU `vendor<-model>`; what is left out is `*`.
"""

import json
import re
from typing import Any

from msgspec import Struct

from rota.schedule.broker.config import Profile

__all__ = ["Architecture", "ArchitectureError", "Cpu", "Gpu", "parse_architecture"]

SECTION = re.compile(r"([@#&])")
KEYS = ("model", "vram", "cuda", "uarch", "driver")


class ArchitectureError(ValueError):
    """An architecture that cannot be read, and why."""


class Cpu(Struct, frozen=True):
    """A CPU that is asked for; `*`: any."""

    arch: str = "*"
    vendor: str = "*"
    instr: str = "*"


class Gpu(Struct, frozen=True):
    """A GPU that is asked for; `*`: any."""

    vendor: str = "*"
    model: str = "*"
    extras: tuple[tuple[str, str, str], ...] = ()
    """(key, operator, value) of what else it must have (modern)."""


class Architecture(Struct, frozen=True):
    """What a task asks of software platform and hardware."""

    sw_platform: str = ""
    base_platform: str | None = None
    cpus: tuple[Cpu, ...] | None = None
    """One of these; None: no CPU is asked for."""
    gpu: Gpu | None = None

    @property
    def hardware(self) -> bool:
        """Whether any hardware is asked for."""
        return self.cpus is not None or self.gpu is not None


def parse_architecture(text: str | dict[str, Any] | None, profile: Profile = "doc") -> Architecture:
    """Read an architecture; ArchitectureError if it has another form."""
    if isinstance(text, dict) or (text or "").lstrip().startswith("{"):
        return _from_json(text)
    assert text is None or isinstance(text, str)
    parts = SECTION.split((text or "").strip())
    sections: dict[str, str] = {}
    for sign, value in zip(parts[1::2], parts[2::2], strict=True):
        if sign in sections:
            raise ArchitectureError(f"architecture '{text}' has two parts after '{sign}'")
        sections[sign] = value.strip()
    platform = parts[0].strip()
    modern = profile == "modern"
    gpu = _gpu(sections["&"]) if "&" in sections else None
    cpus: tuple[Cpu, ...] | None = None
    if "#" in sections:
        if sections["#"] or not modern:
            cpus = _cpus(sections["#"], modern)
    elif modern and platform and (first := platform.partition("-")[0]):
        cpus = _cpus(first, modern)
    for pattern in [platform, *(one.arch for one in cpus or ())] if modern else ():
        _check_pattern(pattern)
    return Architecture(platform, sections.get("@") or None, cpus, gpu)


def _check_pattern(text: str) -> None:
    if text == "*":
        return
    try:
        re.compile(text)
    except re.error as error:
        raise ArchitectureError(f"'{text}' is no pattern: {error}") from None


def _cpus(text: str, modern: bool) -> tuple[Cpu, ...]:
    options = re.fullmatch(r"\(([^()]*)\)(.*)", text) if modern else None
    texts = [each + options[2] for each in options[1].split("|")] if options is not None else [text]
    found = []
    for each in texts:
        fields = each.split("-", 2)
        found.append(Cpu(*(field or "*" for field in fields)))
    return tuple(found)


def _gpu(text: str) -> Gpu:
    head, *rest = text.split(":")
    vendor, _, model = head.partition("-")
    extras = []
    for each in rest:
        match = re.fullmatch(r"(\w+)\s*(==|!=|>=|<=|=|>|<)\s*(.+)", each.strip())
        if match is None or match[1] not in KEYS:
            raise ArchitectureError(f"'{each}' says nothing of {', '.join(KEYS)}, as in vram>=16")
        extras.append((match[1], match[2], match[3]))
    return Gpu(vendor or "*", model or "*", tuple(extras))


def _from_json(text: str | dict[str, Any] | None) -> Architecture:
    try:
        read = text if isinstance(text, dict) else json.loads(text or "")
        cpus = read.get("cpu_specs")
        gpu = read.get("gpu_spec")
        return Architecture(
            read.get("sw_platform") or "",
            read.get("base_platform") or None,
            None if not cpus else tuple(Cpu(*(one.get(key) or "*" for key in Cpu.__struct_fields__)) for one in cpus),
            None if not gpu else Gpu(gpu.get("vendor") or "*", gpu.get("model") or "*"),
        )
    except (ValueError, AttributeError, TypeError) as error:
        raise ArchitectureError(f"architecture {text!r} is no JSON of that form: {error}") from None

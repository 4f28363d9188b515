"""What a job asks for, and what a place has: integers only."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rota.model.amounts import (
    MAX_BYTES,
    MAX_COUNT,
    MAX_MILLICORES,
    MAX_SECONDS,
    format_cores,
    format_duration,
    show_size,
)
from rota.model.errors import UsageError

__all__ = ["BINDS", "SPANS", "Amounts", "Needs"]

SPANS = ("pack", "compact", "tight", "scatter", "compact!", "tight!", "scatter!")
"""How cores that may be on several nodes are laid out (`rota.schedule.layouts`)."""
BINDS = ("cores", *SPANS[1:])
"""How cores of a job's own are chosen from the groups of a node (`rota.runner.grouping`)."""
VARIANTS_MOST = 8
OPTION = re.compile(r"-{0,2}[A-Za-z][A-Za-z0-9_-]{0,63}")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class Amounts(Struct, frozen=True, order=True, array_like=True):
    """A vector of what can be used up on a Location: millicores, bytes, bytes, gpus, and any named resources."""

    cores: int = 0
    memory: int = 0
    disk: int = 0
    gpus: int = 0
    named: tuple[tuple[str, int], ...] = ()
    gpu_share: int = 0
    """Thousandths of one gpu. Of what is free: the most that is left of a gpu of which a part is in use."""

    def plus(self, other: "Amounts", times: int = 1) -> "Amounts":
        """The sum of this and `times` the other (negative `times` takes away)."""
        named: dict[str, int] = {}
        if self.named or other.named:
            named = dict(self.named)
            for name, count in other.named:
                named[name] = named.get(name, 0) + count * times
        return Amounts(
            self.cores + other.cores * times,
            self.memory + other.memory * times,
            self.disk + other.disk * times,
            self.gpus + other.gpus * times,
            tuple(sorted((name, count) for name, count in named.items() if count)) if named else (),
            self.gpu_share + other.gpu_share * times,
        )

    def times_in(self, free: "Amounts") -> int:
        """How many of this fit into `free`."""
        most = 1 << 30
        if self.cores:
            most = min(most, free.cores // self.cores)
        if self.memory:
            most = min(most, free.memory // self.memory)
        if self.disk:
            most = min(most, free.disk // self.disk)
        if self.gpus:
            most = min(most, free.gpus // self.gpus)
        if self.gpu_share:
            most = min(most, free.gpus * (1000 // self.gpu_share) + free.gpu_share // self.gpu_share)
        if self.named:
            have = dict(free.named)
            for name, count in self.named:
                if count:
                    most = min(most, have.get(name, 0) // count)
        return max(most, 0)

    def fits(self, free: "Amounts") -> bool:
        """True if at least one of this fits into `free`."""
        return (
            (self.cores <= free.cores or not self.cores)
            and (self.memory <= free.memory or not self.memory)
            and (self.disk <= free.disk or not self.disk)
            and (self.gpus <= free.gpus or not self.gpus)
            and (not self.gpu_share or free.gpus > 0 or self.gpu_share <= free.gpu_share)
            and (not self.named or not self.lacking(free))
        )

    def negative(self) -> bool:
        """True if any part is below zero."""
        if self.cores < 0 or self.memory < 0 or self.disk < 0 or self.gpus < 0 or self.gpu_share < 0:
            return True
        return bool(self.named) and any(count < 0 for _, count in self.named)

    def lacking(self, free: "Amounts") -> list[tuple[str, int, int]]:
        """For every part of this that does not fit: (what, asked, free)."""
        have = dict(free.named)
        rows = [
            ("cores", self.cores, free.cores),
            ("memory", self.memory, free.memory),
            ("disk", self.disk, free.disk),
            ("gpus", self.gpus, free.gpus),
            *((name, count, have.get(name, 0)) for name, count in self.named),
        ]
        if self.gpu_share and not free.gpus:
            rows.append(("gpu_share", self.gpu_share, free.gpu_share))
        return [row for row in rows if row[1] > row[2] and row[1] > 0]


def show_amount(what: str, count: int) -> str:
    """One part of an Amounts in words: `2 cores`, `4G memory`."""
    if what == "cores":
        return f"{format_cores(count)} core{'' if count == 1000 else 's'}"
    if what in ("memory", "disk"):
        return f"{show_size(count)} {what}"
    if what == "gpu_share":
        return f"{count / 1000:g} of a gpu"
    return f"{count} gpu" if what == "gpus" and count == 1 else f"{count} {what}"


class Needs(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one job asks for. None means that the user did not say (and rota may learn it)."""

    cores: int = 1000
    cores_most: int = 0
    """Upper end of a range of cores; 0 means exactly `cores`."""
    nodes: int = 1
    memory: int | None = None
    disk: int | None = None
    time_s: int | None = None
    gpus: int = 0
    named: tuple[tuple[str, int], ...] = ()
    tags: tuple[str, ...] = ()
    """Words that a Location must carry."""
    site: str | None = None
    """The only site where the job may run (`--on`)."""
    options: tuple[tuple[str, str], ...] = ()
    """For a batch system: account, partition, qos, reservation, constraint, exclusive, and native options `--key`."""
    gpu_share: int = 0
    """Thousandths of one gpu, which it shares with others."""
    bind: str = ""
    """One of BINDS: bound to cores of its own, by groups of cores that are near each other; empty: to none."""
    nodes_most: int = 0
    """Upper end of a range of nodes; 0 means exactly `nodes`."""
    span: str = ""
    """One of SPANS: its cores may be on several nodes, `cores` is how many in all, and all else is per node."""
    whole: bool = False
    """Whether it gets whole nodes: all cores of each, which must be idle."""
    variants: tuple[tuple[tuple[str, int], ...], ...] = ()
    """Alternatives, tried in this order after what is said here: of each what differs, as (field, amount); a named
    resource is `resource.NAME`."""

    @property
    def together(self) -> bool:
        """Whether its place is found by looking at all nodes together, and not at one for itself."""
        return self.nodes > 1 or self.nodes_most > 1 or self.span != "" or self.whole or self.variants != ()

    def alternatives(self) -> tuple["Needs", ...]:
        """What it asks for, and its variants, each as needs of its own; the first is preferred."""
        return _alternatives(self) if self.variants else (self,)

    def amounts(self, cores: int | None = None) -> Amounts:
        """What one slot of this size takes from a node."""
        cores = self.cores if cores is None else cores
        return Amounts(cores, self.memory or 0, self.disk or 0, self.gpus, self.named, self.gpu_share)

    @property
    def queue(self) -> str | None:
        """The partition or queue that the job asks for; None: the site's own."""
        if not self.options:
            return None
        return next((value for key, value in self.options if key == "partition"), None)

    def asked_options(self) -> tuple[tuple[str, str], ...]:
        """The options that a provider is asked for, with the number of nodes."""
        return self.options if self.nodes == 1 else (*self.options, ("nodes", str(self.nodes)))

    def check(self) -> None:
        """Raise UsageError for needs that no place could ever mean."""
        if not (
            0 < self.cores <= MAX_MILLICORES
            and 0 <= self.cores_most <= MAX_MILLICORES
            and 0 <= (self.memory or 0) <= MAX_BYTES
            and 0 <= (self.disk or 0) <= MAX_BYTES
            and 0 <= (self.time_s or 0) <= MAX_SECONDS
            and self.gpus == self.gpu_share == 0
        ):
            self._check_amounts()
        if self.bind and self.bind not in BINDS:
            raise UsageError(f"bind '{self.bind[:40]}': give {', '.join(BINDS)} or none")
        if self.bind and self.cores % 1000:
            raise UsageError(f"bind {self.bind} with {format_cores(self.cores)} cores: give whole cores")
        if self.cores == 0:
            raise UsageError("cores is 0: give at least 0.001 (0.01 suits jobs that only wait)")
        if not 1 <= self.nodes <= MAX_COUNT:
            raise UsageError(f"nodes must be at least 1 and at most {MAX_COUNT}, not {self.nodes}")
        if self.cores_most and self.cores_most < self.cores:
            raise UsageError("the range of cores ends below where it begins")
        if self.time_s == 0:
            raise UsageError("a time of 0 lets nothing run: leave it out, or give the longest a job may take")
        if self.together:
            self._check_together()
        if self.named or self.options or self.tags:
            self._check_names()

    def _check_together(self) -> None:
        """Raise UsageError for ranges of nodes, spans and variants that cannot be meant."""
        if self.nodes_most and not self.nodes <= self.nodes_most <= MAX_COUNT:
            raise UsageError("the range of nodes ends below where it begins")
        if self.span and self.span not in SPANS:
            raise UsageError(f"span '{self.span[:40]}': give {', '.join(SPANS)}")
        if self.span and (self.nodes > 1 or self.nodes_most):
            raise UsageError("span lets cores be on any number of nodes: give it, or a number of nodes")
        if self.span and (self.cores % 1000 or self.cores_most % 1000):
            raise UsageError(f"span with {format_cores(self.cores, self.cores_most or None)} cores: give whole cores")
        if self.whole and (self.span or self.cores_most):
            raise UsageError("all cores of whole nodes: give neither a range of cores nor span with it")
        if len(self.variants) > VARIANTS_MOST:
            raise UsageError(f"{len(self.variants)} variants: the most is {VARIANTS_MOST}")
        for number, variant in enumerate(self.variants, 1):
            for name, amount in variant:
                known = name in VARIED or (name.startswith(RESOURCE) and NAME.fullmatch(name[len(RESOURCE) :]))
                if not known or type(amount) is not int or amount < 0:
                    raise UsageError(f"variant {number}: '{name}={amount}': give {', '.join(VARIED)} or resource.NAME")
            try:
                _apart(self, variant).check()
            except UsageError as error:
                raise UsageError(f"variant {number}: {error}") from None

    def _check_amounts(self) -> None:
        """Raise UsageError for amounts that nothing has."""
        for name, value, most in (
            ("cores", self.cores, MAX_MILLICORES),
            ("cores", self.cores_most, MAX_MILLICORES),
            ("memory", self.memory, MAX_BYTES),
            ("disk", self.disk, MAX_BYTES),
            ("time", self.time_s, MAX_SECONDS),
            ("gpus", self.gpus, MAX_COUNT),
            ("part of a gpu", self.gpu_share, 999),
        ):
            if value is not None and value < 0:
                raise UsageError(f"{name} is negative ({value})")
            if value is not None and value > most:
                raise UsageError(f"{name} is more than anything has ({value})")
        if self.gpus and self.gpu_share:
            raise UsageError(
                f"{self.gpus} gpus and {show_amount('gpu_share', self.gpu_share)}: give whole gpus, or a share of one"
            )

    def _check_names(self) -> None:
        """Raise UsageError for named resources, options and tags that cannot be meant."""
        for name, count in self.named:
            if not NAME.fullmatch(name) or not 0 <= count <= MAX_COUNT:
                raise UsageError(f"resource '{name}={count}': write name=count, with a count of 0 or more")
        if len(self.named) > 1 and len({name for name, _ in self.named}) != len(self.named):
            raise UsageError(f"a resource is named twice: {', '.join(name for name, _ in self.named)}")
        for key, text in self.options:
            if not OPTION.fullmatch(key) or len(text) > 1000 or not text.isprintable():
                raise UsageError(f"option '{key}={text[:100]}': write key=value, on one line")
        if len(self.options) > 1 and len({key for key, _ in self.options}) != len(self.options):
            raise UsageError(f"an option is given twice: {', '.join(key for key, _ in self.options)}")
        for tag in self.tags:
            if not NAME.fullmatch(tag):
                raise UsageError(f"tag '{tag}': letters, digits, '_', '.', '-' only")

    def words(self) -> str:
        """The needs as text for people: `2 cores, 4G memory, 1h30m`."""
        one = self.cores == 1000 and not self.cores_most
        out = [f"{format_cores(self.cores, self.cores_most or None)} core{'' if one else 's'}"]
        if self.whole:
            out = ["all cores"]
        if self.span:
            out.append(f"over nodes ({self.span})")
        if self.nodes > 1 or self.nodes_most > 1:
            most = "" if self.nodes_most in (0, self.nodes) else ".."
            most += str(self.nodes_most) if most and self.nodes_most < MAX_COUNT else ""
            out.append(f"{self.nodes}{most} nodes")
        if self.memory is not None:
            out.append(f"{show_size(self.memory)} memory")
        if self.disk is not None:
            out.append(f"{show_size(self.disk)} disk")
        if self.gpus:
            out.append(show_amount("gpus", self.gpus))
        if self.gpu_share:
            out.append(show_amount("gpu_share", self.gpu_share))
        out.extend(f"{count} {name}" for name, count in self.named)
        if self.bind:
            out.append("bound to cores" if self.bind == "cores" else f"bound to cores ({self.bind})")
        if self.time_s is not None:
            out.append(format_duration(self.time_s))
        out.extend(f"tag {tag}" for tag in self.tags)
        if self.site is not None:
            out.append(f"on {self.site}")
        out.extend(f"{key} {value}".strip() for key, value in self.options)
        return " or ".join([", ".join(out), *(each.words() for each in self.alternatives()[1:])])


VARIED = (
    "cores", "cores_most", "whole", "nodes", "nodes_most", "memory", "disk", "time_s", "gpus", "gpu_share",
)  # fmt: skip
"""Fields of Needs that a variant may have of its own."""
RESOURCE = "resource."


def _apart(needs: Needs, variant: tuple[tuple[str, int], ...]) -> Needs:
    """One variant of needs, as needs of its own."""
    said = dict(variant)
    named = dict(needs.named) | {
        name[len(RESOURCE) :]: said.pop(name) for name in list(said) if name.startswith(RESOURCE)
    }
    fields: dict[str, Any] = {name: bool(value) if name == "whole" else value for name, value in said.items()}
    return replace(needs, variants=(), named=named_resources(named), **fields)


@lru_cache(1024)
def _alternatives(needs: Needs) -> tuple[Needs, ...]:
    return (replace(needs, variants=()), *(_apart(needs, variant) for variant in needs.variants))


def named_resources(given: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """A mapping of named resources in the one order that makes equal needs equal."""
    return tuple(sorted((name, count) for name, count in given.items() if count))

"""Which dialects there are: those of rota, and those that other packages bring as entry points `rota.dialects`."""

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from rota.drivers.dialect import Dialect
from rota.model.errors import UsageError

__all__ = ["dialect_names", "load_dialect"]

GROUP = "rota.dialects"
BUILT_IN = {
    "slurm": "rota.drivers.slurm:Slurm",
    "lsf": "rota.drivers.lsf:Lsf",
    "openlava": "rota.drivers.lsf:OpenLava",
    "pbs": "rota.drivers.pbs:Pbs",
    "torque": "rota.drivers.torque:Torque",
    "sge": "rota.drivers.sge:Sge",
}


def dialect_names() -> list[str]:
    """The names of all dialects."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def load_dialect(name: str) -> Dialect:
    """Make the dialect of that name. A name of rota's own is never another package's."""
    place = BUILT_IN.get(name)
    if place is not None:
        module, _, attribute = place.partition(":")
        made: Dialect = getattr(import_module(module), attribute)()
        return made
    found: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    if not found:
        raise UsageError(f"there is no batch system {name!r}; there are {', '.join(dialect_names())}")
    try:
        foreign: Dialect = found[0].load()()
    except Exception as error:
        raise UsageError(f"the dialect {name!r} ({found[0].value}) cannot be loaded: {error!r}") from error
    return foreign

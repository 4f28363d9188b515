"""Data: how good a place is by the files that are there, from the facts `replicas` and `bandwidth`.

`replicas`: path → ((name, bytes), …), the valid ones. A name is a site, if all its nodes see the file, or `site/host`.
`bandwidth`: (name, name) → bytes per second from one to the other, as measured.
"""

from collections.abc import Mapping
from typing import Any

from rota.model.location import Location
from rota.model.shape import Shape
from rota.schedule.view import Place, View

__all__ = [
    "bytes_of", "cheapest_transfer", "data_locality", "expected_wait_s", "held_elsewhere", "most_bytes", "names_of",
    "present", "transfer_s",
]  # fmt: skip

BANDWIDTH = float(100 << 20)
"""Bytes per second, where none was measured."""
AWAY_S = 600.0
"""A place where a job is so much later is half as good."""


def names_of(location: Location) -> tuple[str, ...]:
    """What a place is called where files are."""
    site = location.site
    return (site, *[f"{site}/{name}" for name in (location.host, location.queue) if name])


def data_locality(shape: Shape, place: Place, view: View) -> float:
    """The heaviest file that is there decides: such a place is before all that have only lighter ones, or none."""
    if not shape.inputs:
        return 1.0
    replicas, names = view.facts["replicas"], names_of(place.location)
    for rank, path in enumerate(_heaviest_first(shape, replicas)):
        if any(name in names for name, _ in replicas[path]):
            return 1.0 + 1.0 / (1 + rank)
    return 1.0


def _heaviest_first(shape: Shape, replicas: Mapping[Any, Any]) -> list[str]:
    """The files that are known anywhere. Of equal ones, that which the job names first."""
    known = {path: size for path in shape.inputs if (size := size_of(replicas.get(path, ()))) is not None}
    return sorted(known, key=known.__getitem__, reverse=True)


def size_of(rows: tuple[tuple[str, int], ...]) -> int | None:
    """Bytes of a file, by its replicas; None: there are none."""
    return max([size for _, size in rows], default=None)


def bytes_of(shape: Shape, view: View) -> int:
    """The bytes of a shape's files, as far as they are known."""
    replicas = view.facts["replicas"]
    return sum([size_of(replicas.get(path, ())) or 0 for path in shape.inputs])


def present(shape: Shape, place: Place, view: View) -> tuple[int, int]:
    """(bytes of a shape's files that are at a place, bytes of all that are known anywhere)."""
    replicas, names = view.facts["replicas"], names_of(place.location)
    here = total = 0
    for path in shape.inputs:
        rows = replicas.get(path, ())
        size = size_of(rows) or 0
        total += size
        here += size if any(name in names for name, _ in rows) else 0
    return here, total


def held_elsewhere(shape: Shape, place: Place, view: View) -> str | None:
    """Which host has the heaviest file that is not at a node, and only has to be started; None: there is none.

    The fact `starting` has, for each such host, what it offers: its runner is asked for at the level of queues.
    """
    replicas, starting = view.facts["replicas"], view.facts["starting"]
    names, needs = names_of(place.location), shape.needs
    for path in _heaviest_first(shape, replicas):
        rows = replicas[path]
        if any(name in names for name, _ in rows):
            return None
        for name, _ in rows:
            offer = starting.get(name)
            if offer is None or needs.site not in (None, offer.site) or needs.queue not in (None, offer.host):
                continue
            if needs.nodes == 1 and needs.amounts().fits(offer.node) and set(needs.tags) <= set(offer.tags):
                return f"{path} is at {name}, whose runner starts"
    return None


def most_bytes(shape: Shape, place: Place, view: View) -> float:
    """The share of its bytes that is there already."""
    here, total = present(shape, place, view) if shape.inputs else (0, 0)
    return 1.0 + here / total if total else 1.0


def transfer_s(shape: Shape, place: Place, view: View) -> float:
    """Seconds that it takes to bring what is not there, each file from where it comes fastest."""
    replicas, bandwidth = view.facts["replicas"], view.facts["bandwidth"]
    names, seconds = names_of(place.location), 0.0
    for path in shape.inputs:
        rows = replicas.get(path, ())
        if rows and not any(name in names for name, _ in rows):
            seconds += min(size / _speed(bandwidth, name, names) for name, size in rows)
    return seconds


def _speed(bandwidth: Mapping[Any, Any], source: str, names: tuple[str, ...]) -> float:
    """Bytes per second from a source: to the host if that was measured, else to its site from anywhere."""
    known = [speed for name in reversed(names) if (speed := bandwidth.get((source, name)))]
    return float(known[0] if known else bandwidth.get(("*", names[0])) or BANDWIDTH)


def expected_wait_s(place: Place, view: View) -> float:
    """Seconds that an allocation of a queue is expected to wait; a node is there."""
    if place.site is None:
        return 0.0
    own = place.queue is None or place.queue.default
    stats = view.facts["stats"].get((place.location.site, "" if own else place.location.queue))
    if stats is None:
        return 0.0
    return max(stats.wait_s or 0.0, view.wall - stats.oldest if stats.waiting else 0.0)


def cheapest_transfer(shape: Shape, place: Place, view: View) -> float:
    """Where a job can begin soonest: the time that its files take to get there, and that of the queue."""
    return 1.0 / (1.0 + (transfer_s(shape, place, view) + expected_wait_s(place, view)) / AWAY_S)

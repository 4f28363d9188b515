"""Allocations: resources asked of a queue for a time."""

from msgspec import Struct

from rota.model.needs import Amounts

__all__ = ["Allocation"]


class Allocation(Struct):
    """One element of what was submitted to a provider, found again by its tag."""

    id: str
    site: str
    tag: str
    """Random, in the cluster job's name: looked up before anything is submitted twice."""
    state: str = "WAITING"
    capacity: Amounts = Amounts()
    native_id: str | None = None
    reason: str | None = None
    unsure: int = 0
    submitted: float | None = None
    ended: float | None = None
    queue: str | None = None
    shape: int | None = None
    """The shape it was asked for; None: any."""

"""Allocations: resources asked of a site for a time."""

from typing import NamedTuple

from msgspec import Struct

from rota.model.needs import Amounts

__all__ = ["Allocation", "Outcome", "Waiting"]


class Allocation(Struct):
    """One allocation: an element of an array that was submitted to a provider, found again by its tag."""

    id: str
    site: str
    tag: str
    """Random, in the cluster job's name: looked up before anything is submitted twice."""
    state: str = "WAITING"
    capacity: Amounts = Amounts()
    native_id: str | None = None
    reason: str | None = None
    unsure: int = 0
    """How many observations in a row told nothing."""
    submitted: float | None = None
    ended: float | None = None
    queue: str | None = None
    shape: int | None = None
    """The shape that it was asked for; None: any."""
    element: int = 0
    """Its number in the array."""
    time_s: int | None = None
    """How long it was asked for."""
    name: str = ""
    """Its name at the provider, without the tag."""
    direct: bool = False
    """Whether it runs one job, and ends with it, instead of starting a runner."""
    host: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    """Options that its job asked of the provider: account, partition and the like."""
    elements: int = 0
    """How many elements the array has; 0: not known."""
    nodes: int = 1
    """How many nodes it has, each with a runner of its own."""
    outcome: "Outcome | None" = None
    """How it ended, as far as answers said that were too old to count as its end: what was said once stays said."""
    why: str = ""
    """What the brokerage said of its queue when it chose it."""


class Waiting(NamedTuple):
    """Why an allocation does not run, as its batch system has it."""

    words: str
    lasting: bool = False
    """Whether it says that this can never run."""
    over: bool = False
    """Whether it says that it has ended; what it left behind has not been seen yet."""


class Outcome(Struct, frozen=True):
    """How an allocation ended, as far as its provider or its last words tell."""

    exit_code: int | None = None
    signal: int | None = None
    why: str | None = None
    """The reason: oom, time, disk-full, node-fail, preempt, requeue, cancelled, launch, deadline, vanished, refused."""
    host: str | None = None
    started: float | None = None
    ended: float | None = None
    cpu_s: float | None = None
    peak_memory: int | None = None

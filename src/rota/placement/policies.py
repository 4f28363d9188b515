"""Policies of the seed's interface, and those of rota behind it: the same scorers and picks that its own loop uses."""

import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping
from typing import Any, ClassVar

from rota.model.location import Kind, Location
from rota.model.needs import Needs
from rota.model.shape import Shape
from rota.placement.errors import PlacementError
from rota.placement.hardware import Hardware
from rota.placement.jobs import Status, files_of
from rota.placement.levels import amounts_of, capacity_of, identity, levels
from rota.schedule import picks, scorers
from rota.schedule.facts import Facts
from rota.schedule.ledger import Free, Ledger
from rota.schedule.policy import POLICIES as BUNDLES
from rota.schedule.view import NODE, Place, View

__all__ = ["POLICIES", "NamedPolicy", "Policy"]


class Policy(ABC):
    """Chooses a location for a job among those that have room for it."""

    @abstractmethod
    async def get_location(
        self,
        context: Any,
        job: Any,
        hardware_requirement: Any,
        available_locations: MutableMapping[str, Any],
        jobs: MutableMapping[str, Any],
        locations: MutableMapping[str, MutableMapping[str, Any]],
    ) -> Any:
        """The location that is chosen; None: the job waits."""

    @classmethod
    def get_schema(cls) -> str:
        """A JSON schema of what it is made with."""
        return _schema(cls.__name__, {})


def _schema(name: str, properties: Mapping[str, Any]) -> str:
    return json.dumps(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"https://rota.invalid/schemas/policy/{name}.json",
            "type": "object",
            "properties": dict(properties),
            "additionalProperties": False,
        }
    )


class NamedPolicy(Policy):
    """A policy of rota by its name: what its scorers say of each location decides, and its pick among equals."""

    bundle: ClassVar[str] = "data_locality"

    def __init__(self, seed: int | None = None) -> None:
        self._policy = BUNDLES[self.bundle]
        self._chance = random.Random(seed)
        self._turns: dict[str, int] = {}
        """Location → number of the turn at which it was last chosen."""
        self.ledger: Free | None = None
        """What is in use, if a scheduler of rota asks; else it is counted from the jobs."""

    async def get_location(
        self,
        context: Any,
        job: Any,
        hardware_requirement: Any,
        available_locations: MutableMapping[str, Any],
        jobs: MutableMapping[str, Any],
        locations: MutableMapping[str, MutableMapping[str, Any]],
    ) -> Any:
        """The location with the highest score; None only if none is offered."""
        offered = list(available_locations.values())
        if not offered:
            return None
        deployments = sorted({location.deployment for location in offered})
        if len(deployments) > 1:
            raise PlacementError(f"job {job.name}: locations of several deployments are offered: {deployments}")
        facts = Facts()
        inputs: tuple[str, ...] = ()
        if "replicas" in self._policy.reads and context is not None:
            inputs = await _tell_replicas(facts, context, job, deployments[0])
        places = [Place(_location(location), "", "SERVING", 0) for location in offered]
        used = self.ledger if self.ledger is not None else _counted(offered, jobs)
        now = time.monotonic()
        view = View(now, now, "serving", places, used, {}, facts=facts)
        number = self._choose(Shape(Needs(), inputs=inputs), places, view)
        return offered[number]

    def _choose(self, shape: Shape, places: list[Place], view: View) -> int:
        weighed = scorers.at_level(self._policy.scorers, NODE)
        scores = [scorers.score_of(weighed, shape, place, view) for place in places]
        turns = [self._turns.get(place.location.id, 0) for place in places]
        number = picks.BUILT_IN[self._policy.pick].choose(scores, turns, self._chance.random)
        if self._policy.pick == "round_robin":
            self._turns[places[number].location.id] = max(self._turns.values(), default=0) + 1
        return number

    @classmethod
    def get_schema(cls) -> str:
        """A JSON schema of what it is made with."""
        return _schema(cls.__name__, {"seed": {"type": "integer", "description": "Seed of the chance"}})


async def _tell_replicas(facts: Facts, context: Any, job: Any, deployment: str) -> tuple[str, ...]:
    """Tell where the files of a job are, each with its bytes; returns what they are called."""
    manager: Any = getattr(context, "data_manager", None)
    inputs: list[str] = []
    for number, token in enumerate(files_of(list(job.inputs.values())) if manager is not None else ()):
        weight = await token.get_weight(context)
        names = set()
        for path in await token.get_paths(context):
            for found in manager.get_data_locations(path=path, deployment=deployment):
                kind = getattr(found, "data_type", None)
                if kind is None or kind.name == "PRIMARY":
                    names.add(f"{deployment}/{found.location.name if hasattr(found, 'location') else found.name}")
        name = f"{number}"
        inputs.append(name)
        facts.tell("replicas", name, tuple((each, weight) for each in sorted(names)) or ((NOWHERE, weight),))
    return tuple(inputs)


NOWHERE = ""
"""The name of no place: a file that is somewhere else still has its weight."""


def _location(location: Any) -> Location:
    """An offered location as rota's own parts see one."""
    return Location(
        identity(location), Kind.NODE, None, capacity_of(location), site=location.deployment, host=location.name
    )


def _counted(offered: list[Any], jobs: Mapping[str, Any]) -> Free:
    """What the jobs that are there use of these locations."""
    ledger = Ledger()
    known = {(location.deployment, location.name): location for location in offered}
    for location in offered:
        ledger.add(_location(location))
    for allocation in jobs.values():
        if allocation.status in (Status.FIREABLE, Status.RUNNING):
            for each in allocation.locations:
                location = known.get((each.deployment, each.name))
                if location is not None:
                    (level, *_) = levels(location, allocation.hardware or Hardware())
                    ledger.occupy([(level.id, amounts_of(level))])
    return ledger.view


class DataLocality(NamedPolicy):
    """The heaviest file decides; where none is, one by chance."""

    bundle = "data_locality"


class MostBytes(NamedPolicy):
    """Where most bytes of its inputs are."""

    bundle = "most_bytes"


class CheapestTransfer(NamedPolicy):
    """Where its inputs are soonest."""

    bundle = "cheapest_transfer"


class LeastLoaded(NamedPolicy):
    """Where most is free of what is scarcest."""

    bundle = "least_loaded"


class Pack(NamedPolicy):
    """Fuller locations first."""

    bundle = "pack"


class Spread(NamedPolicy):
    """Emptier locations first."""

    bundle = "spread"


class RoundRobin(NamedPolicy):
    """One after the other."""

    bundle = "round_robin"


class Anywhere(NamedPolicy):
    """By chance."""

    bundle = "random"


POLICIES: dict[str, type] = {
    policy.bundle: policy
    for policy in (DataLocality, MostBytes, CheapestTransfer, LeastLoaded, Pack, Spread, RoundRobin, Anywhere)
}
"""Type → policy; those of other packages come by entry points of the group `rota.placement_policies`."""

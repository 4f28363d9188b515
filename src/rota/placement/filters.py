"""Binding filters: which targets a job may use, and in which order they are tried."""

import json
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableSequence, Sequence
from typing import Any

from rota.placement.errors import DefinitionError, PlacementError

__all__ = ["BINDING_FILTERS", "BindingFilter", "MatchingFilter", "ShuffleFilter"]

_log = logging.getLogger("rota.placement")


class BindingFilter(ABC):
    """Drops or reorders the targets of a job."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    async def get_targets(self, job: Any, targets: MutableSequence[Any]) -> MutableSequence[Any]:
        """The targets that are left for a job, in the order in which they are tried."""

    @classmethod
    def get_schema(cls) -> str:
        """A JSON schema of what it is made with."""
        return _schema(cls.__name__, {})


def _schema(name: str, properties: Mapping[str, Any], required: Sequence[str] = ()) -> str:
    return json.dumps(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": f"https://rota.invalid/schemas/filter/{name}.json",
            "type": "object",
            "properties": dict(properties),
            "required": list(required),
            "additionalProperties": False,
        }
    )


class ShuffleFilter(BindingFilter):
    """All targets, in an order by chance."""

    def __init__(self, name: str, seed: int | None = None) -> None:
        super().__init__(name)
        self._chance = random.Random(seed)

    async def get_targets(self, job: Any, targets: MutableSequence[Any]) -> MutableSequence[Any]:
        """The targets in another order; what was given stays as it is."""
        return self._chance.sample(list(targets), len(targets))

    @classmethod
    def get_schema(cls) -> str:
        """A JSON schema of what it is made with."""
        return _schema(cls.__name__, {"seed": {"type": "integer", "description": "Seed of the chance"}})


class MatchingFilter(BindingFilter):
    """The targets for which a rule matches the inputs of a job.

    A rule names a deployment (and maybe a service) and texts that inputs must be equal to: all of them. Of several
    rules for a target one is enough. A target without a rule is left out.
    """

    def __init__(self, name: str, filters: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(name)
        self.rules = [_rule(name, number, each) for number, each in enumerate(filters, 1)]
        self._warned: set[str] = set()

    async def get_targets(self, job: Any, targets: MutableSequence[Any]) -> MutableSequence[Any]:
        """The targets that are left, in the order in which they were given."""
        self._warn(job, targets)
        left = [target for target in targets if any(self._matches(job, target, *rule) for rule in self.rules)]
        if not left:
            raise PlacementError(
                f"filter {self.name} did not find any matching targets for the inputs of job {job.name}"
            )
        return left

    def _matches(
        self, job: Any, target: Any, deployment: str, service: str | None, texts: Sequence[tuple[str, str]]
    ) -> bool:
        if target.deployment.name != deployment or (service is not None and target.service != service):
            return False
        return all(self._value(job, port) == text for port, text in texts)

    def _value(self, job: Any, port: str) -> str:
        if port not in job.inputs:
            raise ValueError(f"filter {self.name}: job {job.name} has no input '{port}', only {', '.join(job.inputs)}")
        token = job.inputs[port]
        if hasattr(token, "get_paths") or isinstance(token.value, list | tuple | dict):
            words = "cannot be of type 'file', 'list', or 'object': give one that is plain text"
            raise DefinitionError(f"filter {self.name}: input '{port}' {words}")
        if not isinstance(token.value, str):
            _log.warning("filter %s: input '%s' of job %s is not text: its text is compared", self.name, port, job.name)
        return str(token.value)

    def _warn(self, job: Any, targets: Sequence[Any]) -> None:
        """Once for each step, say which targets have no rule, and which rules no target."""
        step = job.name.rpartition("/")[0]
        if step in self._warned:
            return
        self._warned.add(step)
        has, names = {target.deployment.name for target in targets}, {rule[0] for rule in self.rules}
        for words, these in (("no rule is for", has - names), ("no target is", names - has)):
            if these:
                _log.warning("filter %s on %s: %s %s", self.name, job.name, words, ", ".join(sorted(these)))

    @classmethod
    def get_schema(cls) -> str:
        """A JSON schema of what it is made with."""
        pair = {"type": "object", "properties": {"port": {"type": "string"}, "match": {"type": "string"}}}
        target = {"oneOf": [{"type": "string"}, {"type": "object", "required": ["deployment"]}]}
        rule = {"type": "object", "properties": {"target": target, "job": {"type": "array", "items": pair}}}
        rules = {"type": "array", "items": {**rule, "required": ["target", "job"]}}
        return _schema(cls.__name__, {"filters": {**rules, "description": "The rules"}}, ["filters"])


def _rule(name: str, number: int, given: Mapping[str, Any]) -> tuple[str, str | None, list[tuple[str, str]]]:
    try:
        target = given["target"]
        deployment, service = (
            (target, None) if isinstance(target, str) else (target["deployment"], target.get("service"))
        )
        return deployment, service, [(each["port"], each["match"]) for each in given["job"]]
    except (KeyError, TypeError) as error:
        raise DefinitionError(
            f"filter {name}, rule {number}: it has a target (a deployment, or deployment and service) and under job "
            f"pairs of port and match; {error} is missing or wrong"
        ) from None


BINDING_FILTERS: dict[str, type] = {"shuffle": ShuffleFilter, "matching": MatchingFilter}
"""Type → filter; those of other packages come by entry points of the group `rota.binding_filters`."""

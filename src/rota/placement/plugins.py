"""Policies and binding filters by name: those of rota, and those that other packages bring as entry points."""

from importlib.metadata import entry_points
from typing import Any

from rota.placement.errors import DefinitionError
from rota.placement.filters import BINDING_FILTERS
from rota.placement.policies import POLICIES, NamedPolicy
from rota.schedule.ledger import Free

__all__ = ["GROUPS", "Parts"]

GROUPS = {"policy": "rota.placement_policies", "binding filter": "rota.binding_filters"}
"""What a part is → the group of entry points in which other packages bring some: classes, by the name of their type."""


class Parts:
    """The policies and binding filters that are in use: one of each name."""

    def __init__(self) -> None:
        self._policies: dict[tuple[str, str], Any] = {}
        self._filters: dict[tuple[str, str], Any] = {}

    def classes(self, what: str) -> dict[str, type]:
        """Type → class of all that rota itself knows."""
        return POLICIES if what == "policy" else BINDING_FILTERS

    def policy(self, config: Any, ledger: Free) -> Any:
        """The policy that a deployment names: a configuration, the name of a type, or the policy itself."""
        found = config
        if not hasattr(config, "get_location"):
            name, kind, options = _named(config or "data_locality")
            found = self._policies.get((name, kind))
            if found is None:
                found = self._policies[name, kind] = self._made("policy", kind, (), options)
        if isinstance(found, NamedPolicy):
            found.ledger = ledger
        return found

    def binding_filter(self, config: Any) -> Any:
        """The filter that a binding names, in any of the same ways."""
        if hasattr(config, "get_targets"):
            return config
        name, kind, options = _named(config)
        if (name, kind) not in self._filters:
            self._filters[name, kind] = self._made("binding filter", kind, (name,), options)
        return self._filters[name, kind]

    def _made(self, what: str, kind: str, given: tuple[str, ...], options: dict[str, Any]) -> Any:
        known = self.classes(what)
        found = known.get(kind)
        others = {}
        if found is None:
            others = {point.name: point for point in entry_points(group=GROUPS[what])}
            if kind not in others:
                there = ", ".join(sorted({*known, *others}))
                raise DefinitionError(f"there is no {what} '{kind}'; there are {there}")
            found = others[kind].load()
        try:
            return found(*given, **options)
        except TypeError as error:
            raise DefinitionError(f"{what} '{kind}' cannot be made with {options}: {error}") from None


def _named(config: Any) -> tuple[str, str, dict[str, Any]]:
    """(name, type, options); the name of a type stands for one of that type."""
    return (config, config, {}) if isinstance(config, str) else (config.name, config.type, dict(config.config))

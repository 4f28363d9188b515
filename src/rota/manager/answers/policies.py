"""Policies, and the parts that they are made of, as clients see them."""

from typing import Any

import msgspec

from rota.core.state import State
from rota.plugins import configured, load_plugins

__all__ = ["plugin_rows", "policy_rows"]


def plugin_rows(state: State | None = None) -> list[dict[str, Any]]:
    """All parts of policies, with why one is left out or not asked any more."""
    failed = state.soft.disabled if state is not None else {}
    plugins = configured(load_plugins(), state.settings.policies if state is not None else ())
    rows: list[dict[str, Any]] = [msgspec.structs.asdict(plugin) for plugin in plugins]
    for row in rows:
        if (why := failed.get((row["kind"], row["name"]))) is not None and row["problem"] is None:
            row["problem"] = f"is not asked any more: {why}"
    return rows


def policy_rows(state: State) -> list[dict[str, Any]]:
    """The policies that jobs can name, as configured."""
    return [
        {"name": name, **msgspec.structs.asdict(policy), "filters": list(policy.filters), "relax": list(policy.relax)}
        for name, policy in sorted(state.settings.policies.items())
    ]

"""Sites from a JSON file such as an information system of computing centres publishes: name → what it offers.

Known are the fields `status`, `corecount`, `maxrss` (MB), `maxtime` (s), `catchall`, `cost` and `queue`, with 0 for no
limit; how to reach the site stands in `rota`, with the keys of `[site.NAME]`, which count more.
"""

import json
from collections.abc import Mapping
from typing import Any

from rota.model.errors import UsageError

__all__ = ["read_sites"]

CLOSED = ("offline", "test")
PAUSED = ("paused", "brokeroff")
OPEN = ("online", "standby")


def read_sites(path: str) -> dict[str, dict[str, Any]]:
    """Name → the table of a site as `config.toml` has it. Sites that are offline are left out."""
    try:
        with open(path, encoding="utf-8") as file:
            raw = json.load(file)
    except OSError as error:
        raise UsageError(f"sites_file {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"sites_file {path}: this is no JSON: {error}") from None
    if not isinstance(raw, dict):
        raise UsageError(f"sites_file {path}: an object is needed, name → fields of the site")
    return {name: table for name, row in raw.items() if (table := _table(name, row, path)) is not None}


def _table(name: str, row: Any, path: str) -> dict[str, Any] | None:
    where = f"sites_file {path}: {name}"
    if not isinstance(row, Mapping):
        raise UsageError(f"{where}: an object is needed, with its fields")
    own = row.get("rota", {})
    if not isinstance(own, Mapping) or "driver" not in own:
        raise UsageError(f'{where}: how to reach it is missing, such as "rota": {{"driver": "slurm", "ssh": "login"}}')
    status = row.get("status", "online")
    if status in CLOSED:
        return None
    if status not in (*OPEN, *PAUSED):
        known = ", ".join((*OPEN, *PAUSED, *CLOSED))
        raise UsageError(f"{where}.status is {status!r}: give one of {known}")
    table: dict[str, Any] = {}
    if status in PAUSED:
        table["paused"] = True
    if cores := _count(row, "corecount", where):
        table["cores"] = cores
    if memory := _count(row, "maxrss", where):
        table["memory"] = f"{memory}M"
    if longest := _count(row, "maxtime", where):
        table["longest"] = f"{longest}s"
    if "cost" in row:
        table["cost"] = row["cost"]
    if isinstance(queue := row.get("queue"), str):
        table["partition"] = queue
    words = row.get("catchall") or ""
    if not isinstance(words, str):
        raise UsageError(f"{where}.catchall is {words!r}: give words with commas between them")
    if "disableReassign" in [word.strip().partition("=")[0] for word in words.split(",")]:
        table["reassign"] = False
    return {**table, **own}


def _count(row: Mapping[str, Any], key: str, where: str) -> int:
    value = row.get(key) or 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{where}.{key} is {value!r}: give a whole number, 0 for no limit")
    return value

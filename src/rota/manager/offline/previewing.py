"""Previews of submissions to a batch system, from the configuration alone: nothing is asked, written or started."""

import shlex
import socket
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from rota.manager.config import load_config
from rota.manager.paths import Paths
from rota.manager.sites.batch import BatchSite, options_of
from rota.manager.sites.doors import TlsDoor
from rota.manager.sites.queues import UNKNOWN
from rota.model.allocation import Allocation
from rota.model.batch import BatchSpec
from rota.model.errors import UsageError
from rota.model.needs import Amounts, Needs
from rota.schedule.demand import allocation_time, grouped
from rota.schedule.queues import impossible, queue_places
from rota.wire.client import read_notice

__all__ = ["preview"]

TAG = "0" * 12
"""The tag that is shown; a real submission draws one."""
SHAPES = 10
"""Different needs of which the submission is shown."""


class _PaperDoor(TlsDoor):
    """Says what a runner would be told, and lets nobody in."""

    def __init__(self, paths: Paths, listen: str | None, place: str | None) -> None:
        super().__init__(paths, place)
        host, _, port = (listen or ":0").rpartition(":")
        notice = read_notice(paths.home)
        port = port if port != "0" else str(notice.get("port") or "PORT")
        self.address = f"{host or notice.get('address') or socket.gethostname()}:{port}"

    def open(self, allocation: str) -> Sequence[str]:
        return self.words(allocation)


def preview(home: str | None, spec: BatchSpec) -> list[dict[str, Any]]:
    """The first native submission for each different set of needs that goes to a batch system.

    Raises UsageError for a site that there is not, and for what its batch system cannot be asked for.
    """
    paths = Paths(home)
    config = load_config(paths.home)
    out: list[dict[str, Any]] = []
    different = dict.fromkeys(template.needs for template in spec.templates)
    for needs in different:
        name = needs.site or (next(iter(config.site)) if len(config.site) == 1 else None)
        if name is None:
            continue
        named = config.site.get(name)
        if named is None:
            known = ", ".join(config.site)
            raise UsageError(f"--on {name}: there is no such site in {paths.config}; there are {known}")
        if named.driver in ("local", "ssh") or len(out) >= SHAPES:
            continue
        site = BatchSite(name, named, paths, _PaperDoor(paths, config.listen, named.directory), user="", install=False)
        most = spec.count if len(different) == 1 else 1
        out.append(_submission(site, needs, spec.name, most))
    return out


def _submission(site: BatchSite, needs: Needs, name: str, jobs: int) -> dict[str, Any]:
    """The first array for these needs, as the scheduler would plan it for an idle site."""
    facts, direct = site.facts(), site.config.mode == "direct"
    why = impossible(replace(needs, site=site.name), {site.name: queue_places(site.name, facts, {})})
    if why is not None:
        raise UsageError(f"no job could run there: {why}")
    amounts, notes = grouped(needs).amounts(), ["the tag 000000000000 stands for one that is drawn for each submission"]
    if facts.whole:
        jobs = -(-jobs // max(1, amounts.times_in(facts.node)))
        node = facts.node
        amounts = Amounts(
            0 if node.cores == UNKNOWN.cores else node.cores,
            0 if node.memory == UNKNOWN.memory else node.memory,
        )
        if 0 in (amounts.cores, amounts.memory):
            notes.append("whole nodes: the batch system is asked how large they are; set cores and memory to say so")
            jobs = 1
    count = min(jobs, facts.most, facts.array_most)
    first = Allocation(
        "a1", site.name, TAG, capacity=amounts, time_s=allocation_time(needs, facts, facts.time_most_s), direct=direct,
        name=(name or "rota") if direct else "rota", options=needs.asked_options(),
    )  # fmt: skip
    allocations = [replace(first, id=f"a{number + 1}", element=number) for number in range(count)]
    ask = site.ask(TAG, allocations)
    command = site.driver.dialect.submit(ask, options_of(site.config))
    return {
        "site": site.name,
        "mode": facts.mode,
        "allocations": count,
        "more": jobs - count,
        "argv": list(command.argv),
        "line": shlex.join(command.argv),
        "script": command.stdin or "",
        "directory": ask.directory,
        "where": site.transport.name,
        "notes": notes,
    }

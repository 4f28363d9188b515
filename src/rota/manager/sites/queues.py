"""What the queues of a batch system offer, from what it says of them and what the configuration says."""

from collections.abc import Sequence
from typing import Any

from rota.drivers.dialect import Queue
from rota.manager.config import SiteConfig
from rota.model.needs import Amounts, named_resources
from rota.model.site import QueueFacts

__all__ = ["UNKNOWN", "longest_of", "node_of", "queue_facts", "queue_row", "usual"]

UNKNOWN = Amounts(10**9, 1 << 60, 1 << 60, 10**6)
"""What a node may have while nobody has said what nodes there are."""


def usual(config: SiteConfig, queues: Sequence[Queue]) -> list[Queue]:
    """The queues where an allocation that names none may go."""
    mine = [queue for queue in queues if queue.up and config.partition in (None, queue.name)]
    return mine if config.partition is not None else [queue for queue in mine if queue.is_default] or mine


def node_of(config: SiteConfig, queues: Sequence[Queue]) -> Amounts:
    """The largest node of these queues; what they do not say is not known."""
    cores = [queue.cores for queue in queues if queue.cores]
    memory = [queue.memory for queue in queues if queue.memory]
    gpus = [queue.gpus for queue in queues if queue.gpus is not None]
    return Amounts(
        config.cores if config.cores is not None else max(cores, default=UNKNOWN.cores),
        config.memory if config.memory is not None else max(memory, default=UNKNOWN.memory),
        UNKNOWN.disk,
        max(gpus) if gpus and len(gpus) == len(queues) else UNKNOWN.gpus,
        named_resources({**config.node_resources, **config.native_resources}),
    )


def longest_of(config: SiteConfig, queues: Sequence[Queue]) -> int | None:
    """The longest time of an allocation in these queues; None: not known, or without end."""
    longest_s = config.seconds("longest")
    times = [queue.time_s for queue in queues]
    if longest_s is not None or not times or None in times:
        return longest_s
    return max(time_s for time_s in times if time_s is not None)


def queue_facts(config: SiteConfig, queue: Queue, user: str) -> QueueFacts:
    """What one queue offers to a user."""
    longest_s = config.seconds("longest")
    times = [time_s for time_s in (queue.time_s, longest_s) if time_s is not None]
    denied = queue.users is not None and bool(user) and user not in queue.users
    up = queue.up and not denied
    if config.queues is not None:
        wanted = queue.name in config.queues
    else:
        wanted = queue.name == config.partition if config.partition is not None else not queue.hidden
    return QueueFacts(
        queue.name,
        node_of(config, [queue]),
        queue.nodes,
        min(times, default=None),
        queue.name == config.partition if config.partition is not None else queue.is_default,
        up,
        tuple(config.tags),
        up and wanted,
        queue.nodes_most,
        denied,
        queue.usual_s,
    )


def queue_row(queue: QueueFacts) -> dict[str, Any]:
    """A queue or partition with its limits, as far as they are known."""
    node = queue.node
    return {
        "name": queue.name,
        "default": queue.default,
        "up": queue.up,
        "auto": queue.auto,
        "nodes": queue.nodes,
        "nodes_most": queue.nodes_most,
        "cores": None if node.cores >= UNKNOWN.cores else node.cores / 1000,
        "memory": None if node.memory >= UNKNOWN.memory else node.memory,
        "gpus": None if node.gpus >= UNKNOWN.gpus else node.gpus,
        "time_s": queue.time_most_s,
        "time_usual_s": queue.time_usual_s,
    }

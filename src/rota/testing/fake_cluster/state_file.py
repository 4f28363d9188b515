"""A fake cluster's world in a file, changed by one command at a time."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rota.testing.fake_cluster.world import World

__all__ = ["opened", "rules"]


@contextmanager
def opened(directory: str) -> Iterator[World]:
    """The world, locked; what is done to it is kept, unless that raised."""
    with open(os.path.join(directory, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = os.path.join(directory, "world.json")
        with open(path) as file:
            world = World.from_data(json.load(file))
        yield world
        with open(path + ".new", "w") as file:
            # dumps is the quick one: dump writes piece by piece
            file.write(json.dumps(world.data(), separators=(",", ":")))
        os.rename(path + ".new", path)


def rules(directory: str) -> list[dict[str, Any]]:
    """The plan of faults."""
    try:
        with open(os.path.join(directory, "faults.json")) as file:
            plan = json.load(file)
    except FileNotFoundError:
        return []
    return list(plan)

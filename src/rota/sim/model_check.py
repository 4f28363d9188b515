"""Exhaustive exploration of the lease protocol.

Every order of messages, losses, duplicates and crashes, up to a budget.

Two properties: no second copy (checked at every start of a process), and nothing gets stuck (from every state, once
the faults end and messages flow, all jobs settle).
"""

import gc
import sys
import time
from collections.abc import Callable
from hashlib import blake2b

from msgspec import Struct, field

from rota.sim.gang_world import GangWorld
from rota.sim.model_world import ModelWorld, Move
from rota.sim.requeue_world import RequeueWorld

__all__ = ["CONFIGURATIONS", "DEEP", "Explored", "explore"]

ROUNDS_MOST = 40

World = ModelWorld | GangWorld | RequeueWorld

_MESSAGES = {"loss": 2, "duplicate": 2, "reorder": 2}
_ANY = {"manager-crash": 1, "runner-crash": 1, "break": 1, **_MESSAGES}
_GANG = {"kill": 1, "root-killed": 1, "vanish": 1, **_ANY}

CONFIGURATIONS: dict[str, Callable[[], World]] = {
    "messages": lambda: ModelWorld({"faults": 2, **_MESSAGES}),
    "any": lambda: ModelWorld({"faults": 1, **_ANY}),
    "breaks": lambda: ModelWorld({"faults": 2, "break": 1, "reorder": 1}),
    "ahead": lambda: ModelWorld({"faults": 1, **_ANY}, ahead=True),
    "ahead-messages": lambda: ModelWorld({"faults": 2, **_MESSAGES}, ahead=True),
    "crashes": lambda: ModelWorld({"faults": 2, "manager-crash": 1, "runner-crash": 1}, jobs=1),
    "kill": lambda: ModelWorld({"faults": 2, "kill": 1, "loss": 1, "break": 1, "manager-crash": 1}, jobs=1),
    "late": lambda: ModelWorld({"faults": 1, "long": 1, **_ANY}, jobs=1),
    "gang-messages": lambda: GangWorld({"faults": 2, "rank": 1, **_MESSAGES}),
    "gang-crashes": lambda: GangWorld({"faults": 2, "rank": 1, "runner-crash": 1, "root-killed": 1, "kill": 1}),
    "gang-breaks": lambda: GangWorld({"faults": 2, "rank": 1, "kill": 1, "break": 1}),
    "gang-manager": lambda: GangWorld({"faults": 2, "rank": 1, "manager-crash": 1, "kill": 1, "root-killed": 1}),
    "gang-manager-runner": lambda: GangWorld({"faults": 2, "rank": 1, "manager-crash": 1, "runner-crash": 1}),
    "gang-vanishes": lambda: GangWorld({"faults": 2, "rank": 1, "vanish": 1, "kill": 1}),
    "gang-of-three": lambda: GangWorld({"faults": 1, "rank": 1, "runner-crash": 1, "root-killed": 1}, nodes=3),
    "requeued-held": lambda: RequeueWorld({"held": 1}),
}
"""Worlds that `make test` explores, to the end."""

DEEP: dict[str, Callable[[], World]] = {
    "requeued": lambda: RequeueWorld({"requeue": 1}),
    "requeued-cached": lambda: RequeueWorld({"cached": 1, "requeue": 1}),
    "requeued-crash": lambda: RequeueWorld({"requeue": 1, "crash": 1}),
    "requeued-earlier": lambda: RequeueWorld({"requeue": 1, "earlier": 1}),
    "requeued-break": lambda: RequeueWorld({"requeue": 1, "break": 1}),
    "requeued-any": lambda: RequeueWorld({"requeue": 1, "held": 1, "cached": 1, "crash": 1}),
    "two-crashes": lambda: ModelWorld({"faults": 2, "manager-crash": 1, "runner-crash": 1}),
    "two-any": lambda: ModelWorld({"faults": 2, **_ANY}),
    "two-crashes-late": lambda: ModelWorld({"faults": 2, "long": 1, "manager-crash": 1, "runner-crash": 1}, jobs=1),
    "gang-vanishes-manager": lambda: GangWorld({"faults": 2, "rank": 1, "vanish": 1, "manager-crash": 1}),
    "gang-two-any": lambda: GangWorld({"faults": 2, "rank": 1, **_GANG}),
    "gang-late": lambda: GangWorld({"faults": 1, "rank": 1, "long": 1, **_GANG}),
    "gang-three-any": lambda: GangWorld({"faults": 1, "rank": 2, **_GANG}, nodes=3),
    "late-2": lambda: ModelWorld({"faults": 1, "long": 1, **_ANY}),
}
"""Larger worlds, for a night."""


class Explored(Struct):
    """The result of an exploration."""

    states: int = 0
    moves: int = 0
    continued: int = 0
    """States from which the fair continuation was run to the end or to one that is known to settle."""
    problem: str | None = None
    path: list[Move] = field(default_factory=list)
    seconds: float = 0.0


def explore(start: World, most: int = 1_000_000, fair_every: int = 1) -> Explored:
    """Go through all states breadth first, so that the first breach is one of the shortest."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)  # nearly all that is made is kept: looking for cycles costs a sixth
    try:
        return _explore(start, most, fair_every)
    finally:
        gc.set_threshold(*before)


def _explore(start: World, most: int, fair_every: int) -> Explored:
    began = time.perf_counter()
    found = Explored()
    first = _key(start)
    parents: dict[bytes, tuple[bytes, Move] | None] = {first: None}
    settles: set[bytes] = set()
    level = [(first, start)]
    while level and found.problem is None:
        following: list[tuple[bytes, World]] = []
        for key, world in level:
            if found.states >= most:
                break
            found.states += 1
            for move in world.moves():
                found.moves += 1
                try:
                    new = world.after(move)
                except AssertionError as problem:
                    found.problem = f"{type(problem).__name__}: {problem}"
                    found.path = [*_path(parents, key), move]
                    break
                new_key = _key(new)
                if new_key not in parents:
                    parents[new_key] = (key, move)
                    following.append((new_key, new))
            if found.problem is None and found.states % fair_every == 0:
                found.continued += 1
                stuck = _continue(world, key, settles)
                if stuck is not None:
                    found.problem = stuck
                    found.path = _path(parents, key)
            if found.problem is not None:
                break
        level = following
    found.seconds = time.perf_counter() - began
    return found


def _key(world: World) -> bytes:
    return blake2b(world.fingerprint().encode(), digest_size=16).digest()


def _path(parents: dict[bytes, tuple[bytes, Move] | None], key: bytes) -> list[Move]:
    out = []
    step = parents[key]
    while step is not None:
        out.append(step[1])
        step = parents[step[0]]
    return out[::-1]


def _continue(world: World, key: bytes, settles: set[bytes]) -> str | None:
    """Go on without faults while everything that can happen does; None if all jobs settle, else what is wrong."""
    passed = [key]
    try:
        for _ in range(ROUNDS_MOST):
            if world.settled or passed[-1] in settles:
                settles.update(passed)
                return None
            world = world.fair_round()
            passed.append(_key(world))
    except AssertionError as problem:
        return f"{type(problem).__name__} in the fair continuation: {problem}"
    return f"stuck: {world.fingerprint()[:2000]}"


def main() -> int:
    """Explore and say how much there was: all of CONFIGURATIONS, or those that are named."""
    bad = 0
    known = {**CONFIGURATIONS, **DEEP}
    for name in sys.argv[1:] or CONFIGURATIONS:
        found = explore(known[name]())
        print(
            f"{name:18}{found.states:8} states {found.moves:8} moves {found.seconds:6.1f} s",
            found.problem or "holds",
            flush=True,
        )
        for move in found.path:
            print("    ", *move)
        bad += found.problem is not None
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

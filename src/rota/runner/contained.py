"""The runner's side of a job in a container: how its keeper (container.py) is started, and what that had to say."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

if TYPE_CHECKING:
    from rota.runner.lease import Lease
    from rota.runner.plan import Plan
    from rota.runner.segments import Lane

__all__ = ["SPARED", "keeper", "last_word", "request"]

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "container.py")
SPARED = ("conmon", "podman", "podman-init", "catatonit")
"""Processes around a command in a container that get no TERM: they would end without telling how it ended, or (an
init) pass it on, so that the command had it twice."""
MAX_WORD = 65536


def keeper(plan: Plan, command: Any) -> List[str]:
    """The words that run a command in the container of its plan; a line is for the shell of the image."""
    inside = command if isinstance(command, list) else [*(plan.shell or "/bin/sh").split(), "-c", command]
    return [sys.executable, "-I", "-S", PROGRAM, *inside]


def request(plan: Plan, lease: Lease, lane: Lane, runner_id: str, gpus: Optional[bytes]) -> bytes:
    """What the keeper is told."""
    spec: Dict[str, Any] = dict(plan.container or {})
    safe = "".join(letter if letter.isalnum() else "-" for letter in runner_id)
    spec["name"] = "rota-%s-%d-%d-%d" % (safe, lease.batch, lease.index, lease.attempt)
    spec["word"] = lane.base + ".word"
    spec["said"] = sorted(plan.spec.get("set") or ())
    spec["gpus"] = os.fsdecode(gpus) if gpus else None
    return json.dumps(spec).encode()


def last_word(lane: Lane) -> Tuple[Optional[Tuple[str, str]], Optional[List[str]]]:
    """(reason and note of a command that was not run, words that remove what a killed keeper left); read once."""
    path = lane.base + ".word"
    try:
        with open(path, "rb") as file:
            word = json.loads(file.read(MAX_WORD))
        os.unlink(path)
    except (OSError, ValueError, RecursionError):
        return None, None
    if not isinstance(word, dict):
        return None, None
    told, remove = (word.get("reason"), word.get("note")), word.get("remove")
    if isinstance(told[0], str) and isinstance(told[1], str):
        return (told[0][:40], told[1][:1000]), None
    if isinstance(remove, list) and all(isinstance(part, str) for part in remove):
        return None, remove
    return None, None

"""The part of a gang on one node: what is known of it, and the files that tell its processes of the others."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from rota.runner.kill import TreeKill
from rota.runner.parallel import written

if TYPE_CHECKING:
    from rota.runner.inquiry import Alarm
    from rota.runner.lease import Key

__all__ = ["Part"]


class Part:
    """What this node has of one attempt."""

    __slots__ = (
        "alarm", "cpu_s", "directory", "empty", "ending", "exceeding", "id", "key", "live", "memory", "nodes", "note",
        "peak", "root", "secret", "slot", "spec",
    )  # fmt: skip

    def __init__(self, key: Key, secret: str, spec: Dict[str, Any], directory: str, root: bool) -> None:
        self.key = key
        self.secret = secret
        self.id = hashlib.sha256(b"id " + secret.encode()).hexdigest()[:32].encode()  # tells nothing of the secret
        self.spec = spec
        self.directory = directory
        self.root = root
        self.slot = ""
        self.nodes: List[Dict[str, Any]] = []
        self.ending: Optional[TreeKill] = None
        self.empty = False  # nothing was found at the last look
        self.cpu_s = 0.0  # of processes that are over
        self.live: Dict[int, float] = {}  # CPU seconds of those that were seen
        self.memory = 0  # at the last look
        self.peak = 0
        self.note = ""  # what was exceeded here
        self.alarm: Optional[Alarm] = None  # the word of that to the root
        self.exceeding: Optional[TreeKill] = None  # the end, once that is said, of all that was started here

    @property
    def mark(self) -> Tuple[bytes, bytes]:
        """Job and attempt, as the environment of every process of it has them."""
        return (b"%d.%d" % self.key[:2], b"%d" % self.key[2])

    def furnish(self, nodes: List[Dict[str, Any]]) -> None:
        """Write down, for the user of the job only, who is in the gang and how to reach it."""
        self.nodes = nodes
        directory = self.directory
        os.makedirs(directory, mode=0o700, exist_ok=True)
        entry = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
        script = '#!/bin/sh\nROTA_GANG=%s exec %s -I -S %s --rsh "$@"\n'
        gang = {"job": self.key, "secret": self.secret, "nodes": nodes}
        files = {
            "gang.json": json.dumps(gang),
            **written(nodes),
            "rsh": script % tuple(map(_quoted, (os.path.join(directory, "gang.json"), sys.executable, entry))),
        }
        for name, text in files.items():
            fd = os.open(
                os.path.join(directory, name),
                os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
                0o700 if name == "rsh" else 0o600,
            )
            with os.fdopen(fd, "w") as file:
                file.write(text)


def _quoted(text: str) -> str:
    return "'%s'" % text.replace("'", "'\\''")

"""Keeps the socket of a home connected to the manager on a head server: one ssh, started again whenever it ends.

Ends when the queue is no longer there (`deployment.json`), or when another process has taken this over.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time

from rota.manager.lock import start_ticks
from rota.manager.offline.deployed import AWAY, head_directory, read, ssh_words
from rota.manager.paths import Paths
from rota.model.errors import RotaError
from rota.wire.home import write_private

__all__ = ["main"]

LEAST_S, MOST_S = 0.5, 15.0
STEADY_S = 30.0
"""A connection that held for so long was a good one."""


def main() -> int:
    """Forward until nobody wants it any more; the exit status."""
    parser = argparse.ArgumentParser(prog="rota.manager.offline.forwarding", description=__doc__)
    parser.add_argument("--home", required=True)
    paths = Paths(parser.parse_args().home)
    own = {"pid": os.getpid(), "start": start_ticks(os.getpid())}
    record = os.path.join(head_directory(paths), "forward.json")
    write_private(record, json.dumps(own).encode())
    child: subprocess.Popen[bytes] | None = None

    def end(number: int, frame: object) -> None:
        if child is not None:
            child.kill()
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    wait_s = LEAST_S
    while True:
        try:
            found = read(paths)
            with open(record) as file:
                mine = json.load(file) == own
        except (RotaError, OSError, ValueError):
            return 0
        if found is None or found.phase != AWAY or not mine:
            return 0
        with contextlib.suppress(FileNotFoundError):
            os.unlink(paths.socket)
        words = [
            *ssh_words(paths, found),
            *("-N", "-o", "ExitOnForwardFailure=yes", "-o", "StreamLocalBindUnlink=yes"),
            *("-o", "ControlPath=none", "-L", f"{paths.socket}:{found.directory}/manager.sock"),
            f"{found.wanted.user}@{found.address}",
        ]
        began = time.monotonic()
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        child.wait()
        wait_s = LEAST_S if time.monotonic() - began > STEADY_S else min(MOST_S, wait_s * 2)
        print(f"the connection to {found.address} ended ({child.returncode}); again in {wait_s:g} s", file=sys.stderr)
        sys.stderr.flush()
        time.sleep(wait_s)


if __name__ == "__main__":
    raise SystemExit(main())

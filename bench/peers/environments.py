"""Where the others live: an environment for each that comes from PyPI, Debian's packages for the rest.

Each has a lock with hashes (`locks/`, written by `make lock` from `peers.txt`). What is installed is kept beside
.venv, so that the next run finds it there.
"""

import os
import shutil
import subprocess
import sys
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PLACE = os.environ.get("ROTA_PEERS", os.path.join(ROOT, ".venv-peers"))


class MissingError(Exception):
    """A peer cannot be had here."""


def python_of(peer: str) -> str:
    """The Python of the environment of a peer, which is made if there is none yet."""
    lock = os.path.join(HERE, "locks", f"{peer}.lock")
    with open(lock, "rb") as file:
        stamp = os.path.join(PLACE, peer, f".installed-{zlib.crc32(file.read()):08x}")
    python = os.path.join(PLACE, peer, "bin", "python")
    if not os.path.exists(stamp):
        shutil.rmtree(os.path.join(PLACE, peer), ignore_errors=True)
        _call(peer, sys.executable, "-m", "venv", os.path.join(PLACE, peer))
        _call(peer, python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", lock)
        with open(stamp, "w"):
            pass
    return python


def _call(peer: str, *words: str) -> None:
    quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    done = subprocess.run(words, env=quiet, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingError(f"{peer} could not be installed: {(done.stderr or done.stdout).strip()[-300:]}")


def debian(command: str) -> str:
    """The path of a command that Debian has."""
    found = shutil.which(command)
    if found is None:
        raise MissingError(
            f"there is no {command} here (bench/peers/packages.txt; as root, make bench-peers installs it)"
        )
    return found

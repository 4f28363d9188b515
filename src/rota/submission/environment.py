"""The part of the submitter's environment that goes with a batch."""

import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from rota.manager.paths import CONFIG, default_home

__all__ = ["Sorted", "own_environment", "submit_environment"]

SECRET_WORDS = (
    "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "API_KEY", "APIKEY", "CREDENTIAL", "PRIVATE_KEY",
    "ACCESS_KEY", "SIGNING_KEY", "ENCRYPTION_KEY", "SESSION_KEY", "COOKIE", "BEARER", "JWT",
)  # fmt: skip
"""A variable with one of these in its name is not sent."""
SECRET_ENDS = ("PASS", "PW", "_PWD", "_AUTH", "_KEY", "_KEYS", "_PAT", "_DSN", "_CREDS")
"""The same at the end of its name."""
SECRET_VALUE = re.compile(
    r"\b[a-z][a-z0-9+.-]{1,20}://[^/\s:@?#]*:[^/\s@?#]+@|-----BEGIN [A-Z ]*PRIVATE KEY", re.IGNORECASE
)
"""In its value: an address with a password, a private key."""
FOREIGN_STARTS = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "PBS_", "LSB_", "LS_JOB", "SGE_", "SSH_", "ROTA_")
FOREIGN_NAMES = frozenset(("TMPDIR", "JOB_ID"))
"""Variables of the cluster job, the login session or the machine that you submit from: not sent."""
GRID_ENGINE_NAMES = frozenset((
    "ARC", "JOB_NAME", "JOB_SCRIPT", "NHOSTS", "NQUEUES", "NSLOTS", "PE", "PE_HOSTFILE", "QUEUE", "REQUEST",
    "RESTARTED", "TASK_ID",
))  # fmt: skip
"""Left out if SGE_TASK_ID is set: then you submit from inside a Grid Engine job, which made them."""
KEPT = frozenset(
    ("PBS_CONF_FILE", "SGE_CELL", "SGE_CLUSTER_NAME", "SGE_EXECD_PORT", "SGE_QMASTER_PORT", "SGE_ROOT", "SLURM_CONF")
)
"""Variables that are sent: by them the cluster's own commands find their configuration."""
SHELL_NAMES = frozenset(("PWD", "OLDPWD", "SHLVL", "_"))
"""Variables that a shell makes itself: left out without a word."""


class Sorted(NamedTuple):
    """The variables of this process: what is sent with a submission, and the names of what is not."""

    sent: dict[str, str]
    left_out: list[str]
    secrets: list[str]
    """Those left out that look secret."""
    encoded: bytes
    """What is sent, in JSON."""


class _Last(NamedTuple):
    """What was sorted last. A program that submits often has the same variables each time."""

    raw: Any
    """The environment as it was."""
    path: str
    """The file with the user's own patterns; empty: that depends on the directory that we are in."""
    seen: tuple[int, int, int] | None
    """That file as it was."""
    found: Sorted


_LAST: list[_Last] = []


def own_environment() -> Sorted:
    """The variables of this process, sorted: the same object as long as nothing has changed, not to be changed."""
    raw = getattr(os.environ, "_data", None)  # CPython's own dict: to compare it is many times quicker than to read it
    if _LAST and raw is not None and raw == _LAST[0].raw and _LAST[0].path and _seen(_LAST[0].path) == _LAST[0].seen:
        return _LAST[0].found
    home = default_home()
    path = os.path.join(home, CONFIG)
    seen = _seen(path)
    patterns = secret_names(home)
    sent, left_out = submit_environment(os.environ, *patterns)
    secrets = [name for name in left_out if _is_secret(name, os.environ.get(name, ""))]
    found = Sorted(sent, left_out, secrets, msgspec.json.encode(sent))
    fixed = os.environ.get("ROTA_HOME", "/").startswith("/") and os.environ.get("HOME", "").startswith("/")
    _LAST[:] = [_Last(None if raw is None else dict(raw), path if fixed else "", seen, found)]
    return found


def _seen(path: str) -> tuple[int, int, int] | None:
    """Which file is there, as far as that tells whether it has changed."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def submit_environment(
    environ: Mapping[str, str], more: Sequence[str] = (), keep: Sequence[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """The variables of the submitter that are sent, and the names of those that are not.

    `more` and `keep` are patterns of further names that are secret, and of names that are not, as the user sees it.
    """
    sent: dict[str, str] = {}
    left_out: list[str] = []
    foreign = FOREIGN_NAMES | GRID_ENGINE_NAMES if "SGE_TASK_ID" in environ else FOREIGN_NAMES
    for name, value in environ.items():
        if name in SHELL_NAMES:
            continue
        stays = _is_foreign(name) or name.upper() in foreign or not _is_text(name + value)
        if stays or (_is_secret(name, value, more) and not _matches(name, keep)):
            left_out.append(name)
        else:
            sent[name] = value
    return sent, sorted(left_out)


def secret_names(home: str) -> tuple[list[str], list[str]]:
    """The patterns of names that the user's configuration adds to the secret ones, and takes from them."""
    try:
        with open(os.path.join(home, CONFIG), "rb") as file:
            text = file.read()
    except OSError:
        return [], []
    if b"secrets" not in text:  # nearly always; to read it all takes longer than the rest of a submission
        return [], []
    from rota.manager.config import load_config

    secrets = load_config(home).secrets
    return secrets.names, secrets.keep


def _is_secret(name: str, value: str, more: Sequence[str] = ()) -> bool:
    """Whether a variable looks like a secret, by its name or its value."""
    return _has_secret_name(name) or SECRET_VALUE.search(value) is not None or _matches(name, more)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@lru_cache(4096)  # a program that submits often has the same variables each time
def _has_secret_name(name: str) -> bool:
    upper = name.upper()
    return upper.endswith(SECRET_ENDS) or any(word in upper for word in SECRET_WORDS)


@lru_cache(4096)
def _is_foreign(name: str) -> bool:
    return not name or (name.upper().startswith(FOREIGN_STARTS) and name not in KEPT)


def _is_text(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

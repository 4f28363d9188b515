"""Tokens of jobs: what is running may add jobs, as long as its attempt lasts.

Nothing is kept of them: a runner is told a secret of its own when it greets, from which it makes the token of each
attempt, and the manager makes it again when somebody comes with it.
"""

import hashlib

from rota.core.decide.ends import find_job
from rota.core.state import Live, State
from rota.wire.auth import Access, verifier
from rota.wire.tokens import JOB

__all__ = ["attempt_lives", "job_access", "runner_secret"]


def runner_secret(secret: str, runner: str) -> bytes:
    """What a runner makes the tokens of its jobs from."""
    return hashlib.blake2b(runner.encode(), digest_size=32, key=bytes.fromhex(secret)).digest()


def attempt_lives(state: State, name: str) -> bool:
    """Whether the attempt lasts that a token of this name is for."""
    return _live(state, name) is not None


def _live(state: State, name: str) -> Live | None:
    parts = name.removeprefix(JOB).split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        return None
    batch, index, attempt = map(int, parts)
    found = find_job(state, batch, index)
    live = None if found is None else found[0].live.get(found[1])
    return None if live is None or live.attempt != attempt else live


def job_access(state: State, secret: str, name: str) -> Access | None:
    """What the token of an attempt opens; None: the attempt is over, or there was none."""
    live = _live(state, name)
    if live is None:
        return None
    key, job = runner_secret(secret, live.runner), name.removeprefix(JOB)
    return Access("submit", verifier(hashlib.blake2b(job.encode(), digest_size=32, key=key).hexdigest()))

"""S5 and P9: the same seed gives the same events and executions, whatever the hash seed."""

import os
import subprocess
import sys


def hashes(hash_seed: str) -> str:
    command = [sys.executable, "-m", "rota.sim", "--seeds", "20", "--first", "5000", "--hashes"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_hash_seed_changes_nothing() -> None:
    first = hashes("1")
    assert len(first.splitlines()) == 20
    assert first == hashes("271828")

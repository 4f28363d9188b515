"""The examples run, as they are, with `rota` on PATH."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("first-run.sh", ["300 COMPLETED", "2 COMPLETED", "9045050", "RETRIED"]),
        ("sweep.sh", ["45 COMPLETED", "45\t40\t0\t163.09"]),
        ("notebook.py", ["the sum of the squares is 2870", "2.1 ended with 2: cannot open a.txt"]),
    ],
)
def test_example(name, wanted, tmp_path):
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TMPDIR": "/tmp"}
    environ.pop("ROTA_HOME", None)
    program = [sys.executable] if name.endswith(".py") else ["bash"]
    done = subprocess.run(
        [*program, str(ROOT / "examples" / name)],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert [text for text in wanted if text not in done.stdout] == [], done.stdout

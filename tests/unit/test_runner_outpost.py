"""What is asked of a host: what it says of itself, and of files."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "src" / "rota" / "runner" / "__main__.py"


def ask(what, **more):
    request = json.dumps({"what": what, **more})
    done = subprocess.run(
        [sys.executable, "-I", "-S", PROGRAM, "--outpost", request], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_17_memory_is_in_bytes_and_cores_in_thousandths(tmp_path):
    found = ask("probe", directory=str(tmp_path))
    with open("/proc/meminfo") as file:
        total = int(next(line for line in file if line.startswith("MemTotal")).split()[1]) << 10
    assert total >> 10 < found["memory"] <= total
    assert found["cores"] in range(1000, 1000 * (os.cpu_count() or 1) + 1)


def test_files_are_looked_at_and_the_directory_of_a_job_is_made_in_one_request(tmp_path):
    (tmp_path / "x").write_text("123")
    os.mkfifo(tmp_path / "pipe")
    paths = [str(tmp_path / name) for name in ("x", "none", "pipe")]
    found = ask("files", paths=paths, cwd=str(tmp_path / "a" / "b"))
    assert found["files"].keys() == {paths[0]} and found["files"][paths[0]]["size"] == 3
    assert list(found["bad"]) == [paths[2]] and (tmp_path / "a" / "b").is_dir()
    refused = ask("files", paths=paths, cwd=str(tmp_path / "x" / "b"))
    assert refused["error"] == "denied" and str(tmp_path / "x") in refused["words"]


def test_19_only_directories_of_runners_that_are_over_are_removed(tmp_path):
    over, running, linked, other = (tmp_path / name for name in ("0" * 12, "1" * 12, "2" * 12, "data"))
    for place in (over, running, other):
        (place / "0").mkdir(parents=True)
    linked.symlink_to(other)
    words = [sys.executable, "-c", "input()", "--id", f"{running.name}.0.0", "/x/runner/__main__.py"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as runner:
        until_it_is_seen(runner.pid, "__main__.py")
        places = [str(path) for path in (over, running, linked, other, tmp_path / ("3" * 12))]
        gone = ask("clean", places=places)["gone"]
        assert runner.stdin is not None
        runner.stdin.close()
    assert gone == [str(over), str(tmp_path / ("3" * 12))]
    assert not over.exists() and (running / "0").is_dir() and (other / "0").is_dir() and linked.is_symlink()


def until_it_is_seen(pid, word):
    while word not in Path(f"/proc/{pid}/cmdline").read_text():
        time.sleep(0.01)

"""What a node has, as its cgroups bound it: written-out copies of cgroup v1 and v2, since this machine has only one."""

import os
from pathlib import Path

import pytest

from rota.runner import host


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Builds a tree: lines of /proc/self/cgroup, and files with their text."""

    def build(lines: str, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "self").write_text(lines)
        real = host.read_text
        monkeypatch.setattr(host, "CGROUPS", str(tmp_path))
        monkeypatch.setattr(
            host, "read_text", lambda path: real(str(tmp_path / "self") if path == "/proc/self/cgroup" else path)
        )

    return build


OWN = len(os.sched_getaffinity(0)) * 1000


def test_without_limits_it_is_the_affinity_and_the_whole_memory(groups) -> None:
    groups("0::/user\n", {"user/cpu.max": "max 100000\n", "user/memory.max": "max\n"})
    assert host.cores() == OWN
    assert host.memory() == int(Path("/proc/meminfo").read_text().split()[1]) * 1024


def test_version_2_every_level_bounds(groups) -> None:
    files = {"a/cpu.max": "50000 100000\n", "a/b/cpu.max": "max 100000\n"}
    files |= {"a/memory.max": "2147483648\n", "a/b/memory.max": "1073741824\n"}
    groups("0::/a/b\n", files)
    assert host.cores() == 500
    assert host.memory() == 1 << 30


def test_version_1(groups) -> None:
    files = {"cpu,cpuacct/job/cpu.cfs_quota_us": "25000\n", "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n"}
    files["memory/job/memory.limit_in_bytes"] = "536870912\n"
    files["memory/memory.limit_in_bytes"] = "9223372036854771712\n"
    groups("4:memory:/job\n3:cpu,cpuacct:/job\n", files)
    assert host.cores() == 250
    assert host.memory() == 512 << 20


@pytest.mark.parametrize("period", [1_000, 50_000, 100_000, 1_000_000])
def test_17_a_quota_is_one_of_its_own_period(groups, period: int) -> None:
    groups("0::/a\n", {"a/cpu.max": f"{period // 4 * 3} {period}\n"})
    assert host.cores() == min(OWN, 750)
    files = {"cpu/job/cpu.cfs_quota_us": f"{period // 4}\n", "cpu/job/cpu.cfs_period_us": f"{period}\n"}
    groups("3:cpu:/job\n", files)
    assert host.cores() == 250


def test_version_1_without_a_quota(groups) -> None:
    groups("3:cpu,cpuacct:/\n", {"cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"})
    assert host.cores() == OWN


def test_garbage_bounds_nothing(groups) -> None:
    groups("nonsense\n0::/x\n", {"x/cpu.max": "many few\n", "x/memory.max": "lots\n"})
    assert host.cores() == OWN
    assert host.memory() > 0


def test_a_kill_for_memory_in_our_group_is_seen_once(groups, tmp_path: Path) -> None:
    groups("0::/x\n", {"x/memory.events": "low 0\nhigh 0\nmax 3\noom 0\noom_kill 2\n"})
    counter = host.OomCounter()
    assert not counter.rose()
    (tmp_path / "x/memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\n")
    assert counter.rose()
    assert not counter.rose()


@pytest.mark.parametrize(
    ("environ", "cores", "memory"),
    [
        ({}, None, None),
        ({"SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_NODE": "2048"}, 4000, 2 << 30),
        ({"SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_NODE": "0"}, 4000, None),
        ({"SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_CPU": "512"}, 4000, 2 << 30),
        ({"NSLOTS": "3"}, 3000, None),
        ({"LSB_DJOB_NUMPROC": "8", "LSB_MAX_NUM_PROCESSORS": "16"}, 8000, None),
        ({"PBS_NP": "2", "NCPUS": "2"}, 2000, None),
        ({"NSLOTS": "undefined", "NCPUS": "", "PBS_NP": "-1"}, None, None),
    ],
)
def test_what_a_batch_system_says_it_gave(environ: dict[str, str], cores: int | None, memory: int | None) -> None:
    found = host.granted(environ)
    assert found == (cores or host.NO_LIMIT * 1000, memory or host.NO_LIMIT)

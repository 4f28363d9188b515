"""Directories of jobs' own, without a runner: mounts, races, steps, and what is counted."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

from rota.runner import workdir
from rota.runner.workdir import Workdir, bytes_below, empty, slice_of


def removed(place: Workdir, whole: bool = True) -> list[str]:
    problems: list[str] = []
    for _ in place.clear(whole, problems):
        pass
    place.close()
    return problems


def test_a_directory_on_another_mount_is_left_with_all_above_it(tmp_path: Path, monkeypatch) -> None:
    place = Workdir(str(tmp_path), (7, 1, 1), "r")
    inner = Path(place.path) / "a" / "mounted"
    inner.mkdir(parents=True)
    (inner / "data").write_text("x")
    (Path(place.path) / "other").write_text("x")
    real, target = workdir.mount_of, inner.stat().st_ino
    monkeypatch.setattr(workdir, "mount_of", lambda fd: "m" if os.fstat(fd).st_ino == target else real(fd))
    assert removed(place) == [f"{place.path}/a/mounted was not removed: it is a mount of its own"]
    assert (inner / "data").exists() and not (Path(place.path) / "other").exists()
    assert (Path(place.path) / ".rota-workdir").exists(), "what is left is still known as ours"


def test_a_real_bind_mount_of_the_same_file_system(tmp_path: Path) -> None:
    place = Workdir(str(tmp_path), (7, 1, 1), "r")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").write_text("x")
    target = Path(place.path) / "mounted"
    target.mkdir()
    mounted = subprocess.run(["mount", "--bind", tmp_path / "precious", target], capture_output=True, check=False)
    if mounted.returncode:
        place.close()
        pytest.skip("mounting is not allowed here")
    try:
        assert removed(place) == [f"{target} was not removed: it is a mount of its own"]
        assert (tmp_path / "precious" / "data").exists()
    finally:
        subprocess.run(["umount", target], check=True)


def test_making_and_pruning_race(tmp_path: Path) -> None:
    """Parents are removed by others all the time, and still every directory is made, and all are removed."""
    wrong: list[object] = []

    def work(batch: int) -> None:
        for index in range(150):
            try:
                place = Workdir(str(tmp_path), (5, index % 3, batch), "r")
                wrong.extend(removed(place))
            except OSError as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and list(tmp_path.iterdir()) == []


def test_many_jobs_do_not_share_one_directory(tmp_path: Path) -> None:
    paths = []
    for index in (1, 999, 1000, 1_234_567):
        place = Workdir(str(tmp_path), (7, index, 2), "r")
        paths.append(os.path.relpath(place.path, tmp_path))
        place.close()
    assert paths == [
        "rota_work/7/0/7.1.2", "rota_work/7/0/7.999.2", "rota_work/7/1/7.1000.2", "rota_work/7/1234/7.1234567.2",
    ]  # fmt: skip


def test_work_goes_in_slices(tmp_path: Path) -> None:
    place = Workdir(str(tmp_path), (7, 1, 1), "r")
    for number in range(200):
        (Path(place.path) / str(number)).write_text("x")
    problems: list[str] = []
    work = place.clear(True, problems)
    slices = 1
    while not slice_of(work, 0.0):
        slices += 1
    place.close()
    assert slices > 200 and problems == [] and list(tmp_path.iterdir()) == []


def test_rota_work_may_be_a_link_to_a_larger_disk(tmp_path: Path) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "rota_work").symlink_to(tmp_path / "large")
    place = Workdir(str(tmp_path / "cwd"), (7, 1, 1), "r")
    assert (tmp_path / "large/7/0/7.1.1/.rota-workdir").exists()
    assert removed(place) == []
    assert list((tmp_path / "large").iterdir()) == [] and (tmp_path / "cwd" / "rota_work").is_symlink()


def test_only_its_temporary_part(tmp_path: Path) -> None:
    place = Workdir(str(tmp_path), (7, 1, 1), "r")
    (Path(place.path) / ".rota-tmp" / "x" / "y").mkdir(parents=True)
    (Path(place.path) / "result").write_text("x")
    assert removed(place, whole=False) == []
    assert sorted(os.listdir(place.path)) == [".rota-workdir", "result"]


def test_a_file_that_cannot_be_removed_is_named(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "a").mkdir()
    for number in range(9):
        (tmp_path / "a" / f"f{number}").write_text("x")
    real = os.unlink

    def unlink(name, *, dir_fd=None):
        if str(name).startswith("f"):
            raise OSError(16, "Device or resource busy")
        real(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink)
    problems: list[str] = []
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in empty(fd, problems, "/shown"):
        pass
    os.close(fd)
    assert len(problems) == 3 and all(text.startswith("/shown/a/f") for text in problems)
    assert "Device or resource busy" in problems[0]


def test_bytes_count_once_and_not_through_links(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    (tmp_path / "outside").write_bytes(b"x" * 1_000_000)
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (top / "sub" / "file").write_bytes(b"x" * 100_000)
    os.link(top / "sub" / "file", top / "again")
    (top / "link").symlink_to(tmp_path / "outside")
    with (top / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert 100_000 <= sum(bytes_below(str(top), device)) < 200_000
    assert sum(bytes_below(str(tmp_path / "missing"), device)) == 0


def test_the_peak_stays_when_files_go(tmp_path: Path) -> None:
    place = Workdir(str(tmp_path), (7, 1, 1), "r")
    (Path(place.path) / "file").write_bytes(b"x" * 500_000)
    assert place.measure(10.0) and place.disk is not None and place.disk >= 500_000
    (Path(place.path) / "file").unlink()
    assert place.measure(10.0) and place.disk < 500_000 <= place.peak
    removed(place)

"""Attacks by files: what other users, or jobs, can put where the manager or a node looks."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from process.support_home import Home, home
from process.support_users import THIEF, by_thief, shared
from rota.drivers.script import CHECK, NOT_OURS, build_script
from rota.manager.answers.output import _read_file
from rota.manager.paths import own_directory, prepare
from rota.manager.sites.installing import install_runner, runner_digest, runner_place
from rota.model.errors import DeniedError, NotFoundError

__all__ = ["home", "shared"]


def plant(home: Path, taken: Path) -> None:
    """Put a runner where one is looked for."""
    place = runner_place(str(home))
    os.makedirs(place)
    Path(os.path.dirname(place), "__init__.py").touch()
    Path(place, "__main__.py").write_text(f"open({str(taken)!r}, 'w').write('taken')")


def test_nobody_else_can_plant_the_runner_that_nodes_start(shared: Path) -> None:
    scratch = shared / "scratch"
    assert by_thief(lambda: scratch.mkdir(0o777))
    assert by_thief(lambda: plant(scratch, shared / "taken"))
    with pytest.raises(DeniedError, match=f"belongs to uid {THIEF}"):
        install_runner(str(scratch))
    mine = shared / "mine"
    mine.mkdir(0o700)
    with pytest.raises(DeniedError, match="where others could put something else"):
        install_runner(str(mine))
    os.chmod(shared, 0o1777)
    assert install_runner(str(mine)) == runner_place(str(mine))
    assert not by_thief(lambda: os.rename(mine, shared / "away"))
    os.chmod(mine, 0o777)
    with pytest.raises(DeniedError, match="can be written by others"):
        install_runner(str(mine))


def test_what_was_planted_in_a_directory_that_is_ours_by_now_is_refused(shared: Path) -> None:
    os.chmod(shared, 0o1777)
    for what in ("directory", "file", "link"):
        mine = shared / what
        mine.mkdir()
        os.chmod(mine, 0o777)
        if what == "directory":
            assert by_thief(lambda at=mine: plant(at, shared / "taken"))
        os.chmod(mine, 0o700)
        if what != "directory":
            target = os.path.join(install_runner(str(mine)), "agent.py")
            if what == "file":
                os.chown(target, THIEF, THIEF)
            else:
                os.unlink(target)
                os.symlink("/etc/hostname", target)
        with pytest.raises(DeniedError, match=r"nodes (would )?run"):
            install_runner(str(mine))
    assert not (shared / "taken").exists()


def test_a_copy_that_is_spoilt_is_made_anew_and_parents_are_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        place = Path(install_runner(str(tmp_path / "a" / "b")))
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (place / "launcher.c").exists(), "without it the runners of a pilot would start jobs the slow way"
    (place / "launcher.c").write_text("int main(void) { return 1; }")
    (place / "agent.py").write_text("raise SystemExit('spoilt')")
    (place / "json.py").write_text("")
    assert install_runner(str(tmp_path / "a" / "b")) == str(place)
    assert "spoilt" not in (place / "agent.py").read_text()
    assert "return 1; }" not in (place / "launcher.c").read_text()
    assert not (place / "json.py").exists()
    with pytest.raises(DeniedError, match="symbolic link"):
        os.symlink(tmp_path / "a", tmp_path / "link")
        own_directory(str(tmp_path / "link"))


def test_a_log_planted_beside_a_backup_is_never_taken(home: Home, shared: Path) -> None:
    os.chmod(shared, 0o1777)
    home.rota("up")
    home.add("--", "true")
    home.settled()
    backup = shared / "mine.db"
    home.rota("backup", str(backup))
    home.rota("down")

    def plant_log() -> None:  # a queue of his own, whose log has all the pages that are read
        con = sqlite3.connect(shared / "his.db")
        con.execute("PRAGMA journal_mode=WAL")
        con.execute("CREATE TABLE t AS SELECT 'a job of his'")
        con.commit()
        os.rename(shared / "his.db-wal", f"{backup}-wal")
        os._exit(0)  # so that nothing tidies up

    assert by_thief(plant_log)
    done = home.rota("restore", str(backup), code=5)
    assert f"uid {THIEF}" in done.stderr
    os.unlink(f"{backup}-wal")
    os.chown(backup, THIEF, THIEF)
    assert "its jobs would run as you" in home.rota("restore", str(backup), code=5).stderr
    os.chown(backup, 0, 0)
    os.symlink(backup, shared / "link.db")
    assert "symbolic link" in home.rota("restore", str(shared / "link.db"), code=5).stderr
    home.rota("restore", str(backup))
    home.rota("up")
    assert [row["state"] for row in home.rows("jobs")] == ["COMPLETED"]


def test_a_queue_that_others_could_write_is_not_opened(home: Home) -> None:
    home.rota("up")
    home.rota("down")
    for end, mode, uid in (("", 0o666, 0), ("-wal", 0o600, THIEF), ("-journal", 0o600, THIEF)):
        path = Path(f"{home.path}/rota.db{end}")
        path.touch()
        before = path.stat()
        if os.getuid() == 0:
            os.chown(path, uid, 0)
        path.chmod(mode if os.getuid() == 0 else 0o666)
        done = home.rota("up", code=5)
        assert "nobody else can write" in done.stderr
        path.chmod(before.st_mode & 0o777)
        if end:
            path.unlink()
    home.rota("up")


def start(place: str) -> subprocess.CompletedProcess[str]:
    script = build_script([os.path.join(place, "__main__.py"), "--help"], python=sys.executable, digest=runner_digest())
    env = {"PATH": os.environ["PATH"], "ROTA_ELEMENT": "0"}
    return subprocess.run(["/bin/sh"], input=script, capture_output=True, text=True, env=env, timeout=60)


def test_a_node_starts_what_another_start_compiles_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled file has a passing name until it is whole: that it is gone again says nothing against the place."""
    top = os.path.dirname(os.path.dirname(install_runner(str(tmp_path / "d"))))
    found = [*os.walk(top), (os.path.join(top, "rota", "runner", "__pycache__"), [], ["gone.pyc.140309963986464"])]
    monkeypatch.setattr(os, "walk", lambda _: iter(found))
    monkeypatch.setattr(sys, "argv", ["-c", top, runner_digest()])
    exec(CHECK, {})
    monkeypatch.setattr(sys, "argv", ["-c", top, "another digest"])
    with pytest.raises(SystemExit, match="not what the manager put there"):
        exec(CHECK, {})


def test_a_node_starts_nothing_but_what_the_manager_put_there(tmp_path: Path) -> None:
    place = install_runner(str(tmp_path / "d"))
    done = start(place)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage" in done.stdout
    path = Path(place, "__main__.py")
    text = path.read_text()
    path.write_text(f"print('taken')\n{text}")
    done = start(place)
    assert (done.returncode, done.stdout) == (NOT_OURS, "")
    assert "not what the manager put there" in done.stderr
    path.write_text(text)
    path.chmod(0o666)
    assert "can be written by others" in start(place).stderr
    path.chmod(0o600)
    path.rename(tmp_path / "elsewhere.py")
    path.symlink_to(tmp_path / "elsewhere.py")
    assert "is a link" in start(place).stderr


def test_output_is_read_through_no_link_and_of_nobody_else(shared: Path) -> None:
    theirs = shared / "theirs"
    assert by_thief(lambda: theirs.write_text("of somebody else"))
    assert _read_file(str(theirs), 0, 100) == (b"", 0)
    mine = shared / "mine"
    mine.write_text("of ours")
    assert _read_file(str(mine), 0, 100)[0] == b"of ours"
    (shared / "link").symlink_to(mine)
    with pytest.raises(NotFoundError):
        _read_file(str(shared / "link"), 0, 100)
    assert _read_file(str(shared / "link"), 0, 100, links=True)[0] == b"of ours", "where the user named it"


def test_the_parents_of_a_home_are_private_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        prepare(str(tmp_path / "a" / "b" / "home"))
    finally:
        os.umask(old)
    for place in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "home"):
        assert place.stat().st_mode & 0o777 == 0o700

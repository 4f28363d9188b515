"""`rota backup` and `rota restore` with real managers: consistent while jobs run, and nothing lost or replaced."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

from process.support_home import ROTA, Home, a_home, alive, home

__all__ = ["home"]


def databases(home: Home) -> list[str]:
    return sorted(name for name in os.listdir(home.path) if name.startswith("rota.db"))


def check(path: str | Path) -> None:
    con = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    assert con.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    con.close()


def test_a_backup_while_jobs_run(home: Home) -> None:
    home.add("--array", "1-3000", "--", "true")
    paths = [home.rota("backup").stdout.strip() for _ in range(5)]
    assert len(set(paths)) == 5
    home.settled()
    told = home.json("backup")
    assert told["jobs"] == 3000
    assert told["bytes"] == os.path.getsize(told["path"])
    for path in (*paths, told["path"]):
        assert os.stat(path).st_mode & 0o777 == 0o600
        check(path)
    assert not [name for name in os.listdir(Path(home.path, "backups")) if not name.endswith(".db")]
    own = home.work / "own.db"
    home.rota("backup", "own.db", cwd=home.work)
    home.rota("backup", str(own))
    check(own)
    home.rota("backup", str(home.work))
    assert len(list(home.work.glob("rota-*.db"))) == 1


def test_what_a_backup_refuses(home: Home) -> None:
    home.rota("up")
    precious = home.work / "thesis.tex"
    precious.write_text("mine")
    assert "no backup of rota's" in home.rota("backup", str(precious), code=5).stderr
    assert precious.read_text() == "mine"
    assert "the queue itself" in home.rota("backup", f"{home.path}/rota.db", code=5).stderr
    assert "cannot be written" in home.rota("backup", str(home.work / "no" / "such" / "place.db"), code=5).stderr
    link = home.work / "link.db"
    link.symlink_to(f"{home.path}/rota.db")
    assert "the queue itself" in home.rota("backup", str(link), code=5).stderr
    home.rota("add", "--", "true")
    home.settled()


def test_restored_jobs_run_once_and_nothing_is_lost(home: Home) -> None:
    """Jobs before, at and after the backup: the queue of the backup comes back, paused, and all of it settles."""
    out = home.work / "ran"
    out.mkdir()
    home.add("--values", "a,b", "--", f"echo {{}} $ROTA_ATTEMPT >> {out}/{{}}")
    home.settled()
    gate = home.gate()
    slow = home.add("-c", "0.5", "--values", "c,d", "--", f"echo {{}} $ROTA_ATTEMPT >> {out}/{{}}; {gate.wait}")
    home.until(lambda: home.counts(slow).get("RUNNING") == 2)
    home.rota("pause")
    waiting = home.add("-c", "0.1", "--array", "1-5", "--", f"echo {{index}} $ROTA_ATTEMPT >> {out}/w{{index}}")
    path = home.rota("backup").stdout.strip()
    home.rota("resume")
    home.settled(waiting)
    after = home.add("--", "true")
    home.settled(after)
    assert "stop it first" in home.rota("restore", path, code=5).stderr
    home.rota("down")
    told = home.json("restore", path)
    assert (told["batches"], told["jobs"], told["running"], told["paused"]) == (3, 9, 2, True)
    assert told["next_batch"] == 1001
    assert Path(told["replaced"]).exists()
    home.rota("up")
    assert [row["as"] for row in home.ask("ping")["pauses"]] == ["user", "restore"]
    assert home.counts("1") == {"COMPLETED": 2}
    assert home.counts(waiting) == {"PENDING": 5}
    assert "there is no batch" in home.rota("status", after, code=2).stderr
    home.rota("resume", "--all")
    gate.open()
    assert home.settled() == {"COMPLETED": 9}
    for name in "cd":  # they ran at the backup, and were never lost sight of
        assert (out / name).read_text() == f"{name} 1\n"
    for number in range(1, 6):  # they ran after it, which the backup cannot know: again, and it shows
        assert (out / f"w{number}").read_text() == f"{number} 1\n{number} 1001\n"
    assert home.add("--", "true") == "1001"
    assert home.settled("1001") == {"COMPLETED": 1}
    # And back again to what was moved aside: it has its own past
    home.rota("down")
    home.rota("restore", told["replaced"], "--no-pause")
    home.rota("up")
    assert home.counts(after) == {"COMPLETED": 1}
    assert home.ask("ping")["state"] == "serving"
    assert int(home.add("--", "true")) == 2001


def test_runners_that_are_gone_are_lost_by_the_drivers_word(home: Home) -> None:
    """The runner of the backup's running jobs has died since: they are given up once, and run again."""
    home.config('missing_after = "4s"\ntouch = "1s"\n')
    mark, gate = home.work / "ran", home.gate()
    batch = home.add("--", f"echo x >> {mark}; {gate.wait}")
    home.until(lambda: home.counts(batch).get("RUNNING") == 1)
    path = home.rota("backup").stdout.strip()
    gate.open()
    home.settled(batch)
    home.rota("down", "--kill")
    home.until(lambda: not home.runners())
    home.rota("restore", path, "--no-pause")
    home.rota("up")
    assert home.settled(batch) == {"COMPLETED": 1}
    assert mark.read_text() == "x\nx\n"
    states = [row["state"] for row in home.rows("history", f"{batch}.1")]
    assert states == ["COMPLETED", "LOST"], "and it shows that the first was lost sight of"


def test_a_backup_in_a_new_home(home: Home) -> None:
    """As on another machine: nothing is there yet, and there is nothing to move aside."""
    home.add("--values", "a,b", "--", "echo {}")
    home.settled()
    path = home.rota("backup", str(home.work / "b.db")).stdout.strip()
    with a_home() as other:
        told = other.json("restore", path)
        assert (told["replaced"], told["jobs"], told["next_batch"]) == (None, 2, 1001)
        other.rota("up")
        assert other.counts() == {"COMPLETED": 2}
        other.rota("resume", "--as", "restore")
        other.rota("retry", ":completed")
        assert other.settled() == {"COMPLETED": 2}
        assert other.rota("log", "1.2").stdout == "b\n"


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 6000] = os.urandom(6000)
    path.write_bytes(data)


def harmed(path: Path, harm: str) -> None:
    if harm == "text":
        path.write_text("my queue, honestly")
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "missing":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif harm == "random":
        damaged(path)
    else:
        con = sqlite3.connect(path)
        con.execute("PRAGMA application_id=7" if harm == "other" else "PRAGMA user_version=77")
        con.commit()
        con.close()


def test_a_bad_backup_changes_nothing(home: Home) -> None:
    home.add("--array", "1-300", "--", "true")
    home.settled()
    good = home.work / "good.db"
    home.rota("backup", str(good))
    home.rota("down")
    before = {name: Path(home.path, name).read_bytes() for name in databases(home)}
    for harm in ("text", "empty", "missing", "cut", "random", "other", "newer"):
        path = home.work / f"{harm}.db"
        shutil.copy(good, path)
        harmed(path, harm)
        done = home.rota("restore", str(path), code=None)
        assert done.returncode in (2, 5), done
        assert str(path) in done.stderr
        assert {name: Path(home.path, name).read_bytes() for name in databases(home)} == before
        assert not [name for name in os.listdir(home.path) if name.startswith("restoring")]
    home.rota("up")
    assert home.counts() == {"COMPLETED": 300}


def test_a_queue_that_cannot_be_opened_is_never_replaced(home: Home) -> None:
    """Whatever is wrong with the present database: it is moved aside by a restore, and by nothing else."""
    home.add("--", "true")
    home.settled()
    path = home.rota("backup").stdout.strip()
    home.rota("down")
    home.until(lambda: not home.manager())
    database = Path(home.path, "rota.db")
    good = database.read_bytes()
    for bad in (b"not a database", good[: len(good) // 2], b""):
        database.write_bytes(bad)
        for _ in range(2):
            assert home.rota("up", code=None).returncode != 0
            assert database.read_bytes() == bad
    os.unlink(database)
    assert "restore a backup" in home.rota("up", code=None).stderr
    assert not database.exists()
    database.write_bytes(b"not a database")
    told = home.json("restore", path)
    assert Path(told["replaced"]).read_bytes() == b"not a database"
    assert told["next_batch"] > 10_000, "nobody knows what numbers were used"
    home.rota("up")
    assert home.counts() == {"COMPLETED": 1}


def test_a_restore_that_is_killed(home: Home) -> None:
    """At any moment: the old queue, the new one, or a manager that refuses to begin an empty one."""
    home.add("--array", "1-2000", "--", "true")
    home.settled()
    path = home.rota("backup").stdout.strip()
    home.add("--", "true")
    home.settled()
    home.rota("down")
    began = time.monotonic()
    home.rota("restore", path)
    whole = time.monotonic() - began
    parts = [0.95, 0.8, 0.7, 0.6, 0.5]
    while parts:
        began = time.monotonic()
        process = subprocess.Popen([ROTA, "restore", path], env=home.env, stdout=subprocess.DEVNULL)
        try:
            process.wait(parts[-1] * whole)
            whole = min(whole, time.monotonic() - began)  # it was quicker than before: not killed, once more
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            parts.pop()
        up = home.rota("up", code=None)
        if up.returncode:
            assert "restore a backup" in up.stderr or "acknowledged" in up.stderr, up.stderr
            home.rota("restore", path)
            home.rota("up")
        counts = home.counts()
        assert sum(counts.values()) in (2000, 2001)
        home.rota("down")


def test_regular_backups(home: Home) -> None:
    home.config('backup_every = "1m"\nbackup_keep = 2\n')
    where = Path(home.path, "backups")
    where.mkdir(mode=0o700, parents=True)
    old = time.time() - 3600
    for number in range(3):
        (where / f"rota-2020010{number}-000000.db").write_bytes(b"old")
        os.utime(where / f"rota-2020010{number}-000000.db", (old + number, old + number))
    (where / "mine.db").write_bytes(b"mine")
    home.rota("up")
    home.until(lambda: len([name for name in os.listdir(where) if "2020" not in name]) == 2, 60, "a backup")
    home.until(lambda: sorted(os.listdir(where))[:2] == ["mine.db", "rota-20200102-000000.db"], 60, "old ones go")
    assert len(os.listdir(where)) == 3
    home.rota("down")
    home.config('backup_every = "soon"\n')
    assert "soon" in home.rota("up", code=2).stderr
    home.config("backup_keep = 0\n")
    assert "backup_keep" in home.rota("up", code=2).stderr


def test_commits_go_on_while_a_backup_is_made(home: Home) -> None:
    """A manager that is stopped in the middle of a backup leaves no half of one, and jobs are not held up by it."""
    home.add("--array", "1-2000", "--", "true")
    with subprocess.Popen([ROTA, "backup"], env=home.env, stdout=subprocess.PIPE) as process:
        home.add("--", "true")
        out, _ = process.communicate(timeout=60)
    check(out.decode().strip())
    pid = home.manager()
    process = subprocess.Popen([ROTA, "backup"], env=home.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.kill(pid, signal.SIGKILL)
    process.wait(60)
    home.until(lambda: not alive(pid))
    home.rota("up")
    for name in os.listdir(Path(home.path, "backups")):
        if name.endswith(".db"):
            check(Path(home.path, "backups", name))
    home.settled()
    assert json.loads(home.rota("ping", "--json").stdout)["store"] == "ok"

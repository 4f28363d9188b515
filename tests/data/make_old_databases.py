"""Make the databases of this directory with the rota that is installed beside this Python: see README.md.

    python make_old_databases.py DIRECTORY

The same story twice, in real homes with real managers, runners and a fake cluster: `checkpointed` (every life of a
manager ends with `rota down`) and `killed` (a first life ends so, all later ones by SIGKILL). It needs nothing of rota
but its commands and `rota.testing.fake_cluster`, so that any version can tell it.
"""

import contextlib
import json
import lzma
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rota.testing.fake_cluster import FakeCluster

ROTA = str(Path(sys.executable).with_name("rota"))
HOME = Path("/tmp/rota-old")
"""Where every database is made: a path that tells nothing of whoever makes it."""
LARGE = 70_000
"""Jobs of the largest batch: more than a chunk of the columns holds."""
LONG = f"test ! -d {HOME} || exec sleep 100000"
"""Runs for ever where the databases are made; anywhere else it ends at once."""
ONCE = f"test $ROTA_ATTEMPT -gt 1 || {LONG}"
"""The same, but a second attempt ends at once there too."""

CONFIG = """\
missing_after = "{missing_after}"
start_by = "{missing_after}"
touch = "1s"
backoff_first = "20000d"
backoff_most = "20000d"
backoff_jitter = "0s"

[site.local]
cores = 8
memory = "4G"
linger = "1s"

[site.lost]
driver = "local"
cores = 8
memory = "4G"
linger = "1s"

[site.stuck]
driver = "local"
cores = 8
memory = "4G"
linger = "1s"

[site.one]
driver = "slurm"
mode = "direct"
poll = "1s"
poll_least = "1s"
most = 20
"""

LINES = b"""\
true
{"command": "true", "cores": 2, "memory": "10M"}
{"command": ["true", "a b"], "env": {"SEED": "3"}, "priority": 3}
{"command": "true", "cores": 2, "memory": "10M"}
{"command": "exit 3", "retries": 2, "tags": [], "time": "1h", "limits": ["few"]}
"""


class Home:
    """A home, its manager and its fake cluster."""

    def __init__(self, fake: FakeCluster) -> None:
        self.fake = fake
        self.env = {"PATH": f"{fake.bin}:/usr/bin:/bin", "HOME": "/", "ROTA_HOME": str(HOME / "home")}

    def rota(self, *words: str, stdin: bytes = b"") -> str:
        """What a command prints."""
        done = subprocess.run([ROTA, *words], input=stdin, capture_output=True, env=self.env, cwd="/", timeout=60)
        if done.returncode:
            raise RuntimeError(f"rota {' '.join(words)}: {done.returncode}\n{done.stderr.decode()}")
        return done.stdout.decode()

    def rows(self, *words: str) -> list[dict[str, Any]]:
        """The JSON lines that a command prints."""
        return [json.loads(line) for line in self.rota(*words, "--json").splitlines()]

    def add(self, name: str, *words: str, stdin: bytes = b"", environment: str = "none") -> str:
        """Add a batch; its number."""
        return self.rota("add", "--name", name, "--env-from", environment, *words, stdin=stdin).strip()

    def counts(self, *words: str) -> dict[str, int]:
        """How many jobs are in which state."""
        counts: dict[str, int] = self.rows("status", *words)[0]["counts"]
        return counts

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something."""
        end = time.monotonic() + 60
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError(f"not within a minute: {what}\n{self.rota('status')}\n{self.rota('allocations')}")
            time.sleep(0.1)

    def become(self, name: str, state: str, count: int) -> None:
        """Wait until so many jobs of the batches of a name are in a state."""
        self.until(lambda: self.counts(f"@{name}").get(state) == count, f"{count} of {name} are {state}")

    def up(self, missing_after: str) -> None:
        """Start a manager."""
        (HOME / "home" / "config.toml").write_text(CONFIG.format(missing_after=missing_after))
        self.rota("up")

    def down(self) -> None:
        """End the manager as one does: with a checkpoint."""
        self.rota("down")

    def kill(self) -> None:
        """End the manager as a power cut does: what happened since the last checkpoint is in the log alone."""
        pid = self.rows("ping")[0]["pid"]
        os.kill(pid, signal.SIGKILL)
        self.until(lambda: not Path(f"/proc/{pid}/exe").exists(), "the manager is gone")

    def signal_runner(self, site: str, number: int) -> None:
        """STOP lets the runner of a site be silent, and its jobs go on; after KILL it is lost with them."""
        (row,) = [row for row in self.rows("allocations", "--live")[0]["allocations"] if row["site"] == site]
        os.kill(int(row["native_id"].partition(":")[0]), number)


def early(home: Home) -> None:
    """Before a backup that is put back: numbers go on far beyond these."""
    home.add("early", "--array", "1-3", "--", "true")
    home.become("early", "COMPLETED", 3)
    home.add("early-held", "--array", "1-5:2", "--not-before", "2099-01-01T00:00", "--", "true")
    home.rota("hold", "@early-held")
    home.down()
    home.rota("up")
    backup = home.rota("backup", str(HOME / "backup.db")).strip()
    home.down()
    home.rota("restore", backup, "--no-pause")


def ended(home: Home) -> None:
    """Jobs that are over, in every way; what was learned of them; a runner that fell silent."""
    home.rota(
        "limit", "few:2", "often:3/d", "open:2020-01-01..2090-01-01", "shut:2090-01-01..2090-02-01", "hours:22:00-06:00"
    )
    home.rota("limit", "all:4,1000/min,2020-01-01..2090-01-01", "gone:3")
    home.rota("limit", "--remove", "gone")
    home.add("completed", "--array", "1-12", "--group", "small", "-c", "0.5", "--limit", "all", "--", "sleep 0.2")
    home.add("often", "--array", "1-5", "--limit", "often", "--", "true")
    home.add("failed", "--values", "1,2,3", "--", "exit {}")
    home.add("not-found", "--", "no-such-program", "--really")
    home.add("back-off", "--array", "1-3", "--retries", "3", "--", "exit $(( ROTA_ATTEMPT == 1 ))")
    home.add("breaker", "--array", "1-9%1", "--max-failures", "2", "--", "false")
    home.add("removed-on", "--array", "1-3", "--remove-on", "success", "--", "exit $(( ROTA_INDEX == 2 ))")
    home.add("pruned", "--array", "1-4", "--", "true")
    home.add("pruned-too", "--", "true")
    home.add("end", "--array", "1-2", "--on-batch-end", "true", "--", "true")
    home.add("retried", "--values", "a,b", "--", "exit $(( ROTA_ATTEMPT == 1 )) # {}")
    home.add("direct-done", "--on", "one", "--array", "1-2", "--", "echo {index}")
    home.add("direct-failed", "--on", "one", "--array", "5-6", "--", "exit {index}")
    home.add("omitted", "--array", "1-2", "--after", "@not-found", "--", "true")
    for name, state, count in (
        ("completed", "COMPLETED", 12), ("often", "COMPLETED", 3), ("failed", "FAILED", 3), ("not-found", "FAILED", 1),
        ("back-off", "WAITING", 3), ("breaker", "HOLDING", 7), ("removed-on", "FAILED", 1), ("pruned", "COMPLETED", 4),
        ("pruned-too", "COMPLETED", 1), ("end", "COMPLETED", 2), ("end-end", "COMPLETED", 1), ("retried", "FAILED", 2),
        ("direct-done", "COMPLETED", 2), ("direct-failed", "FAILED", 2), ("omitted", "OMITTED", 2),
    ):  # fmt: skip
        home.become(name, state, count)
    home.rota("prune", "@pruned", "@pruned-too")
    home.rota("retry", "@retried", "--memory", "64M", "--priority", "7")
    home.become("retried", "COMPLETED", 2)
    home.rota("remove", "@completed", ":completed", "--dry-run")
    home.rota("remove", home.rows("jobs", "@completed")[-1]["id"])
    home.add("direct-killed", "--on", "one", "--", ONCE)
    home.become("direct-killed", "RUNNING", 1)
    home.rota("kill", "@direct-killed")
    home.become("direct-killed", "ABORTED", 1)
    home.add("missing", "--on", "lost", "--array", "1-4", "--", ONCE)
    home.add("missing-rerunnable", "--on", "lost", "--rerunnable", "--", ONCE)
    home.become("missing", "RUNNING", 4)
    home.become("missing-rerunnable", "RUNNING", 1)
    home.signal_runner("lost", signal.SIGSTOP)
    home.become("missing", "MISSING", 4)
    home.become("missing-rerunnable", "MISSING", 1)
    first = home.rows("jobs", "@missing")
    home.rota("kill", first[0]["id"])
    home.rota("hold", "--stop", first[1]["id"])


def alive(home: Home) -> None:
    """Jobs that run, start and are being ended, here and at the cluster."""
    home.add("source", "--", "true")
    home.become("source", "COMPLETED", 1)
    home.add("running", "-c", "0.5", "--array", "1-4", "--limit", "few", "--limit", "all", "--", ONCE)
    home.add("running-values", "-c", "0.5", "--values", "x,y", "--retries", "2", "--", f": {{}}; {ONCE}")
    home.add("rerun", "-c", "0.5", "--after", "@source", "--live=rerun", "--", ONCE)
    home.add("at-once", "-c", "0.5", "--array", "1-6%2", "--", ONCE)
    home.add("lost-once", "-c", "0.5", "--on", "stuck", "--", LONG)
    home.become("lost-once", "RUNNING", 1)
    home.signal_runner("stuck", signal.SIGKILL)
    home.until(lambda: home.rows("jobs", "@lost-once")[0]["attempt"] == 2, "a lost job is started again")
    home.become("lost-once", "RUNNING", 1)
    home.add("stuck", "-c", "0.5", "--on", "stuck", "--array", "1-5", "--", ONCE)
    home.add("direct-running", "--on", "one", "--array", "1-3", "--", ONCE)
    for name, count in (
        ("running", 2), ("running-values", 2), ("rerun", 1), ("at-once", 2), ("stuck", 5), ("direct-running", 3)
    ):  # fmt: skip
        home.become(name, "RUNNING", count)
    home.add("source", "--", "true")  # who depends on that name, and runs, is to run once more
    home.become("source", "COMPLETED", 2)
    home.add("direct-queued", "--on", "one", "--array", "1-3", "--", "true")  # the cluster is full
    home.until(lambda: _allocations(home, "one").get("PENDING") == 3, "direct jobs wait in the cluster's queue")
    home.fake.faults([{"command": "scancel", "every": 1, "do": "exit", "code": 1, "stderr": "Connection refused"}])
    home.rota("kill", home.rows("jobs", "@direct-running")[-1]["id"])
    home.until(lambda: _allocations(home, "one").get("KILLING") == 1, "an allocation is being ended")
    home.fake.faults([{"command": name, "every": 1, "do": "exit", "code": 1, "stderr": "Connection refused"}
                      for name in ("scancel", "sbatch")])  # fmt: skip
    home.add("direct-submitting", "--on", "one", "-t", "5m", "--", "true")
    home.until(lambda: _allocations(home, "one").get("SUBMITTING"), "an allocation cannot be submitted")
    home.signal_runner("stuck", signal.SIGSTOP)
    stuck = [row["id"] for row in home.rows("jobs", "@stuck")]
    home.rota("kill", stuck[0])
    home.rota("hold", stuck[1])
    home.rota("hold", "--stop", stuck[2])
    home.add("starting", "-c", "0.5", "--on", "stuck", "--array", "11-16", "--", ONCE)
    home.become("starting", "STARTING", 6)
    starting = [row["id"] for row in home.rows("jobs", "@starting")]
    home.rota("kill", starting[0])
    home.rota("hold", starting[1])


def queued(home: Home) -> None:
    """Jobs of every kind that wait, under a manager that is paused by two."""
    home.rota("pause", "--reason", "the disk is full")
    home.rota("pause", "--as", "backup", "--reason", "a copy is made")
    large = home.add("large", "--array", f"1-{LARGE}", "--", "true")
    home.add("values", "--values", "a,b b,ü,'q'", "-p", "9", "--memory", "20M", "-t", "10m", "--", "true {}")
    home.add("params", "--param", "k=1,2", "--param", "s=x,y,z", "--", "true {k} {s} {index}")
    lines = home.add("lines", "-f", "-", stdin=LINES)
    home.add("environment", "--env", "K=V", "--", "true", environment="submit")
    home.add("options", "--array", "1-3", "-c", "1..2", "--disk", "1M", "--enforce", "both", "--grace", "3s",
             "--retry-on", "75,time", "--never-retry-on", "2", "--no-retry-after", "2h", "--signal", "USR1@30",
             "--on-exit", "true", "--behaviour-time", "1m", "--output-cap", "1M", "--override", "higher",
             "--", "true")  # fmt: skip
    home.add("after", "--after", "@values", "--", "true")
    home.add("after-job", "--after", f"{lines}.1", "--after-any", f"{lines}.5", "--", "true")
    home.add("after-large", "--after", f"{large}.1-3", "--", "true")
    home.add("after-any", "--after-any", "@lines", "--", "true")
    home.add("after-failure", "--after-failure", f"{lines}.5", "--", "true")
    home.add("each", "--array", "1-3", "--after", "@options", "--each", "--", "true {index}")
    home.add("live", "--after", "@params", "--live", "--", "true")
    home.add("unknown-name", "--after", "@comes-later", "--", "true")
    home.add("after-running", "--after", "@running", "--", "true")
    home.add("not-before", "--array", "1-2", "--not-before", "2099-01-01T00:00", "--", "true")
    home.add("few", "--array", "1-4", "--limit", "few", "--", "true")
    home.add("timed", "--array", "1-4", "--limit", "open", "--limit", "all", "--", "true")
    home.add("shut", "--array", "1-2", "--limit", "shut", "--", "true")
    home.add("own-window", "--limit", "datetime<2090-01-01 00:00:00", "--", "true")
    home.add("end-queued", "--array", "1-2", "--on-batch-end", "true", "--", "true")
    home.add("held", "--array", "1-4", "--", "true")
    home.rota("hold", "@held")
    home.add("aborted", "--array", "1-4", "--", "true")
    home.rota("kill", "@aborted")
    removed = home.add("removed", "--array", "1-4", "--", "true")
    home.rota("remove", f"{removed}.2-3")
    modified = home.add("modified", "--array", "1-6", "--", "false")
    home.rota("modify", f"{modified}.2-3", "--memory", "30M", "--command", "true", "--priority", "4")
    home.rota("modify", f"{modified}.3-4", "--env", "A=B", "--retries", "1")
    home.add("respecified", "--array", "1-2", "--", "true")
    home.rota(
        "modify",
        "@respecified",
        "--name",
        "renamed",
        "--at-once",
        "1",
        "--max-failures",
        "50%",
        "--after-any",
        "@values",
    )
    home.add("released", "--array", "1-2", "--not-before", "2099-01-01T00:00", "--", "true")
    home.rota("modify", "@released", "--not-before", "now")
    home.rota("retry", "@failed", "--memory", "x2", "--command", "true")
    settle(home)


def settle(home: Home) -> None:
    """Wait until no runner is idle and nothing moves: what is asked now stays so."""
    last: Any = None

    def quiet() -> bool:
        nonlocal last
        runners = home.rows("runners")[0]["runners"]
        now = (home.counts(), [row["state"] for row in runners], _allocations(home))
        same, last = now == last, now
        time.sleep(2)
        return same and all(row["jobs"] for row in runners if row["state"] in ("SERVING", "DRAINING"))

    home.until(quiet, "nothing moves")


def _allocations(home: Home, site: str = "") -> Counter[str]:
    rows = home.rows("allocations")[0]["allocations"]
    return Counter(row["state"] for row in rows if site in ("", row["site"]))


VOLATILE = {
    "age_s", "connected", "cpu_s", "last_poll", "last_poll_s", "commands_last_minute", "commands", "failures",
    "last_error",
    "memory_used", "next_in_s", "open", "opens_in_s", "peak_disk_bytes", "peak_memory_bytes", "programs", "retry_s",
    "seen_s", "silent_s", "since", "started", "state_s", "uptime_s", "version", "wall_s", "where", "why", "verdicts",
    "notes", "heard_s", "directory", "disk", "stdout", "stderr",
}  # fmt: skip
"""What depends on the time of asking, or on the machine."""


def asked(home: Home) -> dict[str, Any]:
    """What the manager says of everything, but for what depends on the moment."""
    (status,) = home.rows("status")
    large = next(row["id"] for row in status["batches"] if row["name"] == "large")
    jobs = [row for row in home.rows("jobs") if row["batch"] != large] + home.rows("jobs", f"{large}.1-3")
    some = {row["name"]: row["id"] for row in jobs}  # one job of each name
    answers = {
        "version": home.rows("ping")[0]["version"],
        "status": {**status, "why": []},
        "jobs": jobs,
        "explain": [row for job in some.values() for row in home.rows("explain", job)],
        "limits": home.rows("limit")[0]["limits"],
        "sites": home.rows("sites")[0]["sites"],
        "runners": home.rows("runners")[0]["runners"],
        "allocations": home.rows("allocations")[0]["allocations"],
    }
    groups = home.rows("report", "learning")[0]["groups"]
    return {name: _lasting(answer) for name, answer in answers.items()} | {"groups": groups}


def _lasting(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: _lasting(value) for name, value in answer.items() if name not in VOLATILE}
    return [_lasting(value) for value in answer] if isinstance(answer, list) else answer


def keep(directory: Path, expected: dict[str, Any]) -> None:
    """The database as one compressed file, as it is, and beside it what was said of it."""
    directory.mkdir(parents=True, exist_ok=True)
    copy = HOME / "copy.db"
    copy.unlink(missing_ok=True)
    with (
        contextlib.closing(sqlite3.connect(HOME / "home" / "rota.db")) as made,
        contextlib.closing(sqlite3.connect(copy)) as one,
    ):
        made.backup(one)
        kinds = dict(one.execute("SELECT kind, count(*) FROM entries GROUP BY kind ORDER BY kind"))
        tail = one.execute("SELECT count(*) FROM entries WHERE seq > (SELECT seq FROM snapshot)").fetchone()[0]
    (directory / "rota.db.xz").write_bytes(lzma.compress(copy.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
    parts = []
    for name, answer in expected.items():
        rows = ",\n".join(json.dumps(row) for row in answer) if isinstance(answer, list) else ""
        parts.append(f'"{name}": ' + (f"[\n{rows}\n]" if rows else json.dumps(answer)))
    (directory / "expected.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")
    print(f"{directory}: {expected['status']['counts']}, {tail} events after the checkpoint; {kinds}")


@contextlib.contextmanager
def a_home() -> Iterator[Home]:
    """A home and a cluster, of which nothing is left."""
    shutil.rmtree(HOME, ignore_errors=True)
    (HOME / "home").mkdir(0o700, parents=True)
    with FakeCluster(HOME / "cluster", personality="slurm", nodes=1, cores=3, memory_mb=8000) as fake:
        home = Home(fake)
        try:
            yield home
        finally:
            runners = os.listdir(HOME / "home" / "output")
            end_processes(f"ROTA_HOME={home.env['ROTA_HOME']}", *(f"ROTA_RUNNER={name}" for name in runners))
    shutil.rmtree(HOME)


def end_processes(*marks: str) -> None:
    """End those with one of these variables: the manager, runners (also silent ones) and their jobs."""
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            found = Path(f"/proc/{int(name)}/environ").read_bytes().decode(errors="replace").split("\0")
            if int(name) != os.getpid() and not set(marks).isdisjoint(found):
                os.kill(int(name), signal.SIGKILL)


def main() -> None:
    """Tell the story, once with each way to end a manager."""
    where = Path(sys.argv[1])
    for name, end in (("checkpointed", Home.down), ("killed", Home.kill)):
        with a_home() as home:
            home.up("1h")
            early(home)
            home.up("3s")
            ended(home)
            end(home)
            home.up("1h")
            alive(home)
            queued(home)
            expected = asked(home)
            end(home)
            keep(where / name, expected)


if __name__ == "__main__":
    main()

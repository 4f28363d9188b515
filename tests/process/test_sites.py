"""What users and operators see of sites, with the commands of the fake cluster on PATH."""

import json
import os
import re
import signal
import socket
import subprocess
import tomllib
from contextlib import contextmanager

import pytest

from process.cli_support import rota_home, until
from rota.manager.config import load_config
from rota.testing.fake_cluster import FakeCluster

SYSTEMS = {
    "slurm": "slurm-wlm 22.05.8",
    "lsf": "IBM Spectrum LSF",
    "pbs": "pbs_version = 23",
    "torque": "Version: ",
    "sge": "SGE 8.1.9",
}


@contextmanager
def site(personality, tmp_path, config="", **settings):
    """A command line that sees this cluster's commands and no other's."""
    with rota_home() as rota, FakeCluster(tmp_path / "cluster", personality=personality, **settings) as cluster:
        rota.environ["PATH"] = f"{cluster.bin}:/usr/bin:/bin"
        if config:
            rota.home.mkdir(mode=0o700)
            (rota.home / "config.toml").write_text(config)
        rota.cluster = cluster
        try:
            yield rota
        finally:
            rota("down", "--kill", code=None)


def names(answer, status):
    return [row["name"] for row in answer["checks"] if row["status"] == status]


def json_of(rota, *words, **more):
    return json.loads(rota.out(*words, "--json", **more))


@pytest.mark.parametrize("personality", SYSTEMS)
def test_detect_asks_the_programs_who_they_are(personality, tmp_path):
    queues = [{"name": "day", "default": True, "time_s": 3600}, {"name": "old", "time_s": None, "up": False}]
    with site(personality, tmp_path, queues=queues) as rota:
        answer = json_of(rota, "sites", "detect")
        assert [row["driver"] for row in answer["found"] if row["driver"] == personality] == [personality]
        assert not {row["driver"] for row in answer["found"]} & (set(SYSTEMS) - {personality, "slurm", "sge"})
        assert answer["written"] is None and not rota.home.exists()
        text = rota.out("sites", "detect", "--write")
        assert SYSTEMS[personality] in text
        config = load_config(str(rota.home))
        assert config.site[personality].driver == personality and config.site["local"].driver == "local"
        assert "# partition day" in text and ("at most 1h" in text or personality == "sge")
        assert config.site[personality].parallel_environment == ("smp" if personality == "sge" else None)
        offered = re.sub(r"(?m)^# ((?!pbs_version)\w+ = .*)$", r"\1", text.partition("# This host")[0])
        tomllib.loads(offered)  # what stands in comments could be used as it is


def test_detect_overwrites_nothing_unasked(tmp_path):
    with site("lsf", tmp_path, "losses = 3\n") as rota:
        refused = rota("sites", "detect", "--write", code=5)
        assert "config.toml exists" in refused.stderr and "--force" in refused.stderr
        assert (rota.home / "config.toml").read_text() == "losses = 3\n"
        answer = json_of(rota, "sites", "detect", "--write", "--force")
        with open(answer["backup"]) as kept:
            assert kept.read() == "losses = 3\n"
        assert (rota.home / "config.toml").read_text() == answer["config"]
        assert "are for `rota sites detect`" in rota("sites", "--write", code=2).stderr


def test_detect_without_a_batch_system(tmp_path):
    with rota_home() as rota:
        rota.environ["PATH"] = str(tmp_path)
        text = rota.out("sites", "detect")
        assert "No batch system was found" in text and list(tomllib.loads(text)["site"]) == ["local"]


@pytest.mark.parametrize("personality", ["lsf", "pbs", "torque"])
def test_doctor_of_a_site_that_is_well(personality, tmp_path):
    config = f'[site.hpc]\ndriver = "{personality}"\npoll_least = "1s"\n'
    with site(personality, tmp_path, config) as rota:
        answer = json_of(rota, "doctor", "hpc", "--timeout", "60s")
        assert answer["ok"] and answer["mode"] == "runners" and answer["skew_s"] < 1
        assert answer["python"].startswith("3.") and answer["wait_s"] >= 0
        assert names(answer, "ok") == [
            "programs", "queues", "submit", "wait", "directory", "python", "clock", "call-back", "mode",
        ]  # fmt: skip
        assert os.listdir(rota.home / "sites" / "hpc") == []
        assert not [name for name in os.listdir(rota.home) if name.startswith("probe")]


def test_doctor_tries_the_manager_that_is_up(tmp_path):
    with site("slurm", tmp_path, '[site.hpc]\ndriver = "slurm"\npoll_least = "1s"\n') as rota:
        rota("up")
        port = json.loads((rota.home / "manager.json").read_text())["port"]
        out = rota.out("doctor", "hpc", "--timeout", "60s")
        assert re.search(rf"ok +call-back +the node reaches the manager at \S+:{port}\n", out)
        assert "serving" in rota.out("ping"), "it did not mind the call"


def test_doctor_recommends_what_works(tmp_path):
    """An address that is not ours cannot be listened on: nobody can call back."""
    config = 'listen = "192.0.2.1:0"\n[site.hpc]\ndriver = "slurm"\npoll_least = "1s"\n'
    with site("slurm", tmp_path, config) as rota:
        answer = json_of(rota, "doctor", "hpc", "--timeout", "60s", code=5)
        assert names(answer, "fail") == ["call-back", "mode"] and answer["mode"] == "direct"
        assert 'mode = "direct"' in answer["checks"][-1]["advice"]
        (rota.home / "config.toml").write_text(config + 'mode = "direct"\n')
        answer = json_of(rota, "doctor", "hpc", "--timeout", "60s")
        assert answer["ok"] and names(answer, "warn") == ["call-back"]


def test_doctor_without_a_python_on_the_node(tmp_path):
    with site("slurm", tmp_path, '[site.hpc]\ndriver = "slurm"\npoll_least = "1s"\n') as rota:
        programs = tmp_path / "few"
        programs.mkdir()
        for name in ("sh", "uname", "date", "id", "mv", "sleep", "hostname", "rm", "cat"):
            os.symlink(f"/bin/{name}", programs / name)
        rota.environ["PATH"] = f"{rota.cluster.bin}:{programs}"
        answer = json_of(rota, "doctor", "hpc", "--timeout", "60s", code=5)
        assert names(answer, "fail") == ["python"] and answer["mode"] is None
        assert "has no Python 3.8" in answer["checks"][-1]["text"] and "set `python`" in answer["checks"][-1]["advice"]


def test_doctor_names_queues_that_are_not_there(tmp_path):
    with site("slurm", tmp_path, '[site.hpc]\ndriver = "slurm"\nqueues = ["main", "x"]\n') as rota:
        answer = json_of(rota, "doctor", "hpc", code=None)
        assert names(answer, "warn")[:1] == ["queues"] and "`queues` names x" in rota.out("doctor", "hpc", code=None)


def test_doctor_ends_its_job_on_ctrl_c(tmp_path):
    with site("slurm", tmp_path, '[site.hpc]\ndriver = "slurm"\npoll_least = "1s"\n', latency_s=3600) as rota:
        doctor = rota.start("doctor", "hpc")
        try:
            until(rota.cluster.jobs)
            until(lambda: "submit" in doctor.stdout.readline())
            doctor.send_signal(signal.SIGINT)
            assert doctor.wait(60) == 130
        finally:
            doctor.kill()
            doctor.communicate()
        assert [job["state"] for job in rota.cluster.jobs()] == ["over"]
        assert os.listdir(rota.home / "sites" / "hpc") == []


@pytest.mark.parametrize(
    ("config", "code", "words"),
    [
        ('[site.hpc]\ndriver = "lsf"\n', 5, "bsub"),
        ('[site.hpc]\ndriver = "sge"\n', 5, "cannot be found"),
        ('[site.here]\ndriver = "local"\n', 2, "there is no site 'hpc'"),
        ('[site.hpc]\ndriver = "local"\n', 2, "is this machine"),
        ('[site.hpc]\ndriver = "slurn"\n', 2, "config.toml: [site.hpc] there is no batch system 'slurn'"),
        ('[site.hpc]\ndriver = "slurm"\npartion = "x"\n', 2, "[site.hpc] there is no key 'partion'"),
    ],
)
def test_doctor_says_what_is_wrong(config, code, words, tmp_path):
    with site("slurm", tmp_path, config) as rota:
        rota.environ["PATH"] = f"{rota.cluster.bin}:{tmp_path}"
        done = rota("doctor", "hpc", code=code)
        assert words in done.stdout + done.stderr


def test_sites_and_allocations_of_a_cluster(tmp_path):
    config = '[site.hpc]\ndriver = "slurm"\npartition = "main"\npoll_least = "1s"\npoll = "1s"\nlinger = "1s"\n'
    config += 'account = "proj"\n'
    with site("slurm", tmp_path, config, nodes=1, cores=2) as rota:
        rota("up")
        row = until(lambda: (found := json_of(rota, "sites")["sites"][0])["version"] and found)
        assert (row["name"], row["driver"], row["mode"], row["partition"]) == ("hpc", "slurm", "runners", "main")
        assert row["programs"]["sbatch"] == f"{rota.cluster.bin}/sbatch" and row["where"] == "this host"
        batch = rota.out(
            "add", "--on", "hpc", "--array", "1-3", "-c", "1", "--mem", "50M", "--", "sleep", "600"
        ).strip()
        until(lambda: json_of(rota, "status")["counts"].get("RUNNING") == 2)

        def rows():
            return json_of(rota, "allocations")["allocations"]

        until(lambda: sorted(row["state"] for row in rows()) == ["PENDING", "RUNNING", "RUNNING"])
        for row in rows():
            assert row["shape"] == "150:0:1:0" and row["native_id"] and row["site"] == "hpc" and row["time_s"] == 3600
        assert {row["element"] for row in rows()} == {0, 1, 2} and len({row["tag"] for row in rows()}) == 1
        assert all(row["host"] for row in rows() if row["state"] == "RUNNING")
        wanted = {"pending": 1, "running": 2, "jobs": 2, "state": "ok"}
        found = until(lambda: wanted.items() <= (s := json_of(rota, "sites", "hpc")["sites"][0]).items() and s)
        assert 0 < found["commands_last_minute"] <= found["commands_per_minute"] and found["last_poll_s"] >= 0
        assert found["queues"][0]["name"] == "main" and found["options"]["account"] == "proj"
        waiting = until(lambda: next((r for r in rows() if r["state"] == "PENDING" and r["reason"]), None))
        assert waiting["reason"] == "Resources", "in the cluster's words"
        said = f"the cluster says of job {waiting['native_id']}: Resources"
        assert said in json_of(rota, "explain", f"{batch}.3")["reason"]
        shown = rota.out("sites", "hpc")
        for words in ("slurm-wlm", "sbatch = /", "account = proj", "main (default)", "1 pending, 2 running", "ago"):
            assert words in shown
        table = rota.out("sites").splitlines()
        assert len(table) == 2 and re.search(r"hpc +slurm +runners +ok +main +1 +2 +2 ", table[1])
        rota("kill", batch)
        until(lambda: not json_of(rota, "allocations", "--live")["allocations"])
        assert "there is no site 'x'" in rota("sites", "x", code=2).stderr
        assert {row["state"] for row in json_of(rota, "allocations")["allocations"]} <= {"ABORTED", "COMPLETED"}


@pytest.mark.parametrize("driver", ["slurm", "lsf", "openlava", "sge"])
@pytest.mark.parametrize("told", [True, False], ids=["told", "refused"])
def test_arrays_are_as_large_as_the_site_allows(tmp_path, driver, told):
    config = f'[site.one]\ndriver = "{driver}"\nmode = "direct"\npoll_least = "1s"\npoll = "1s"\nreport_within = "5s"\n'
    lava = {"cluster": "openlava"} if driver == "openlava" else {}
    with site("lsf" if lava else driver, tmp_path, config, max_array=5, nodes=4, cores=4, **lava) as rota:
        if not told:
            programs = ("scontrol", "bparams", "qconf")
            rota.cluster.faults([{"command": name, "every": 1, "do": "exit", "code": 1} for name in programs])
        batch = rota.out("add", "--on", "one", "--array", "1-12", "--", "true").strip()
        until(lambda: json_of(rota, "status", batch)["counts"] == {"COMPLETED": 12})
        most = json_of(rota, "sites", "one")["sites"][0]["array_most"]
        assert most == 5 if told or driver == "sge" else most in (3, 5)
        tags = {row["tag"] for row in json_of(rota, "allocations")["allocations"] if row["state"] == "COMPLETED"}
        assert len(tags) == -(-12 // most)


def test_no_more_at_once_than_the_site_takes_of_a_user(tmp_path):
    config = '[site.one]\ndriver = "slurm"\nmode = "direct"\npoll_least = "1s"\npoll = "1s"\nreport_within = "5s"\n'
    with site("slurm", tmp_path, config, max_jobs=5, nodes=4, cores=4) as rota:
        batch = rota.out("add", "--on", "one", "--array", "1-12", "--", "true").strip()
        until(lambda: json_of(rota, "status", batch)["counts"] == {"COMPLETED": 12}, 60)
        (found,) = json_of(rota, "sites", "one")["sites"]
        assert 1 <= found["most"] <= 6 and "more jobs of yours beside" in found["notes"][0]
        assert f": {found['most']} at once are asked for" in found["notes"][0]


@pytest.mark.parametrize("mode", ["direct", "runners"])
def test_the_output_of_a_cluster_job_while_it_runs(tmp_path, mode):
    """Of a direct job from its files, of others from their runners."""
    config = f'[site.one]\ndriver = "slurm"\nmode = "{mode}"\npoll_least = "1s"\npoll = "1s"\nreport_within = "5s"\n'
    with site("slurm", tmp_path, config) as rota:
        job = rota.out("add", "--on", "one", "--", "echo here; echo there >&2; sleep 600").strip() + ".1"
        until(lambda: rota.out("log", job) == "here\n")
        until(lambda: rota.out("log", job, "--stderr") == "there\n")
        # a runner tells of a start only a moment later
        row = until(lambda: (row := json_of(rota, "jobs", "--live"))["pid"] and row["last_line"] == "here" and row)
        assert row["elapsed_s"] >= 0
        assert row["host"] != socket.gethostname()
        until(lambda: json_of(rota, "jobs", job)["state"] == "RUNNING")
        rota("kill", job)
        until(lambda: json_of(rota, "jobs", job)["state"] == "ABORTED")
        assert rota.out("log", job) == "here\n"


def test_a_refusal_is_shown_with_its_words_and_when_it_is_tried_again(tmp_path):
    config = '[site.hpc]\ndriver = "slurm"\npoll_least = "1s"\npoll = "1s"\n'
    with site("slurm", tmp_path, config) as rota:
        rota("up")
        until(lambda: json_of(rota, "sites")["sites"][0]["version"])
        rota.cluster.faults([{"command": "sbatch", "every": 1, "do": "exit", "code": 1, "stderr": "sbatch: error: no"}])
        rota("add", "--on", "hpc", "--", "true")
        row = until(lambda: (found := json_of(rota, "sites")["sites"][0])["refused"] and found)
        (refused,) = row["refused"]
        assert refused["shape"] == "0:0:1:0" and refused["retry_s"] > 0 and "sbatch: error: no" in refused["why"]
        assert re.search(r"hpc: refuses 0:0:1:0: .*sbatch: error: no.*it is asked again in", rota.out("sites"))


def test_a_manager_job_without_its_home(tmp_path):
    """The job ends at once: that is said, and nothing stays behind."""
    with site("slurm", tmp_path, '[site.hpc]\ndriver = "slurm"\n[site.here]\n') as rota:
        (rota.home / "sites").write_text("in the way")
        assert "sites" in rota("up", "--on", "hpc", code=5).stderr
        assert not (rota.home / "relay.json").exists()
        assert "is this machine" in rota("up", "--on", "here", code=2).stderr
        assert "there is no site 'x'" in rota("up", "--on", "x", code=2).stderr
        assert "run it here" in rota("up", "--on", "hpc", "--once", code=2).stderr


@pytest.mark.parametrize("driver", ["pbs", "torque", "sge"])
def test_a_manager_as_a_job_of_a_fake_cluster(driver, tmp_path):
    with site(driver, tmp_path, f'[site.hpc]\ndriver = "{driver}"\nmode = "direct"\npoll_least = "1s"\n') as rota:
        row = json_of(rota, "up", "--on", "hpc")
        assert row["started"] and row["serving"]
        assert rota.cluster.jobs()[0]["state"] == "running"
        assert json_of(rota, "up", "--on", "hpc")["started"] is False
        assert [each["name"] for each in json_of(rota, "sites")["sites"]] == ["hpc"]
        rota("down")
        until(lambda: [job["state"] for job in rota.cluster.jobs()] == ["over"])
        assert not (rota.home / "relay.json").exists()
        assert rota.nothing_runs()
        done = subprocess.run(rota.argv("ping"), env=rota.environ, capture_output=True, timeout=60)
        assert done.returncode == 3


def relay_of(rota):
    try:
        return json.loads((rota.home / "relay.json").read_text())
    except (OSError, ValueError):
        return None


@pytest.mark.parametrize(("driver", "in_time"), [("torque", True), ("torque", False), ("pbs", True)])
def test_a_successor_that_waits_in_the_queue(driver, in_time, tmp_path):
    """Taken down before its time is up, or stopped by it: in both cases `rota down` calls the successor back."""
    with site(driver, tmp_path, f'[site.hpc]\ndriver = "{driver}"\nmode = "direct"\npoll_least = "1s"\n') as rota:
        # The cluster is made slow between the start and the hand-over.
        times = ("--time", "120s", "--hand-over", "112s") if in_time else ("--time", "18s", "--hand-over", "10s")
        first = json_of(rota, "up", "--on", "hpc", *times)["native_id"]
        rota.cluster.set(latency_s=3600)
        following = until(lambda: (said := relay_of(rota)) and (said["next"] or {}).get("native_id"))
        assert following != first
        if not in_time:
            until(lambda: rota.processes() == {})
            assert "is job" in rota("up", code=5).stderr, "no manager is started here meanwhile"
        assert ("no longer queued" in rota.out("down")) != in_time
        assert relay_of(rota) is None
        until(lambda: {job["state"] for job in rota.cluster.jobs()} == {"over"})
        assert rota.nothing_runs()


@pytest.mark.parametrize("personality", SYSTEMS)
def test_a_runner_that_greets_before_the_submission_has_answered_keeps_its_jobs(personality, tmp_path):
    """The command has done its work and answers six seconds later: that is no news of the state."""
    submit = {"slurm": "sbatch", "lsf": "bsub"}.get(personality, "qsub")
    config = f'[site.one]\ndriver = "{personality}"\npoll_least = "1s"\npoll = "1s"\n'
    with site(personality, tmp_path, config) as rota:
        rota.cluster.faults([{"command": submit, "every": 1, "do": "hang-after", "seconds": 6}])
        log = tmp_path / "ran"
        command = f"echo {{index}} >> {log}; sleep 9"
        batch = rota.out("add", "--on", "one", "--array", "1-2", "--", command).strip()
        until(lambda: json_of(rota, "status", batch)["counts"] == {"COMPLETED": 2}, 90)
        assert sorted(log.read_text().split()) == ["1", "2"], "each ran once"
        rows = [json.loads(line) for line in rota.out("history", batch, "--json").splitlines()]
        assert [(row["attempt"], row["state"]) for row in rows] == [(1, "COMPLETED")] * 2

"""Jobs in containers, on the real podman and Charliecloud: what is true of any job is true there.

The image is a static busybox: nothing comes from outside.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cli_support import until, up

__all__ = ["up"]

APPLETS = ("sh", "echo", "cat", "sleep", "true", "false", "ls", "id", "env", "dd", "kill", "test", "touch", "mkdir")
STUBBORN, LEFT = f"1{os.getpid()}", f"2{os.getpid()}"
"""Seconds by which processes are known; other runs of these tests have others."""
NAME = f"localhost/rota-test-{os.getpid()}:1"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="podman is tried as root")


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """The file system of an image, as Charliecloud takes it."""
    busybox = shutil.which("busybox")
    if busybox is None or shutil.which("ch-run") is None or shutil.which("podman") is None:
        pytest.skip("podman, charliecloud or busybox-static is not installed: make apt")
    root = tmp_path_factory.mktemp("image") / "root"
    for name in ("bin", "etc", "proc", "sys", "dev", "tmp", "opt", "usr/bin", "mnt"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    for name in APPLETS:
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    for name in ("group", "hosts", "resolv.conf"):
        (root / "etc" / name).touch()
    (root / "opt/plain").write_text("no program\n")
    (root / "opt/x.sif").touch()
    return root


@pytest.fixture(scope="module")
def image(tree) -> str:
    """The same, as podman has it."""
    with subprocess.Popen(["tar", "-C", tree, "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(["podman", "import", "--quiet", "-", NAME], stdin=tar.stdout, check=True, capture_output=True)
    yield NAME
    subprocess.run(["podman", "rmi", "--force", NAME], check=False, capture_output=True)


@pytest.fixture(params=["podman", "ch-run"])
def inside(request, rota) -> list:
    """Options for a job in a container of each engine; the job's directory is there in both."""
    if request.param == "podman":
        yield ["--container", request.getfixturevalue("image")]
        try:
            until(lambda: not containers())  # what is removed after the end of a job takes a moment
        finally:
            subprocess.run(["podman", "rm", "--force", *containers()], check=False, capture_output=True)
    else:
        tree = request.getfixturevalue("tree")
        for path in (rota.cwd, rota.home):
            (tree / str(path).lstrip("/")).mkdir(parents=True, exist_ok=True)
        yield ["--container", str(tree)]


def podman(*words: str) -> str:
    return subprocess.run(["podman", *words], check=True, capture_output=True, text=True).stdout


def containers() -> list:
    """Those of the image, running or not."""
    return podman("ps", "--all", "--quiet", "--filter", "ancestor=" + NAME).split()


def job(rota, name: str) -> dict:
    return json.loads(rota.out("jobs", name, "--json"))


def test_it_runs_there_with_its_number_directory_and_variables(rota, inside):
    rota("run", "--env", "MINE=a b", "--array", "3-4", *inside, "--",
         "test -e /opt/plain && echo $ROTA_JOB {index} $MINE && touch made-{index} && echo no >&2")  # fmt: skip
    assert rota.out("log", "1.3") == "1.3 3 a b\n" and rota.out("log", "1.4") == "1.4 4 a b\n"
    assert rota.out("log", "1.3", "--stderr") == "no\n"
    assert (rota.cwd / "made-3").exists() and (rota.cwd / "made-3").stat().st_uid == os.getuid()


def test_exit_codes_are_the_commands(rota, inside):
    codes = (1, 42, 125, 126, 127)
    rota("run", "--values", ",".join(map(str, codes)), *inside, "--", "sh", "-c", "exit {}", code=1)
    for number, code in enumerate(codes, 1):
        row = job(rota, f"1.{number}")
        assert (row["state"], row["reason"], row["exit_code"]) == ("FAILED", "exit", code), row


def test_the_programs_of_the_host_are_not_there(rota, inside):
    rota("run", *inside, "--", "sh", "-c", "! test -e /usr/bin/python3 && echo $PATH")
    assert rota.out("log", "1.1") == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"


def test_mounts_with_blanks_and_read_only(rota, inside, tmp_path):
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "in").write_text("seen\n")
    rota("run", *inside, "--mount", f"{tmp_path}/a b:/mnt", "--", "cat /mnt/in; touch /mnt/out")
    assert rota.out("log", "1.1") == "seen\n" and (tmp_path / "a b" / "out").exists()


def test_a_read_only_mount_of_podman(rota, image, tmp_path):
    rota("run", "--container", image, "--mount", f"{tmp_path}:/mnt:ro", "--", "touch /mnt/out", code=1)
    assert "Read-only file system" in rota.out("explain", "1.1") and not (tmp_path / "out").exists()


def test_what_it_reads_and_where_it_writes_is_seen(rota, inside, tree, tmp_path):
    data = tmp_path / "a b"
    (data / "deep").mkdir(parents=True)
    (data / "in").write_text("read\n")
    (data / "deep" / "other").write_text("too\n")
    (rota.cwd / "link").symlink_to(data / "deep" / "other")
    if inside[1] == str(tree):  # there the places must exist in the image
        at = Path(str(tree) + str(data))
        for name in ("in", "deep/other"):
            (at / name).parent.mkdir(parents=True, exist_ok=True)
            (at / name).touch()
        (at / "out").mkdir()
    words = ("--input", str(data / "in"), "--input", "link", "--output", f"{data}/out/*.txt")
    rota("run", *words, *inside, "--", f"cat '{data}/in' link; echo written > '{data}/out/x.txt'")
    assert rota.out("log", "1.1") == "read\ntoo\n" and (data / "out" / "x.txt").read_text() == "written\n"
    until(lambda: [row["path"] for row in json.loads(rota.out("data", "list", f"{data}/out", "--json"))["replicas"]])


def test_links_to_what_it_reads_lead_somewhere_and_cannot_be_written_through(rota, image, tmp_path):
    (tmp_path / "in").write_text("read\n")
    words = ("--workdir", "unique", "--input", str(tmp_path / "in"), "--container", image)
    rota("run", *words, "--", "cat in && ! echo other > in")
    assert rota.out("log", "1.1") == "read\n" and (tmp_path / "in").read_text() == "read\n"
    elsewhere = ("--input", str(tmp_path / "in"), "--mount", f"{tmp_path}:/mnt", "--container", image)
    rota("run", *elsewhere, "--", f"cat /mnt/in && ! test -e {tmp_path}")
    assert rota.out("log", "2.1") == "read\n"


def test_over_its_time_it_may_clean_up(rota, inside):
    # A second TERM would be taken while the first is being dealt with.
    work = "trap 'echo cleaning; sleep 1; exit 5' TERM; echo begun; sleep 600 & wait"
    for number, seconds in enumerate((2, 8, 32, 128), 1):  # a busy machine may take longer to make a container
        rota("run", "-t", f"{seconds}s", *inside, "--", work, code=1)
        assert job(rota, f"{number}.1")["reason"] == "time"
        if "begun" in (told := rota.out("log", f"{number}.1")):
            break
    assert told == "begun\ncleaning\n"


def test_killed_with_everything_that_it_started(rota, inside):
    stay = f"sleep {STUBBORN}"
    stubborn = f"trap '' TERM; {stay} & (trap '' TERM; {stay}) & touch begun; while true; do sleep 1; done"
    rota("add", "--grace", "1s", *inside, "--", stubborn)
    until((rota.cwd / "begun").exists)
    rota("kill", "1.1")
    rota("wait", "1", code=1)
    assert job(rota, "1.1")["state"] == "ABORTED"
    until(lambda: not sleepers(STUBBORN))


def test_17_a_job_that_is_bound_has_its_cores_there_too(rota, inside):
    rota("run", "--bind", "cores", "--array", "1-2", *inside, "--", "cat /proc/self/status; echo $ROTA_CORE_IDS")
    for name in ("1.1", "1.2"):
        *lines, own = rota.out("log", name).splitlines()
        assert own and f"Cpus_allowed_list:\t{own}" in lines


def test_memory_is_measured_and_limited(rota, inside):
    eats = "dd if=/dev/zero of=/dev/null bs=300M count=100000"
    rota("run", "--memory", "100M", "--enforce", "memory", *inside, "--", eats, code=1)
    row = job(rota, "1.1")
    assert row["reason"] == "memory", row
    for number, count in enumerate((40, 160, 640, 2560), 2):  # a busy machine looks at it more seldom
        rota("run", *inside, "--", f"dd if=/dev/zero of=/dev/null bs=150M count={count}")
        if job(rota, f"{number}.1")["peak_memory_bytes"] > 100 << 20:
            break
    assert job(rota, f"{number}.1")["peak_memory_bytes"] > 100 << 20


def test_ended_by_a_signal(rota, tree, image):
    (tree / str(rota.cwd).lstrip("/")).mkdir(parents=True, exist_ok=True)
    rota("run", "--container", str(tree), "--", "kill -SEGV $$", code=1)
    assert job(rota, "1.1")["signal"] == signal.SIGSEGV
    rota("run", "--container", image, "--", "kill -SEGV $$", code=1)
    assert job(rota, "2.1")["exit_code"] == 128 + signal.SIGSEGV  # as podman tells it


def test_what_is_missing_is_said(rota, tree, image, tmp_path):
    for number, (words, told) in enumerate(
        (
            (["--container", "/no/such.sif", "--", "true"], "there is no image /no/such.sif on"),
            (["--container", str(tree / "opt/x.sif"), "--", "true"], "none of apptainer, singularity is in the PATH"),
            (["--container", "/no/such", "--", "true"], "there is no image /no/such on"),
            (["--container", "localhost/no/such:9", "--engine", "podman", "--", "true"], "cannot be had"),
            (["--container", image, "--engine", "singularity", "--", "true"], "singularity is not on"),
            (["--container", image, "--mount", f"{tmp_path}/gone:/mnt", "--", "true"], "gone: it is not there on"),
            (["--container", str(tree), "--mount", f"{tmp_path}:/nowhere", "--", "true"], "no such place in the image"),
            (["--container", str(tree), "--engine", "podman", "--", "true"], "podman takes no image like"),
        ),
        1,
    ):
        if words[1] == str(tree):
            (tree / str(rota.cwd).lstrip("/")).mkdir(parents=True, exist_ok=True)
        rota("run", *words, code=1)
        row = job(rota, f"{number}.1")
        assert row["reason"] == "container", row
        assert told in rota.out("explain", f"{number}.1")


APPTAINER = """#!/bin/sh
echo "$1" >> {log}
if [ "$1" = pull ]; then sleep 1; touch "$2"; exit; fi
while :; do case "$1" in {kept}/*) break;; esac; shift; done
[ -e "$1" ] || exit 9
shift
exec "$@"
"""
"""An engine that keeps files: it says what it was asked for, and runs the command."""


def test_an_image_is_brought_once_however_many_jobs_want_it(rota, tmp_path):
    bin_, kept, log = tmp_path / "bin", tmp_path / "images", tmp_path / "log"
    bin_.mkdir()
    (bin_ / "apptainer").write_text(APPTAINER.format(log=log, kept=kept))
    (bin_ / "apptainer").chmod(0o755)
    variables = ("--env", f"PATH={bin_}:{os.environ['PATH']}", "--env", f"ROTA_IMAGES={kept}")
    words = (*variables, "--container", "registry/tool:1", "--engine", "apptainer")
    rota("run", "--array", "1-5", "--cores", "0.1", *words, "--", "echo", "{index}")
    assert [rota.out("log", f"1.{number}") for number in range(1, 6)] == [f"{number}\n" for number in range(1, 6)]
    rota("run", *words, "--", "true")
    assert sorted(log.read_text().split()) == ["exec"] * 6 + ["pull"]
    assert [path.suffix for path in kept.iterdir() if path.suffix != ".lock"] == [".sif"]


def test_a_command_that_the_image_does_not_have(rota, tree):
    (tree / str(rota.cwd).lstrip("/")).mkdir(parents=True, exist_ok=True)
    rota("run", "--container", str(tree), "--", "nosuch", "-x", code=1)
    assert job(rota, "1.1")["reason"] == "not-found"


def test_in_a_directory_of_its_own_with_a_behaviour_on_the_host(rota, image):
    rota("run", "--workdir", "unique", "--on-success", "cp made ../kept; command -v python3 > ../host",
         "--container", image, "--", "echo $PWD > made")  # fmt: skip
    assert (rota.cwd / "kept").exists() or list(rota.cwd.glob("**/kept"))


def sleepers(seconds: str) -> list:
    """Processes that sleep so long."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[1:2] == [seconds.encode()]:
                found.append(path)
        except OSError:
            pass
    return found


def test_a_runner_that_is_killed_leaves_nothing_running(rota, image):
    rota("add", "--container", image, "--", f"touch begun-$ROTA_ATTEMPT; sleep {LEFT}")
    until((rota.cwd / "begun-1").exists)
    (runner,) = [pid for pid, line in rota.processes().items() if "runner/__main__.py" in line]
    os.kill(runner, signal.SIGKILL)
    until((rota.cwd / "begun-2").exists)
    until(lambda: len(sleepers(LEFT)) == 1)
    rota("kill", "1")
    rota("wait", "1", code=1)
    until(lambda: not sleepers(LEFT))
    # What is left in podman's books is removed by a later job in a container, ten minutes after the last time or later.
    subprocess.run(["podman", "rm", "--force", *containers()], check=False, capture_output=True)

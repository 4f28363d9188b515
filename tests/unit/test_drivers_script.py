"""The script that runs on a node, run by real shells."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from rota.drivers import script
from rota.drivers.script import ELEMENT, FEW_NODES, NO_PYTHON, NODE, SPREADS, Spread, build_script
from rota.model.errors import UsageError

SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
NASTY = ["a b", "it's", '"$HOME"', "$(echo no)", "`echo no`", "back\\slash", "new\nline", "*", "", "-n", "~", "ünï☃"]


def run(shell, script, element="0", **env):
    return subprocess.run(
        [shell], input=script, capture_output=True, text=True, timeout=60,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "ROTA_ELEMENT": element, **env},
    )  # fmt: skip


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "pro gram.py"
    path.write_text("import os, sys\nprint(repr((sys.argv[1:], sys.flags.isolated, os.environ.get('X'))))\n")
    return str(path)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_word_arrives_as_it_is(shell, program):
    done = run(shell, build_script([program, *NASTY], exports={"X": "a 'b' $c\nd"}, python=sys.executable))
    assert (done.stderr, done.returncode) == ("", 0)
    assert eval(done.stdout) == (NASTY, 1, "a 'b' $c\nd")


@pytest.mark.parametrize("shell", SHELLS)
def test_each_element_has_its_own_words(shell, program):
    script = build_script(
        [program, f"/x y/{ELEMENT}/z", ELEMENT], per_element=[["--allocation", "a 1"], ["--allocation", "a'2"]]
    )
    assert eval(run(shell, script, "0").stdout)[0] == ["/x y/0/z", "0", "--allocation", "a 1"]
    assert eval(run(shell, script, "1").stdout)[0] == ["/x y/1/z", "1", "--allocation", "a'2"]
    done = run(shell, script, "2")
    assert done.returncode != 0 and "no element 2" in done.stderr
    done = run(shell, script, "")
    assert done.returncode != 0 and "ROTA_ELEMENT" in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_the_exit_status_is_the_programs(shell, tmp_path):
    path = tmp_path / "p.py"
    path.write_text("import sys; sys.exit(37)\n")
    assert run(shell, build_script([str(path)])).returncode == 37


@pytest.mark.parametrize("shell", SHELLS)
def test_a_python_that_is_too_old_is_passed_over(shell, program, tmp_path):
    for name in ("python3", "python3.12"):
        fake = tmp_path / "bin" / name
        fake.parent.mkdir(exist_ok=True)
        fake.write_text("#!/bin/sh\nexit 1\n")
        fake.chmod(0o755)
    (tmp_path / "bin" / "python3.9").symlink_to(sys.executable)
    path = shutil.which(shell)
    done = run(path, build_script([program, "yes"]), PATH=str(tmp_path / "bin"))
    assert eval(done.stdout)[0] == ["yes"], done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_no_python_at_all_is_said_on_the_node(shell, program, tmp_path):
    os.symlink(shutil.which("uname"), tmp_path / "uname")
    done = run(shutil.which(shell), build_script([program], python="/no/$such"), PATH=str(tmp_path))
    assert done.returncode == NO_PYTHON
    assert "no Python 3.8 or newer" in done.stderr and "/no/?such" in done.stderr and "site" in done.stderr


def test_what_no_shell_can_say_is_refused():
    with pytest.raises(UsageError, match="NUL"):
        build_script(["a\0b"])
    with pytest.raises(UsageError, match="2X"):
        build_script(["a"], exports={"2X": "1"})


# ---- several nodes ---------------------------------------------------------------------------------------------------

HERE = """\
import os, pathlib, signal, sys, time
def ended(*_):
    (place / "told").touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, ended)
place = pathlib.Path(sys.argv[1])
place.mkdir(parents=True)
(place / "writing").write_text("\\0".join(sys.argv[1:] + [os.environ["ROTA_ELEMENT"]]))
(place / "writing").rename(place / "words")
while not (place / "end").exists():
    time.sleep(0.01)
sys.exit(int((place / "end").read_text()))
"""
TELLS = 'echo "$0 $*" >>{log}; while [ $# -gt 0 ]; do case $1 in /bin/sh) break;; *) last=$1; shift;; esac; done\n'
LAUNCHERS = {
    # Each does as its model does: what comes before the program are options and the host.
    "srun": "case $1 in --help) echo '  --overlap'; exit;; esac\n"
    + TELLS
    + 'trap \'kill $a $b\' TERM\nSLURMD_NODENAME=n1.x.org "$@" & a=$!; SLURMD_NODENAME=n_2 "$@" & b=$!\n'
    + "while kill -0 $a 2>/dev/null; do wait $a; done; c=$?; while kill -0 $b 2>/dev/null; do wait $b; done\n",
    "pbsdsh": TELLS
    + "trap 'kill $a $b; exit 1' TERM\nSLURMD_NODENAME=n1 env -u ROTA_ELEMENT \"$@\" & a=$!\n"
    + 'SLURMD_NODENAME=n-2 env -u ROTA_ELEMENT "$@" & b=$!\nwait $a; wait $b\n',
    "blaunch": TELLS + 'unset ROTA_ELEMENT; exec "$@"\n',
    "qrsh": TELLS + 'unset ROTA_ELEMENT; exec /bin/sh -c "exec $*"\n',
    "ssh": TELLS + 'unset ROTA_ELEMENT; exec /bin/sh -c "exec $*"\n',
}


class Spreading:
    """A script for two nodes with a launcher that starts everything here."""

    def __init__(self, shell, by, place, hosts=("n1.x.org", "n1.x.org", "n-2")):
        name = by.partition("-")[0]
        self.place, self.log = place, place / "log"
        (place / "bin").mkdir(parents=True)
        launcher = place / "bin" / name
        launcher.write_text("#!/bin/sh\n" + LAUNCHERS[name].replace("{log}", str(self.log)))
        launcher.chmod(0o755)
        (place / "here.py").write_text(HERE)
        (place / "hosts").write_text("".join(f"{host} 2 all.q\n" for host in hosts))
        words = [str(place / "here.py"), f"{place}/{ELEMENT}/{NODE}", f"t.{ELEMENT}.{NODE}", "it's"]
        script = build_script(
            words,
            python=sys.executable,
            per_element=[[], ["--own"]],
            spread=Spread(by, str(place / "script.sh"), f"{place}/t.{ELEMENT}.out", 2),
        )
        (place / "script.sh").write_text(script)
        environment = {"PATH": f"{place}/bin:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", "ROTA_ELEMENT": "1"}
        for variable in ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE"):
            environment[variable] = str(place / "hosts")
        self.process = subprocess.Popen(
            [shell], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=place
        )
        self.process.stdin.write(script)
        self.process.stdin.close()

    def until(self, *names):
        deadline = time.monotonic() + 60
        while not all((self.place / "1" / name).exists() for name in names):
            assert time.monotonic() < deadline, (names, self.log.read_text() if self.log.exists() else "")
            time.sleep(0.01)

    def end(self, node, code):
        (self.place / "1" / node / "new").write_text(str(code))
        (self.place / "1" / node / "new").rename(self.place / "1" / node / "end")

    def close(self):
        for node in ("n1", "n-2"):
            if (self.place / "1" / node).exists() and not (self.place / "1" / node / "end").exists():
                self.end(node, 0)
        self.process.wait(60)
        self.process.stderr.close()


@pytest.fixture
def spreading(tmp_path):
    made = []

    def make(shell, by, **more):
        made.append(Spreading(shell, by, tmp_path / str(len(made)), **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("by", SPREADS)
def test_a_program_on_every_node_and_the_script_waits_for_all(shell, by, spreading):
    each = spreading(shell, by)
    each.until("n1/words", "n-2/words")
    for node in ("n1", "n-2"):
        words = (each.place / "1" / node / "words").read_text().split("\0")
        assert words == [f"{each.place}/1/{node}", f"t.1.{node}", "it's", "--own", "1"]
    each.end("n1", 3)
    time.sleep(0.1)
    assert each.process.poll() is None, "the end of one ends no other"
    each.end("n-2", 0)
    code = each.process.wait(60)
    assert code == 3 if by in ("blaunch", "qrsh", "ssh") else code in (0, 3)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("by", SPREADS)
def test_a_signal_gets_to_every_node(shell, by, spreading, monkeypatch):
    monkeypatch.setattr(script, "ENDED_S", 0)
    each = spreading(shell, by)
    each.until("n1/words", "n-2/words")
    each.process.send_signal(signal.SIGUSR1 if by != "srun" else signal.SIGCONT)
    each.process.terminate()
    each.until("n1/told", "n-2/told")
    each.process.wait(60)


@pytest.mark.parametrize("by", [by for by in SPREADS if by != "srun"])
def test_fewer_nodes_than_were_asked_for(by, spreading):
    each = spreading(SHELLS[0], by, hosts=("n1", "n1"))
    words = each.process.stderr.read()
    assert "2 nodes were asked for, and these given: n1" in words
    assert each.process.wait(60) == FEW_NODES and not (each.place / "1").exists()


def test_a_path_that_a_second_shell_would_read_otherwise_is_refused():
    with pytest.raises(UsageError, match="for several nodes give one of letters"):
        build_script(["/x"], spread=Spread("ssh", "/a b/script.sh", "/a b/out", 2))


@pytest.mark.parametrize("by", ["pbsdsh", "ssh"])
def test_hosts_that_are_known_get_each_its_own_words_once(by, program, tmp_path):
    """Whatever the launcher does: hosts that are named twice, one that is left alone, and the one where we are."""
    (tmp_path / "bin").mkdir()
    launcher = tmp_path / "bin" / by
    start = 'for node in n1.x n1.x n_2 n3; do SLURMD_NODENAME=$node "$@"; done\n' if by == "pbsdsh" else '"$@"\n'
    launcher.write_text(f"#!/bin/sh\n{TELLS.replace('{log}', str(tmp_path / 'log'))}{start}")
    launcher.chmod(0o755)
    (tmp_path / "hosts").write_text("n1.x\nn1.x\nn_2\nn3\n")
    path, output, once = (str(tmp_path / name) for name in ("script.sh", "out", "once"))
    spread = Spread(by, path, output, 3, ("n1.x", "n_2", "n3"), "n_2", once if by == "pbsdsh" else "")
    per_node = {"n1.x": ["--cores", "1"], "n_2": ["--cores", "2"], "n3": None}
    made = build_script([program, NODE], python=sys.executable, per_node=per_node, spread=spread)
    (tmp_path / "script.sh").write_text(made)
    done = run("sh", made, PATH=f"{tmp_path}/bin:{os.environ['PATH']}", PBS_NODEFILE=str(tmp_path / "hosts"))
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "out").read_text() if by == "pbsdsh" else done.stdout
    assert sorted(eval(line)[0] for line in said.splitlines()) == [["n-2", "--cores", "2"], ["n1", "--cores", "1"]]
    if by == "ssh":
        log = (tmp_path / "log").read_text()
        assert "n1.x" in log and "n3" in log and "yes n_2" not in log, "no ssh to where we are"


def test_a_node_that_nobody_knows_of_says_so(program, tmp_path):
    spread = Spread("ssh", str(tmp_path / "script.sh"), "/x", 1, ("n1",), "n1")
    made = build_script([program], per_node={"n2": []}, spread=spread)
    (tmp_path / "script.sh").write_text(made)
    done = run("sh", made)
    assert (done.returncode, done.stderr) == (FEW_NODES, "rota: nobody knows of a node n1 here\n")

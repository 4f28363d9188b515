"""The script that runs on a node, run by real shells."""

import os
import shutil
import subprocess
import sys

import pytest

from rota.drivers.script import ELEMENT, NO_PYTHON, build_script
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

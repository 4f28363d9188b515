"""What people are used to, with a manager: exit codes, waits that cannot end, kills by age, too many cores."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from cli_support import down, until

__all__ = ["down"]


def test_the_exit_code_of_a_single_job(rota):
    rota("up")
    rota("run", "--exit-code", "--", "exit 7", code=7)
    rota("run", "--exit-code", "--", "kill -15 $$", code=143)
    rota("run", "--exit-code", "--", "true")
    assert "single one" in rota("run", "--exit-code", "--array", "1-2", "--", "true", code=2).stderr


def test_more_cores_than_there_are_is_said(rota):
    rota("up")
    assert "allows more than this machine has" in rota("run", "-j", "10000", "--", "true").stderr
    assert rota("run", "-j", "1", "--", "true").stderr == ""


def test_run_says_where_output_is(rota):
    rota("up")
    assert "output: rota log 1.1 (--stderr for standard error)" in rota("run", "--", "echo x").stdout
    assert "output: x.out, and rota log 2.1 --stderr" in rota("run", "-o", "x.out", "--", "echo x").stdout


def test_a_wait_that_cannot_end_says_so(rota):
    rota("up")
    rota("add", "--not-before", "+9h", "--", "true")
    rota("hold", "1")
    said = rota("wait", "1", "--timeout", "15", code=4).stderr
    assert "1 job is held: this ends only after rota release 1" in said


def test_kill_by_age(rota):
    rota("up")
    gate = rota.home / "gate"
    rota("add", "--", f"until test -e {gate}; do sleep 0.1; done")
    until(lambda: "RUNNING" in rota.out("jobs", "1"))
    assert rota.out("kill", "--age", "1d", "--all") == "no job runs for so long\n"
    until(lambda: "1 job" in rota.out("kill", "1", "--age", "1s"))
    rota("wait", "1", code=1)


def test_a_name_alone_selects(rota):
    rota("run", "--name", "align", "--", "true")
    rota("up")
    assert "align" in rota.out("status", "align")
    assert "COMPLETED" in rota.out("jobs", "align")


def test_what_was_asked_for_is_never_lowered(rota):
    """Twelve small runs of one script teach its group, and nothing else; figures that people give are kept."""
    (rota.cwd / "light.py").write_text("x = bytearray(30 << 20)\n")
    rota("up")
    rota("run", "--array", "1-12", "--", "python3 light.py")
    asks = ("--memory", "1500M", "-t", "2h", "--", "python3")
    memory, seconds = "memory: asked 1500M, learned 100M from 12 jobs, gets 1500M", "time: asked 2h, learned "
    dry = rota.out("add", "--dry-run", *asks, "light.py")
    assert "each needs 1 core, 1500M memory, 2h\n" in dry and f"light.py: {memory}\n" in dry and seconds in dry
    assert "learned" not in rota.out("add", "--dry-run", *asks, "heavy.py"), "another script is another group"
    later = ("--not-before", "+9h")
    said = rota("add", *later, *asks, "light.py")
    assert f"rota: light.py: {memory}\n" in said.stderr
    assert f"\n  {memory}\n" in rota.out("explain", said.stdout.strip())
    rules = {
        ("1500M", "higher"): "gets 1500M", ("1500M", "always"): "gets 1500M", ("1500M", "never"): "gets 100M",
        ("20M", "higher"): "gets 100M", ("20M", "always"): "gets 20M", ("20M", "never"): "gets 100M",
    }  # fmt: skip
    for (memory, rule), gets in rules.items():
        number = rota.out("add", *later, "--memory", memory, "--override", rule, "--", "python3 light.py").strip()
        assert f"memory: asked {memory}, learned 100M from 12 jobs, {gets}\n" in rota.out("explain", number), rule

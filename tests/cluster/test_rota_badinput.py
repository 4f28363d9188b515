"""Bad input at a real Slurm: every message names the site, the command, what it said, and what to do."""

import os
import re
import shutil

import pytest

from cluster.rota_home import a_rota, becomes


@pytest.fixture
def home(slurm):
    with a_rota(slurm, "slurm", 4) as made:
        yield made


def explained(home, name):
    return " ".join(home.rota("explain", name).stdout.split())


@pytest.mark.parametrize("site", ["one", "hpc"])
def test_what_slurm_refuses(home, site):
    """A direct job fails with the reason; one for runners waits, and tells why."""
    home.rota("up")
    home.until(lambda: all(row["queues"] for row in home.json("sites")["sites"]), what="the queues are known")
    assert "nosuch" in home.rota("add", "--on", site, "--partition", "nosuch", "--", "true", code=2).stderr
    wrong = {
        "Invalid account": home.add("--on", site, "--account", "nosuch", "--", "true"),
        "Invalid license": home.add("--on", site, "--native=--licenses=nosuch:3", "--", "true"),
    }
    for said, batch in wrong.items():
        name = f"{batch}.1"
        if site == "one":
            assert becomes(home, name, "FAILED")["reason"] == "refused"
        else:
            home.until(lambda name=name: "It said" in explained(home, name), 150, "the refusal")
            assert home.job(name)["state"] == "PENDING"
        text = explained(home, name)
        meant = rf"site {site}: nothing was submitted\. The command was: sbatch .*It said: .*{said}.*What to do: .*chan"
        assert re.search(meant, text), text
    fine = home.add("--on", site, "--", "true")
    assert becomes(home, f"{fine}.1", "COMPLETED")["exit_code"] == 0


def test_what_no_node_has(home):
    home.rota("up")
    home.until(lambda: home.json("sites")["sites"][0]["cores"] == 4, what="the nodes are known")
    for words, said in ((("--memory", "1T"), "1T memory"), (("--cores", "64"), "64 cores")):
        done = home.rota("add", "--on", "one", *words, "--", "true", code=2)
        assert re.search(rf"can never run: the queue main of one has .*{said} (is|are) asked for", done.stderr), (
            done.stderr
        )


def test_programs_that_are_not_there(home, tmp_path):
    """The manager says which; the job waits until they are."""
    for program in ("python3", "bash", "sh", "id", "sleep"):
        os.symlink(shutil.which(program), tmp_path / program)
    path = home.env["PATH"]
    home.env["PATH"] = str(tmp_path)
    name = f"{home.add('--on', 'one', '--', '/bin/true')}.1"
    home.until(lambda: "cannot be found" in explained(home, name), 150, "the programs are missed")
    assert re.search(r"site one: sacct, sbatch, .* cannot be found on .*: install .* PATH", explained(home, name))
    home.env["PATH"] = path
    home.rota("down")
    home.rota("up")
    becomes(home, name, "COMPLETED")


def test_a_directory_that_cannot_be_written(slurm):
    with a_rota(slurm, "slurm", 4, 'directory = "/proc/nosuch"') as home:
        done = home.rota("up", code=None)
        assert done.returncode
        assert "[site.hpc]" in done.stderr and "/proc/nosuch" in done.stderr, done.stderr
        assert "directory" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[site.x]\ndriver = "slrum"\n', r"\[site\.x\].*slrum.*slurm"),
        ('[site.x]\ndriver = "slurm"\npartiton = "a"\n', r"\[site\.x\].*partiton.*mean 'partition'.*keys are"),
        ('[site.x]\ndriver = "slurm"\npoll = "often"\n', r"\[site\.x\] poll.*often"),
        ('[site.x]\ndriver = "slurm"\nnative = {"--wrap" = "x"}\n', r"--wrap"),
    ],
)
def test_a_configuration_with_a_typo(slurm, text, said):
    with a_rota(slurm, "slurm", 4) as home:
        home.config(text)
        done = home.rota("up", code=None)
        assert done.returncode
        assert re.search(rf"config\.toml.*{said}", done.stderr, re.S), done.stderr

"""What is shown of sites: dry runs of every batch system, the state of a site, where a runner looks for its manager."""

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from rota.core.soft import SiteWeather
from rota.core.stimuli import At
from rota.drivers.api import Known
from rota.drivers.dialects import BUILT_IN, load_dialect
from rota.drivers.gate import Health
from rota.drivers.judging import UnreadableError
from rota.manager.answers import places
from rota.manager.config import SiteConfig, load_config
from rota.manager.inbound import report_rows
from rota.manager.offline.previewing import preview
from rota.manager.paths import Paths
from rota.manager.sites.batch import BatchSite
from rota.manager.sites.local import LocalSite
from rota.model.batch import BatchSpec, Template
from rota.model.errors import UsageError
from rota.model.needs import Needs
from rota.runner.connection import Target

SYSTEMS = {"slurm": "sbatch", "lsf": "bsub", "pbs": "qsub", "torque": "qsub", "sge": "qsub"}


def spec(count=1, name="align", **needs):
    needs = {"memory": 1 << 30, "time_s": 3600, "site": "hpc", **needs}
    return BatchSpec(count, (Template(shell="true", needs=Needs(**needs)),), name=name)


@pytest.fixture
def home(tmp_path):
    def configure(text):
        (tmp_path / "config.toml").write_text(text)
        return str(tmp_path)

    return configure


@pytest.mark.parametrize("mode", ["runners", "direct"])
@pytest.mark.parametrize("driver", SYSTEMS)
def test_a_dry_run_shows_the_native_command_and_writes_nothing(driver, mode, home, tmp_path):
    path = home(f'[site.hpc]\ndriver = "{driver}"\nmode = "{mode}"\npartition = "day"\naccount = "proj"\n')
    (row,) = preview(path, spec(5))
    assert row["argv"][0] == SYSTEMS[driver] and (row["site"], row["mode"], row["allocations"]) == ("hpc", mode, 5)
    assert "day" in row["line"] and "proj" in row["line"]
    name = "align" if mode == "direct" else "rota"
    assert f"{name[:2] if driver == 'torque' else name}-000000000000" in row["line"]  # TORQUE takes 15 characters
    assert ("--direct" in row["script"]) == (mode == "direct")
    assert ("--token-file" in row["script"]) == (mode == "runners")
    assert [each.name for each in tmp_path.iterdir()] == ["config.toml"]


def test_a_dry_run_counts_arrays_and_names_what_cannot_be(home):
    path = home('[site.hpc]\ndriver = "slurm"\nmode = "direct"\narray_most = 10\nmost = 50\n')
    (row,) = preview(path, spec(25))
    assert (row["allocations"], row["more"]) == (10, 15) and "--array=0-9" in row["argv"]
    with pytest.raises(UsageError, match=r"--on mars: there is no such site in .*config.toml; there are hpc"):
        preview(path, spec(site="mars"))
    with pytest.raises(UsageError, match="'--output' is set by rota itself"):
        preview(path, spec(options=(("--output", "x"),)))
    with pytest.raises(UsageError, match="hpc gives 1h at most, 2h are asked for"):
        preview(home('[site.hpc]\ndriver = "slurm"\nlongest = "1h"\n'), spec(time_s=7200))


def test_a_dry_run_for_this_machine_or_for_either_has_nothing_native(home):
    assert preview(home("[site.local]\n"), spec(site=None)) == []
    assert preview(home('[site.local]\n[site.hpc]\ndriver = "lsf"\n'), spec(site=None)) == []
    (row,) = preview(home('[site.hpc]\ndriver = "lsf"\n'), spec(site=None))
    assert row["site"] == "hpc"


def test_a_dry_run_of_whole_nodes_says_what_is_not_known(home):
    (row,) = preview(home('[site.hpc]\ndriver = "slurm"\nwhole_nodes = true\n'), spec(9))
    assert row["allocations"] == 1 and "asked how large" in row["notes"][1] and "--exclusive" in row["argv"]
    text = '[site.hpc]\ndriver = "slurm"\nwhole_nodes = true\ncores = 4\nmemory = "8G"\n'
    (row,) = preview(home(text), spec(9))
    assert row["allocations"] == 3 and "--cpus-per-task=4" in row["argv"]


def health(state, why=None, retry_at=None):
    return Health(state, why, retry_at=retry_at, commands_per_minute=120, where="this host")


@pytest.mark.parametrize(
    ("driver", "why", "closed_until", "shown"),
    [
        (health("ok"), None, 0.0, ("ok", None, None)),
        (health("new"), None, 0.0, ("new", None, None)),
        (health("failing", "squeue: down", 1060.0), None, 0.0, ("failing", "squeue: down", 60.0)),
        (health("needs login", "ssh: denied"), "older", 99.0, ("needs login", "ssh: denied", None)),
        (health("ok"), "sbatch: no", 130.0, ("closed", "sbatch: no", 30.0)),
        (health("ok"), "sbatch: no", 90.0, ("failing", "sbatch: no", None)),
        (None, None, 0.0, ("ok", None, None)),
        (None, "fork: no", 130.0, ("closed", "fork: no", 30.0)),
    ],
)
def test_the_state_of_a_site_in_a_word(driver, why, closed_until, shown):
    kind = LocalSite if driver is None else BatchSite
    site = kind.__new__(kind)
    site.driver = SimpleNamespace(health=lambda: driver)
    found = places._condition(SiteWeather(closed_until, why=why), site.health(), At(1000.0, 100.0))
    assert (found["state"], found["why"], found["retry_s"]) == shown


def test_a_runner_looks_where_the_newest_manager_is(tmp_path):
    notice = tmp_path / "manager.json"
    target = Target("tls:old:1", "ca", b"token", str(notice))
    target._look()
    assert (target.host, target.port) == ("old", 1)
    notice.write_text(json.dumps({"host": "new", "address": None, "port": 7}))
    target._look()
    assert (target.host, target.port) == ("new", 7)
    for text in ("", "[]", '{"host": "x", "address": "y", "port": null}', '{"port": 3}'):
        notice.write_text(text)
        target._look()
        assert (target.host, target.port) == ("new", 7)


def test_a_report_that_leaves_out_what_was_not_measured():
    """As one from a file, where no reader of messages has filled it in."""
    row = [1, 1, 1, 0, None, None, 10.0, 11.0, 0.1, 4096, ["0.seg", 0, 9, 0, None, 0, 0, 0], None]
    (short,), (long,) = report_rows([row], "/x"), report_rows([[*row, 7]], "/x")
    assert (short.note, short.peak_disk, long.peak_disk) == (None, None, 7)
    assert short.output == long.output == '["/x","0.seg",0,9,0,null,0,0,0]'


def test_one_report_that_cannot_be_read_does_not_hide_the_others(tmp_path):
    config = SiteConfig(driver="slurm", mode="direct", directory=str(tmp_path))
    site = BatchSite("hpc", config, Paths(str(tmp_path)), None, user="me", install=False)
    known = [Known(f"a{element}", "0" * 12, "7", element) for element in range(3)]
    row = [1, 1, 1, 0, None, None, 10.0, 11.0, 0.1, 4096, None, None]
    for element in (0, 1):
        (tmp_path / ("0" * 12) / str(element)).mkdir(parents=True)
    report = tmp_path / ("0" * 12) / "1" / "report.json"
    report.write_text(json.dumps({"ended": [row]}))
    (tmp_path / ("0" * 12) / "0" / "report.json").mkdir()  # unreadable for root, too
    with pytest.raises(UnreadableError) as caught:
        asyncio.run(site.last_words(known))
    assert caught.value.ids == {"a0"} and caught.value.found["a1"].exit_code == 0 and "a2" not in caught.value.found
    words, unreadable = asyncio.run(site.driver._judge.read_words(known))
    assert (set(words), unreadable) == ({"a1"}, {"a0"})
    asyncio.run(site.driver._judge.read_words(known))
    assert len(site.driver.health().notes) == 1


@pytest.mark.parametrize("page", ["slurm", "lsf", "pbs", "torque", "gridengine"])
def test_the_configuration_on_each_page_can_be_used(page, home):
    """Also what stands in its comments, and that what is not allowed is not recommended."""
    path = Path(__file__).resolve().parents[2] / "docs" / "howto" / f"{page}.md"
    (text,) = re.findall(r"^```toml\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?m)^# (\w+ = )", r"\1", text)
    driver = "sge" if page == "gridengine" else page
    (row,) = preview(home(text), spec(site=driver, cores=4000))
    assert row["argv"][0] == SYSTEMS[driver] and driver in BUILT_IN
    assert f"rota doctor {driver}" in path.read_text()
    assert all(f"`{program}`" in path.read_text() for program in load_dialect(driver).programs)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "gpus = 2",
            r"\[site\.x\] there is no key 'gpus': of a local site write options = \{gpus = 2\}\. The keys",
        ),
        ('partiton = "a"', r"\[site\.x\] there is no key 'partiton': did you mean 'partition'\? The keys are: acc"),
        ('mode = "driect"', r"\[site\.x\] mode: invalid enum value 'driect'; give one of 'runners', 'direct'$"),
        ('most = "many"', r"\[site\.x\] most: expected `int \| null`, got `str`$"),
        ('directory = "here"', r"\[site\.x\] directory 'here': give an absolute path"),
    ],
)
def test_a_wrong_site_in_the_configuration_is_named(text, said, tmp_path):
    (tmp_path / "config.toml").write_text(f'[site.fine]\ndriver = "slurm"\n[site.x]\ndriver = "slurm"\n{text}\n')
    with pytest.raises(UsageError, match=rf"config\.toml: {said}"):
        load_config(str(tmp_path))
    (tmp_path / "config.toml").write_text("lossess = 3\n")
    with pytest.raises(UsageError, match=r"toml: there is no key 'lossess': did you mean 'losses'\? The keys"):
        load_config(str(tmp_path))


def test_however_a_directory_is_written_it_is_the_one_that_runners_name(tmp_path):
    """A runner says where its output is as its script has it: that is compared, word by word."""
    config = SiteConfig(driver="slurm", directory=f"{tmp_path}//shared/./rota/")
    site = BatchSite("hpc", config, Paths(str(tmp_path)), None, user="me", install=False)
    assert site.output_of("0" * 12, "r1") == f"{tmp_path}/shared/rota/{'0' * 12}"

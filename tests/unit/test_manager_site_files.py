"""Several sites in the configuration: the policy that is in effect, sites from a file, and what is refused."""

import json
from pathlib import Path

import pytest

from rota.manager.__main__ import settings_of
from rota.manager.config import Config, load_config
from rota.model.errors import UsageError
from rota.schedule.policy import DEFAULT, SITES

ROTA = {"driver": "slurm", "directory": "/shared"}


def load(home: Path, text: str, sites: object = None) -> Config:
    (home / "config.toml").write_text(text)
    if sites is not None:
        (home / "sites.json").write_text(json.dumps(sites))
    return load_config(str(home))


def test_the_policy_for_several_clusters_is_the_default_there(tmp_path: Path) -> None:
    one = '[site.local]\n[site.a]\ndriver = "slurm"\n'
    assert load(tmp_path, one).policies()["default"] == DEFAULT
    two = one + '[site.b]\ndriver = "sge"\n'
    assert load(tmp_path, two).policies()["default"] == SITES
    own = load(tmp_path, two + '[policy.default]\nsplit = ""\nscorers = {wait = 2}\n').policies()["default"]
    assert (own.split, own.scorers) == ("", {"wait": 2.0}) and own.filters == SITES.filters


def test_sites_come_from_a_file(tmp_path: Path) -> None:
    row = {"status": "online", "corecount": 8, "maxrss": 16000, "maxtime": 345600, "catchall": "gpu, disableReassign"}
    text = 'sites_file = "sites.json"\n[site.B]\nmost = 7\n'
    sites = {
        "A": {**row, "cloud": "XX", "rota": ROTA},
        "B": {"status": "brokeroff", "maxrss": 0, "cost": 0.5, "queue": "long", "rota": {**ROTA, "most": 3}},
        "C": {"status": "offline", "rota": ROTA},
    }
    found = load(tmp_path, text, sites).site
    assert set(found) == {"A", "B"}
    a, b = found["A"], found["B"]
    assert (a.cores, a.memory, a.seconds("longest"), a.reassign, a.paused) == (8000, 16000 << 20, 345600, False, False)
    assert (b.memory, b.cost, b.partition, b.most, b.paused) == (None, 0.5, "long", 7, True)


@pytest.mark.parametrize(
    ("sites", "says"),
    [
        ([], "an object is needed, name → fields of the site"),
        ({"A": 3}, "A: an object is needed, with its fields"),
        ({"A": {}}, 'A: how to reach it is missing, such as "rota"'),
        ({"A": {"rota": ROTA, "status": "on"}}, "A.status is 'on': give one of online"),
        ({"A": {"rota": ROTA, "corecount": -1}}, "A.corecount is -1: give a whole number"),
        ({"A": {"rota": ROTA, "maxrss": "2G"}}, "A.maxrss is '2G'"),
        ({"A": {"rota": ROTA, "catchall": 5}}, "A.catchall is 5"),
        ({"A": {"rota": {**ROTA, "mots": 5}}}, "[site.A] there is no key 'mots': did you mean 'most'?"),
        ({"A": {"rota": ROTA, "cost": -1}}, "[site.A] cost -1: give 0 or more"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, sites: object, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, 'sites_file = "sites.json"\n', sites)
    assert says in str(caught.value)


def test_no_file_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sites_file .*nowhere.json: No such file"):
        load(tmp_path, 'sites_file = "nowhere.json"\n')
    (tmp_path / "sites.json").write_text("{")
    with pytest.raises(UsageError, match="this is no JSON"):
        load(tmp_path, 'sites_file = "sites.json"\n')


def test_settings_of_the_core(tmp_path: Path) -> None:
    shares = '[shares.p]\nvalue = 3\na = {value = 1, match = {name = "x"}}\n[shares.u]\nvalue = 1\n'
    found = settings_of(load(tmp_path, 'rebroker_after = "5m"\n' + shares))
    assert found.rebroker_s == 300 and [share.name for share in found.shares] == ["p", "u"]
    fast = "[broker.thresholds]\nFAST_REBRO_THRESHOLD_NQUEUE_mc = 50\n"
    assert settings_of(load(tmp_path, fast)).thresholds == {"FAST_REBRO_THRESHOLD_NQUEUE_mc": 50.0}
    assert settings_of(load(tmp_path, 'rebroker_after = "off"\n')).rebroker_s is None
    for text, says in (('rebroker_after = "5"\n', "has no unit"), ("[shares]\np = -1\n", "shares.p is -1")):
        with pytest.raises(UsageError, match=says):
            load(tmp_path, text)

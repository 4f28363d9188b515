"""A cloud as a site: what it knows before the cloud has answered."""

from pathlib import Path

import pytest

from rota.drivers.cloud_records import Kept
from rota.manager.config import SiteConfig
from rota.manager.paths import prepare
from rota.manager.sites.cloud import CloudSite
from rota.manager.sites.doors import TlsDoor
from rota.model.needs import Amounts
from rota.testing.fake_cloud import FakeCloud


@pytest.mark.parametrize("said", [{}, {"key": "mine"}, {"key": "mine", "key_file": "/k"}, {"key_file": "/k"}])
def test_a_server_of_an_earlier_life_is_entered_with_its_key_at_once(tmp_path: Path, said: dict[str, str]) -> None:
    """Servers may be looked at before the key pair was: what leads there stays as it is made first."""
    paths = prepare(str(tmp_path / "home"))
    site = CloudSite("os", SiteConfig(driver="openstack", **said), paths, TlsDoor(paths), FakeCloud(lambda: 0.0))
    kept = Kept("t" * 12, "a1", "small", Amounts(), server="s1", address="10.0.0.9")
    words = site.driver.hosts.reach(kept).transport.argv(())
    expected = said.get("key_file", None if "key" in said else f"{site.directory}/key")
    assert (words[words.index("-i") + 1] if "-i" in words else None) == expected
    assert not site.driver.learned

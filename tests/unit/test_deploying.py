"""The head server of a deployment: there is one, whatever was lost on the way."""

from types import SimpleNamespace

import pytest

from rota.drivers.provider import CloudError
from rota.manager.offline import deploying
from rota.manager.offline.deployed import Deployment, Wanted, read
from rota.manager.paths import prepare
from rota.testing.fake_cloud import FakeCloud


class Head:
    def make_key(self):
        pass

    def public_key(self):
        return "ssh-ed25519 AAAA"


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by sleeping."""
    made = SimpleNamespace(now=1000.0)

    def sleep(seconds):
        made.now += seconds

    made.monotonic, made.sleep = lambda: made.now, sleep
    monkeypatch.setattr(deploying, "time", made)
    return made


@pytest.mark.parametrize(("late_s", "made"), [(5.0, 1), (300.0, 2)])
def test_a_head_server_whose_answer_was_lost_is_the_only_one_in_the_end(tmp_path, clock, late_s, made):
    paths = prepare(str(tmp_path / "home"))
    cloud = FakeCloud(clock.monotonic, build_s=3.0, late_s=late_s)
    faults = iter(["late"])
    cloud.fault = lambda call: next(faults, None) if call == "create" else None

    def see(found):
        deploying._see_server(paths, found, cloud, Head(), lambda words: None)

    with pytest.raises(CloudError):
        see(Deployment(Wanted(image="i1", size="2"), "rota-head-1", "abc"))
    see(read(paths))
    clock.sleep(400)
    see(read(paths))
    assert cloud.created == {"abc": made}  # a second one only after long waiting for the first
    (only,) = cloud.there()
    assert only.id == read(paths).server

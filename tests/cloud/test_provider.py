"""OpenStack as a provider, against the real API: what a driver relies on."""

import secrets
import subprocess

import pytest

from cluster.private import wait_for
from rota.drivers.openstack import OpenStack
from rota.drivers.provider import FAILED, RUNNING, CloudError, Order, QuotaError
from rota.model.errors import RefusedError, UsageError

GIB = 1 << 30


@pytest.fixture
def provider(cloud, monkeypatch):
    for name, value in cloud.client.items():
        monkeypatch.setenv(name, value)
    return OpenStack("test")


@pytest.fixture
def owner():
    return f"test-{secrets.token_hex(4)}"


def order(provider, owner, size="c1.small", **more):
    sizes = {each.name: each.id for each in provider.sizes()}
    images = {each.name: each.id for each in provider.images()}
    networks = {each.name: each.id for each in provider.networks()}
    return Order(owner, secrets.token_hex(6), "w", sizes[size], images["debian-12"], (networks["inside"],), **more)


def runs(provider, made):
    def look():
        found = provider.server(made.id)
        return found is not None and found.state in (RUNNING, FAILED) and found

    return wait_for(f"{made.name} to run", look, 120, 0.3)


def gone(provider, owner):
    wait_for("all to be gone", lambda: not provider.servers(owner), 120, 0.3)


def test_what_there_is(cloud, provider):
    sizes = {each.name: each.node for each in provider.sizes()}
    assert sizes["m4.fat"].cores == 4000
    assert sizes["m4.fat"].memory == 32 * GIB
    assert sizes["m4.fat"].disk == 40 * GIB
    cloud.set_quota(instances=7, cores=11, ram=5 * 1024)
    quota = provider.quota()
    assert (quota.servers.most, quota.cores.most, quota.memory.most) == (7, 11000, 5 * GIB)
    assert quota.servers.used == 0
    cloud.set_quota(instances=-1)
    assert provider.quota().servers.most is None


def test_a_server_is_known_by_its_tag_from_the_request_on(cloud, provider, owner):
    with cloud.knob("slow-spawn"):
        asked = order(provider, owner)
        made = provider.create(asked)
        (seen,) = provider.servers(owner)
        assert (seen.id, seen.owner, seen.tag, seen.state) == (made.id, owner, asked.tag, "building")
        assert provider.servers(f"{owner}-x") == []
        # nova counts it once it is scheduled, and not before
        wait_for("the quota to count it", lambda: provider.quota().servers.used == 1, 120, 0.3)
    found = runs(provider, made)
    assert found.state == RUNNING
    assert found.size == "c1.small"
    assert found.addresses[0].startswith(cloud.net)
    assert "CONSOLE" in provider.console(made.id)
    provider.destroy(made.id)
    gone(provider, owner)
    assert provider.server(made.id) is None
    provider.destroy(made.id)  # again: well too


def test_a_full_quota_creates_nothing(cloud, provider, owner):
    cloud.set_quota(instances=20, cores=3, ram=200 << 10)
    provider.create(order(provider, owner, "c2.medium"))
    with pytest.raises(QuotaError, match="uota"):
        provider.create(order(provider, owner, "c2.medium"))
    assert len(provider.servers(owner)) == 1
    assert provider.quota().cores.left == 1000


def test_what_cannot_be_is_refused(provider, owner):
    import msgspec

    with pytest.raises(RefusedError):
        provider.create(msgspec.structs.replace(order(provider, owner), image=secrets.token_hex(16)))
    with pytest.raises(RefusedError):
        provider.create(order(provider, owner, key="nobody"))
    with pytest.raises(RefusedError, match="zero disk"):
        provider.create(order(provider, owner, "v2.diskless"))
    assert provider.servers(owner) == []


def test_a_failed_spawn_says_why_and_can_be_destroyed(cloud, provider, owner):
    with cloud.only_aborting():
        made = provider.create(order(provider, owner))
        found = runs(provider, made)
    assert found.state == FAILED
    assert found.why
    provider.destroy(made.id)
    gone(provider, owner)


def test_a_delete_that_fails_is_seen_and_can_be_repeated(cloud, provider, owner):
    made = provider.create(order(provider, owner))
    assert runs(provider, made).state == RUNNING
    with cloud.knob("fail-destroy"):
        provider.destroy(made.id)
        wait_for("ERROR", lambda: provider.server(made.id).state == FAILED, 60, 0.3)
        (left,) = provider.servers(owner)
        assert left.why
    provider.destroy(made.id)
    gone(provider, owner)


def test_while_the_api_is_down_nothing_is_believed_gone(cloud, provider, owner):
    made = provider.create(order(provider, owner))
    assert runs(provider, made).state == RUNNING
    for names in (("nova-api",), ("keystone",)):
        with cloud.down(*names):
            fresh = OpenStack("test")
            for client in (provider, fresh):
                if client is fresh or names != ("keystone",):
                    with pytest.raises(CloudError):
                        client.server(made.id)
                    with pytest.raises(CloudError):
                        client.servers(owner)
            with pytest.raises(CloudError) as refused:
                fresh.create(order_again(made, owner))
            assert not refused.value.ran  # nobody listened
        assert provider.server(made.id).state == RUNNING
    (only,) = provider.servers(owner)
    assert only.id == made.id


def order_again(made, owner):
    return Order(owner, secrets.token_hex(6), "w", "0", made.image)


def test_a_token_that_has_expired_or_was_revoked_is_replaced(cloud, provider, owner):
    made = provider.create(order(provider, owner))
    assert runs(provider, made).state == RUNNING
    cloud.revoke_tokens()
    wait_for("the cached token to be old", lambda: provider.server(made.id).state == RUNNING, 60, 2)
    with cloud.short_tokens(5):
        other = OpenStack("test")
        assert other.server(made.id).state == RUNNING
        import time

        began = time.time()
        while time.time() < began + 12:
            assert other.server(made.id).state == RUNNING
            time.sleep(1)
        (only,) = other.servers(owner)
        assert only.id == made.id


def test_a_key_pair(cloud, provider, tmp_path):
    for name in ("one", "two"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    publics = [(tmp_path / f"{name}.pub").read_text() for name in ("one", "two")]
    provider.add_key("rota-test", publics[0])
    provider.add_key("rota-test", publics[0])
    provider.add_key("rota-test", publics[1])
    assert [each.name for each in provider.keys()] == ["rota-test"]  # noqa: SIM118
    row = cloud.user("GET", "compute", "/os-keypairs/rota-test")["keypair"]
    assert row["public_key"].split()[1] == publics[1].split()[1]
    provider.remove_key("rota-test")
    provider.remove_key("rota-test")
    assert provider.keys() == []


def test_a_wrong_name_or_password_is_said(cloud, provider, monkeypatch, tmp_path):
    import json

    with pytest.raises(UsageError, match=r"clouds\.yaml has test"):
        OpenStack("mars")
    with open(cloud.path("clouds.yaml")) as file:
        rows = json.load(file)
    rows["clouds"]["test"]["auth"]["password"] = "wrong"
    (tmp_path / "clouds.yaml").write_text(json.dumps(rows))
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))
    with pytest.raises((CloudError, RefusedError), match=r"log in"):
        OpenStack("test").quota()

"""The private OpenStack and its bodies are what the other tests take them for."""

import contextlib
import subprocess

import pytest

from cloud.real_openstack import ABORTING, ApiError
from cluster.private import wait_for


def ask(cloud, name, flavor="c1.small", image="debian-12", **more):
    """Ask for a server, as a user; its id."""
    flavors = {row["name"]: row["id"] for row in cloud.user("GET", "compute", "/flavors")["flavors"]}
    (net,) = cloud.user("GET", "network", "/v2.0/networks?name=inside")["networks"]
    row = {
        "name": name,
        "flavorRef": flavors[flavor],
        "imageRef": cloud.images[image],
        "networks": [{"uuid": net["id"]}],
        **more,
    }
    return cloud.user("POST", "compute", "/servers", {"server": row})["server"]["id"]


def becomes(cloud, id, *states):
    """Wait for a server's state."""
    return wait_for(f"{id} to be {states}", lambda: (row := cloud.user.server(id)) and row["status"] in states and row)


def address(row):
    return next(each["addr"] for net in row["addresses"].values() for each in net)


@pytest.fixture
def key(cloud, tmp_path):
    """A key pair; the words that ssh is told to use it."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id"], check=True)
    public = (tmp_path / "id.pub").read_text()
    cloud.user("POST", "compute", "/os-keypairs", {"keypair": {"name": "k", "public_key": public, "type": "ssh"}})
    options = ("IdentitiesOnly=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "ConnectTimeout=3")
    return ["ssh", "-F", "/dev/null", "-i", str(tmp_path / "id"), *(w for each in options for w in ("-o", each))]


def on(key, address, *words):
    return subprocess.run([*key, f"root@{address}", *words], capture_output=True, text=True, timeout=60)


def test_a_server_has_a_body_that_lives_and_dies_with_it(cloud, bodies, key):
    import base64

    data = base64.b64encode(b"#!/bin/sh\necho made > /root/by-user-data\n").decode()
    id = ask(cloud, "one", key_name="k", user_data=data)
    row = becomes(cloud, id, "ACTIVE")
    where = address(row)
    wait_for("sshd", lambda: on(key, where, "true").returncode == 0)
    wait_for("its user data", lambda: on(key, where, "cat", "/root/by-user-data").stdout == "made\n")
    assert on(key, where, "hostname").stdout == "one\n"
    boot = "cat /proc/sys/kernel/random/boot_id"
    first = on(key, where, boot).stdout
    on(key, where, "echo kept > /root/file; nohup sleep 1000 >/dev/null 2>&1 &")
    body = bodies.of(id)
    bodies.reboot(body)
    wait_for("sshd", lambda: on(key, where, "true").returncode == 0)
    assert on(key, where, "cat", "/root/file").stdout == "kept\n"
    assert on(key, where, "pgrep -x sleep").returncode == 1
    assert on(key, where, boot).stdout != first
    reach = f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{cloud.ports['keystone']} && echo reached'"
    assert on(key, where, reach).stdout == "reached\n"
    bodies.cut(body)
    assert on(key, where, "true").returncode == 255
    bodies.heal(body)
    wait_for("sshd", lambda: on(key, where, "true").returncode == 0)
    cloud.user("POST", "compute", f"/servers/{id}/action", {"os-stop": None})
    becomes(cloud, id, "SHUTOFF")
    wait_for("its processes to end", lambda: not bodies.processes(body))
    cloud.user("POST", "compute", f"/servers/{id}/action", {"os-start": None})
    wait_for("sshd", lambda: on(key, where, "true").returncode == 0)
    cloud.user.delete_server(id)
    wait_for("its body to be gone", lambda: id not in bodies.by_id)
    assert on(key, where, "true").returncode == 255


def test_an_image_may_be_without_python(cloud, bodies, key):
    id = ask(cloud, "bare", image="no-python", key_name="k")
    where = address(becomes(cloud, id, "ACTIVE"))
    wait_for("sshd", lambda: on(key, where, "true").returncode == 0)
    assert on(key, where, "python3 --version").returncode == 127


def test_what_can_go_wrong_does(cloud):
    cloud.set_quota(instances=1, cores=60, ram=200 << 10)
    with cloud.knob("slow-spawn"):
        id = ask(cloud, "slow")
        used = lambda: cloud.user("GET", "compute", "/limits")["limits"]["absolute"]["totalInstancesUsed"]  # noqa: E731
        wait_for("it to be counted", used)
        with pytest.raises(ApiError, match="Quota exceeded") as refused:
            ask(cloud, "more")
        assert refused.value.code == 403
        assert cloud.user.server(id)["status"] == "BUILD"
    becomes(cloud, id, "ACTIVE")
    with cloud.knob("fail-destroy"):
        cloud.user.delete_server(id)
        becomes(cloud, id, "ERROR")
    cloud.user.delete_server(id)
    wait_for("its end", lambda: cloud.user.server(id) is None)
    with cloud.only_aborting():
        id = ask(cloud, "aborted")
        row = becomes(cloud, id, "ERROR")
        assert "aborted" in row["fault"]["message"].lower()
    assert ABORTING not in cloud.hosts
    with cloud.down("nova-api"), pytest.raises(OSError):
        cloud.user.servers()
    assert [row["id"] for row in cloud.servers()] == [id]
    cloud.revoke_tokens()
    with contextlib.suppress(ApiError):
        cloud.user.delete_server(id)
    wait_for("its end", lambda: cloud.user.server(id) is None)

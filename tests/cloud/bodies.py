"""Bodies of servers: each ACTIVE server of the private OpenStack is a pretend host, with its address and a real sshd.

A body has a network, a host name, processes and a boot id of its own, and a disk: what it writes goes to a layer over
this machine's files, which stays over a reboot and is gone with the server. What user data says is run at the first
start, the key of its key pair may log in as root, and the cloud's APIs can be reached from it.
"""

import base64
import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid

from cloud.real_openstack import ApiError
from cluster.guard import ticks
from cluster.private import ClusterError, wait_for

SSHD = "/usr/sbin/sshd"
LOOK_S = 1.0
LOOK_ANYWAY_S = 15.0
CHANGES = """\
select uuid, vm_state, task_state, power_state, image_ref, i.updated_at, c.updated_at from nova.instances i
left join nova.instance_info_caches c on c.instance_uuid = i.uuid where i.deleted = 0;
"""
EMPTY = ("root", "tmp", "home", "var/tmp", "run/sshd")
"""What a new server has nothing in, whatever this machine has there."""
START = """\
set -e
body=$1 name=$2; shift 2
mount -t overlay rota-test -o "lowerdir=/,upperdir=$body/upper,workdir=$body/work" "$body/root"
cd "$body/root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
for each; do mkdir -p ".$each"; mount --bind "$each" ".$each"; done
mount --bind "$body/boot_id" proc/sys/kernel/random/boot_id
hostname "$name"
printf '127.0.0.1 localhost\\n%s %s\\n' "$(cat "$body/address")" "$name" > etc/hosts
exec env -i HOME=/root USER=root LOGNAME=root SHELL=/bin/bash LC_ALL=C.UTF-8 \\
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$body/root" /bin/sh /rota-boot
"""
BOOT = """\
mkdir -p /run/sshd
if [ ! -e /var/lib/booted ]; then
    touch /var/lib/booted
    ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/body_key
    [ ! -e /rota-without-python ] || rm -f /usr/bin/python3* /usr/local/bin/python*
    if [ -s /rota-user-data ] && head -c 2 /rota-user-data | grep -q '#!'; then
        cp /rota-user-data /var/lib/user-data && chmod 700 /var/lib/user-data
        (cd / && /var/lib/user-data >/var/log/user-data.log 2>&1; echo $? >/var/lib/user-data.status) &
    fi
fi
exec /usr/sbin/sshd -D -e -f /dev/null -o HostKey=/etc/ssh/body_key -o PermitRootLogin=yes -o StrictModes=no \\
    -o UsePAM=no -o 'AuthorizedKeysFile=/rota-keys .ssh/authorized_keys' -o Subsystem='sftp internal-sftp' \\
    -o MaxStartups=100 -o MaxSessions=100 -o PidFile=/run/sshd.pid
"""
CLONE_NEWNET = 0x40000000


class Body:
    """One server's: `name` is that of its network namespace."""

    def __init__(self, server, name, host, address, directory):
        self.server = server
        self.name = name
        self.host = host
        """What it calls itself."""
        self.address = address
        self.directory = directory
        self.cut = False
        self.crashed = False
        self.process = None
        """What holds its processes: if it ends, they do."""

    @property
    def on(self):
        return self.process is not None and self.process.poll() is None


class Bodies:
    """Those of all servers of a cloud; a thread makes them come and go with what nova says."""

    def __init__(self, cloud):
        self.cloud = cloud
        self.bridge = f"rcb{os.getpid() % 1000000}"
        self.own_address = f"{cloud.net}.254"
        """This machine, as servers see it."""
        self.shared = []
        """Directories of this machine that servers see, if they are started after that."""
        self.by_id = {}
        self.booted = 0
        """How many starts there were."""
        self.errors = []
        self._made = 0
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._relay = Relay(cloud)
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self):
        self.cloud.mount("disk", "2g")
        os.makedirs(self.cloud.path("hosts"), exist_ok=True)
        self.cloud.write("hosts/list", f"{self.bridge}\n")
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.own_address}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        self._thread.start()

    def close(self):
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(60)
        for body in list(self.by_id.values()):
            self._remove(body)
        self._relay.close()
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)

    # ---- what a test does -------------------------------------------------------------------------------------------

    def of(self, id):
        """The body of a server, once it has one."""
        return wait_for(f"a body of {id}", lambda: self.by_id.get(id), 120)

    def at(self, address):
        """The body with an address."""
        return wait_for(f"a body at {address}", lambda: self._at(address), 120)

    def _at(self, address):
        return next((body for body in list(self.by_id.values()) if body.address == address), None)

    def cut(self, body):
        """Take its network away; nova sees nothing of it."""
        with self._lock:
            body.cut = True
            _ip("link", "set", f"{body.name}o", "down")
            self._relay.remove(body.name)

    def heal(self, body):
        """Give it back."""
        with self._lock:
            body.cut = False
            _ip("link", "set", f"{body.name}o", "up")
            self._relay.add(body.name)

    def crash(self, body):
        """End all that runs there, as if its power had failed; it stays off, and nova says ACTIVE."""
        with self._lock:
            self._turn_off(body)
            body.process = None
            body.crashed = True

    def reboot(self, body):
        """Reboot it, by the API: all that ran there is gone, its disk is as it was."""
        with self._lock:
            self.cloud.admin("POST", "compute", f"/servers/{body.server}/action", {"reboot": {"type": "HARD"}})
            self._turn_off(body)
            body.crashed = False
            self._turn_on(body)

    def destroy(self, body):
        """Delete the server, as somebody else would; its body goes at once."""
        with self._lock:
            self.cloud.admin.delete_server(body.server)
            self._remove(body)

    def processes(self, body):
        """What runs there, as this machine counts."""
        out = subprocess.run(["ip", "netns", "pids", body.name], capture_output=True, text=True).stdout
        return [int(word) for word in out.split() if ticks(word)]

    def read(self, body, path):
        """A file on its disk; None: there is none."""
        try:
            with open(f"{body.directory}/upper{path}") as file:
                return file.read()
        except OSError:
            return None

    # ---- following nova ---------------------------------------------------------------------------------------------

    def _follow(self):
        seen, looked = None, 0.0
        while not self._stop.wait(LOOK_S):
            try:
                now = self.cloud.sql(CHANGES)  # costs a tenth of what the API does
                if now != seen or time.monotonic() - looked > LOOK_ANYWAY_S:
                    seen = None
                    self._look()
                    seen, looked = now, time.monotonic()
            except (ApiError, ClusterError, OSError, KeyError):
                continue  # the API is down: bodies live on
            except Exception as error:
                self.errors.append(error)

    def _look(self):
        with self._lock:
            asked = set(self.by_id)
        rows = {row["id"]: row for row in self.cloud.admin.servers(everybodys=True)}
        for row in rows.values():
            with self._lock:
                self._see(row)
        for id in asked - set(rows):
            with self._lock:
                if id in self.by_id:
                    self._remove(self.by_id[id])

    def _see(self, row):
        body = self.by_id.get(row["id"])
        state = row["status"]
        if state == "ACTIVE" and body is None:
            address = next((each["addr"] for net in row["addresses"].values() for each in net), None)
            if address is not None:
                if (old := self._at(address)) is not None:
                    self._remove(old)  # the address was given away again
                self._make(row, address)
        elif state == "ACTIVE" and body is not None and not body.on and not body.crashed:
            self._turn_on(body)
        elif state in ("SHUTOFF", "ERROR") and body is not None and body.on:
            self._turn_off(body)

    def _make(self, row, address):
        self._made += 1
        name = f"rc{os.getpid() % 100000}n{self._made}"
        directory = self.cloud.path(f"disk/{name}")
        for each in ("upper", "work", "root"):
            os.makedirs(f"{directory}/{each}")
        for each in EMPTY:
            place = f"{directory}/upper/{each}"
            os.makedirs(place)
            os.setxattr(place, "trusted.overlay.opaque", b"y")
        os.chmod(f"{directory}/upper/tmp", 0o1777)
        os.chmod(f"{directory}/upper/root", 0o700)
        data = row.get("OS-EXT-SRV-ATTR:user_data")
        files = {
            "upper/rota-boot": BOOT,
            "upper/rota-keys": self._key(row),
            "upper/rota-user-data": base64.b64decode(data).decode() if data else "",
            "address": address,
        }
        if (row["image"] or {}).get("id") == self.cloud.images["no-python"]:
            files["upper/rota-without-python"] = ""
        for path, text in files.items():
            with open(f"{directory}/{path}", "w") as file:
                file.write(text)
        with open(self.cloud.path("hosts/list"), "a") as file:
            file.write(f"{name}\n")
        _ip("netns", "add", name)
        _ip("link", "add", f"{name}o", "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", f"{name}o", "master", self.bridge, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        body = Body(row["id"], name, row.get("OS-EXT-SRV-ATTR:hostname") or row["name"], address, directory)
        self._relay.add(name)
        self._turn_on(body)
        self.by_id[row["id"]] = body

    def _key(self, row):
        name, user = row.get("key_name"), row.get("user_id")
        if not name:
            return ""
        found = self.cloud.admin("GET", "compute", f"/os-keypairs/{name}?user_id={user}")["keypair"]
        return found["public_key"] + "\n"

    def _turn_on(self, body):
        with open(f"{body.directory}/boot_id", "w") as file:
            file.write(f"{uuid.uuid4()}\n")
        with open(self.cloud.path(f"log/body-{body.name}.out"), "ab") as log:
            body.process = subprocess.Popen(
                [
                    *("nsenter", f"--net=/run/netns/{body.name}"),
                    *("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"),
                    *("sh", "-c", START, "sh", body.directory, body.host, *self.shared),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.cloud.environment,
                start_new_session=True,
            )
        self.cloud.remember(f"body-{body.name}", body.process.pid)
        self.booted += 1

    def _turn_off(self, body):
        if body.process is not None:
            body.process.kill()
            body.process.wait(30)
        deadline = time.monotonic() + 30
        while (left := self.processes(body)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def _remove(self, body):
        self._turn_off(body)
        self._relay.remove(body.name)
        subprocess.run(["ip", "netns", "del", body.name], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{body.name}o"], capture_output=True)
        shutil.rmtree(body.directory, ignore_errors=True)
        self.by_id.pop(body.server, None)


class Relay:
    """What leads from 127.0.0.1 in servers to the cloud's APIs on 127.0.0.1 of this machine."""

    def __init__(self, cloud):
        self._cloud = cloud
        self._listening = {}
        """Namespace → its sockets."""
        self._changed = os.pipe()
        self._lock = threading.Lock()
        self._open = {}
        """Socket → the other one, and its namespace."""
        self._ends = False
        self._thread = None

    def add(self, name):
        """Let a namespace reach the APIs."""
        ports = [self._cloud.ports[each] for each in ("keystone", "glance", "neutron", "nova")]
        made = []

        def listen():  # a thread of its own: it never comes back from that namespace
            with open(f"/run/netns/{name}") as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            for port in ports:
                each = socket.socket()
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                each.bind(("127.0.0.1", port))
                each.listen(64)
                made.append(each)

        thread = threading.Thread(target=listen)
        thread.start()
        thread.join()
        with self._lock:
            self._listening[name] = made
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, daemon=True)
                self._thread.start()
        os.write(self._changed[1], b"x")

    def remove(self, name):
        """Cut it off."""
        with self._lock:
            for each in self._listening.pop(name, ()):
                each.close()
            for each, (_, of) in list(self._open.items()):
                if of == name:
                    self._drop(each)
        os.write(self._changed[1], b"x")

    def close(self):
        self._ends = True
        os.write(self._changed[1], b"x")
        if self._thread is not None:
            self._thread.join(30)
        for name in list(self._listening):
            for each in self._listening.pop(name):
                each.close()

    def _drop(self, each):
        other, _ = self._open.pop(each, (None, None))
        each.close()
        if other is not None and other in self._open:
            self._open.pop(other)
            other.close()

    def _serve(self):
        while not self._ends:
            with self._lock:
                doors = {each: name for name, made in self._listening.items() for each in made}
                ready = [*doors, *self._open]
            try:
                found, _, _ = select.select([self._changed[0], *ready], [], [], 5)
            except (OSError, ValueError):
                continue  # one was closed meanwhile
            for each in found:
                if each == self._changed[0]:
                    os.read(each, 4096)
                    continue
                with self._lock, contextlib.suppress(OSError):
                    if each in doors and doors[each] in self._listening:
                        self._accept(each, doors[each])
                    elif each in self._open:
                        self._pass_on(each)

    def _accept(self, door, name):
        port = door.getsockname()[1]
        inner, _ = door.accept()
        try:
            outer = socket.create_connection(("127.0.0.1", port), 5)
        except OSError:
            inner.close()
            return
        self._open[inner] = (outer, name)
        self._open[outer] = (inner, name)

    def _pass_on(self, each):
        other = self._open[each][0]
        try:
            data = each.recv(65536)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        self._drop(each)


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)

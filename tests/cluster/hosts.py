"""Pretend hosts on this machine: each has a network, a host name and an /etc/hosts of its own; files are shared."""

import os
import subprocess

from cluster.guard import remove_hosts


class Hosts:
    """Hosts `PREFIX1` … on a bridge of their own. The guard of the cluster's directory takes them away."""

    made = 0

    def __init__(self, directory, prefix, count):
        self.names = [f"{prefix}{number}" for number in range(1, count + 1)]
        self._directory = f"{directory}/hosts"
        Hosts.made += 1  # several clusters of one process have several bridges
        number = (os.getpid() + 50 * Hosts.made) % 250
        self._net = f"10.{100 + number % 100}.{number}"
        self.bridge = f"rb{os.getpid()}{'abcdefgh'[Hosts.made % 8]}"
        self.own_address = f"{self._net}.254"
        self.addresses = {name: f"{self._net}.{at}" for at, name in enumerate(self.names, 1)}

    def start(self, own_name):
        """Make them; this machine is another host on their bridge."""
        os.mkdir(self._directory)
        with open(f"{self._directory}/list", "w") as file:
            file.write("".join(f"{line}\n" for line in (self.bridge, *self.names)))
        rows = [("127.0.0.1", "localhost"), (self.own_address, own_name)]
        rows += [(address, name) for name, address in self.addresses.items()]
        with open(f"{self._directory}/hosts", "w") as file:
            file.write("".join(f"{address} {name}\n" for address, name in rows))
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.own_address}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for at, (name, address) in enumerate(self.addresses.items()):
            outer = f"{self.bridge}v{at}"
            _ip("netns", "add", name)
            _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", outer, "master", self.bridge, "up")
            for words in (
                ("link", "set", "lo", "up"),
                ("addr", "add", f"{address}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
            ):
                _ip("-n", name, *words)
            place = f"{self._directory}/uts-{name}"
            open(place, "w").close()
            subprocess.run(["unshare", f"--uts={place}", "hostname", name], check=True)

    def on(self, name):
        """Words before a command that make it run on a host. (`ip netns exec` would hide the control groups.)"""
        return (
            *("nsenter", f"--uts={self._directory}/uts-{name}", f"--net=/run/netns/{name}"),
            *("unshare", "--mount", "--propagation", "slave", "sh", "-c"),
            *('mount --bind "$0" /etc/hosts; exec "$@"', f"{self._directory}/hosts"),
        )

    def cut(self, name):
        """Take its network away."""
        _ip("link", "set", f"{self.bridge}v{self.names.index(name)}", "down")

    def heal(self, name):
        """Give it back."""
        _ip("link", "set", f"{self.bridge}v{self.names.index(name)}", "up")

    def close(self):
        remove_hosts(os.path.dirname(self._directory))


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)

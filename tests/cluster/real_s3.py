"""A private S3: Swift's own, with its s3api, on this machine only. Key `test:tester`, secret `testing`."""

import contextlib
import urllib.error
import urllib.request

from cluster.private import PrivateCluster, free_ports, wait_for

PROGRAMS = ("swift-proxy-server", "swift-account-server", "swift-container-server", "swift-object-server",
            "swift-ring-builder", "memcached")  # fmt: skip
SWIFT = """[swift-hash]
swift_hash_path_suffix = rota
swift_hash_path_prefix = test
[storage-policy:0]
name = p0
default = yes
"""
SERVER = """[DEFAULT]
devices = {directory}/node
mount_check = false
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = root
swift_dir = {directory}/conf
fallocate_reserve = 0
[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
"""
PROXY = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = root
swift_dir = {directory}/conf
[pipeline:main]
pipeline = catch_errors cache listing_formats bulk s3api tempauth slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{cache}
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:bulk]
use = egg:swift#bulk
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""


class RealS3(PrivateCluster):
    """One proxy, one disk."""

    def __init__(self):
        super().__init__("s3")

    def start(self):
        import os

        os.makedirs(self.path("conf"))
        os.makedirs(self.path("node/d1"))
        port = free_ports(5)
        self.write("conf/swift.conf", SWIFT)
        self.spawn("memcached", "memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(port + 4), "-m", "16")
        for at, name in enumerate(("account", "container", "object"), 1):
            builder = self.path(f"conf/{name}.builder")
            for words in (("create", "4", "1", "0"), ("add", f"r1z1-127.0.0.1:{port + at}/d1", "1"), ("rebalance",)):
                self.run("swift-ring-builder", builder, *words, check=False, timeout=120)
            text = SERVER.format(directory=self.directory, port=port + at, name=name)
            self.spawn(name, f"swift-{name}-server", self.write(f"conf/{name}.conf", text))
        text = PROXY.format(directory=self.directory, port=port, cache=port + 4)
        self._proxy = ("swift-proxy-server", self.write("conf/proxy.conf", text))
        self.spawn("proxy", *self._proxy)
        self.address = f"http://127.0.0.1:{port}"
        self.variables = {
            "AWS_ACCESS_KEY_ID": "test:tester", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.address,
        }  # fmt: skip
        wait_for("the proxy", self._answers, 180)

    @contextlib.contextmanager
    def away(self):
        """Meanwhile nobody answers."""
        self._children["proxy"].kill()
        self._children["proxy"].wait(60)
        try:
            yield
        finally:
            self.spawn("proxy", *self._proxy)
            wait_for("the proxy", self._answers, 180)

    def _answers(self):
        try:
            urllib.request.urlopen(self.address, timeout=10)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

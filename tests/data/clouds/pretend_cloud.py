"""A cloud for process tests: what it has is in a file, so that it outlives managers and a test can look at it."""

import fcntl
import os
from contextlib import contextmanager

import msgspec

from rota.drivers.provider import Server
from rota.testing.fake_cloud import FakeCloud


class Kept(msgspec.Struct):
    all: dict[str, Server] = {}
    gone_at: dict[str, float] = {}
    created: dict[str, int] = {}
    due: list[tuple[float, str, str, str]] = []
    count: int = 0
    fault: dict[str, str] = {}


class PretendCloud(FakeCloud):
    """All its servers are this machine: the tests' ssh does not go far."""

    def __init__(self, cloud, options):
        super().__init__(servers=int(options.get("servers", 10)), build_s=float(options.get("build_s", 0.1)))
        self.path = options["file"]
        self._faults = {}
        self.fault = self._fault

    def _fault(self, call):
        return self._faults.get(call)

    @contextmanager
    def kept(self):
        """What is in the file, and will be when this is over."""
        with self._lock, open(f"{self.path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = Kept()
            if os.path.exists(self.path):
                with open(self.path, "rb") as file:
                    kept = msgspec.json.decode(file.read(), type=Kept)
            self.all, self.gone_at, self.created, self._due = kept.all, kept.gone_at, kept.created, kept.due
            self._count, self._faults = kept.count, kept.fault
            try:
                yield self
            finally:
                kept = Kept(self.all, self.gone_at, self.created, self._due, self._count, self._faults)
                with open(f"{self.path}.new", "wb") as file:
                    file.write(msgspec.json.encode(kept))
                os.replace(f"{self.path}.new", self.path)


def _kept(name):
    def method(self, *args, **more):
        with self.kept():
            return getattr(FakeCloud, name)(self, *args, **more)

    return method


for _name in ("sizes", "quota", "images", "networks", "keys", "groups", "create", "servers", "server", "destroy",
              "console", "add_key", "remove_key", "publish"):  # fmt: skip
    setattr(PretendCloud, _name, _kept(_name))

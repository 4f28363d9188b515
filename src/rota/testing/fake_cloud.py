"""A cloud that is not there, for tests and simulations: a provider in memory, with clock and faults of the test's own.

It imports nothing of rota but the interface that it has.
"""

import threading
import time
from collections.abc import Callable

from msgspec.structs import replace

from rota.drivers.provider import (
    BUILDING,
    ENDING,
    FAILED,
    GONE,
    RUNNING,
    CloudError,
    Level,
    Order,
    Quota,
    QuotaError,
    Server,
    Size,
    Thing,
)
from rota.model.errors import RefusedError
from rota.model.needs import Amounts

__all__ = ["FakeCloud"]

GIB = 1 << 30
SIZES = (
    Size("1", "tiny", Amounts(1000, GIB, 10 * GIB)),
    Size("2", "small", Amounts(2000, 4 * GIB, 20 * GIB)),
    Size("3", "large", Amounts(8000, 16 * GIB, 80 * GIB)),
)


class FakeCloud:
    """Servers that are built, run and end by the clock.

    `fault` is asked before each call, with its name, and may answer `away` (the cloud does not answer, nothing is
    done), and of `create` also `lost` (done, but the answer is lost), `undone` (not done, and nobody can tell), `late`
    (done after `late_s`, and nobody can tell), `quota` and `error` (it is built, and fails); of `destroy` also `stuck`
    (accepted, and nothing happens).
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        sizes: tuple[Size, ...] = SIZES,
        servers: int | None = 10,
        cores: int | None = 40_000,
        memory: int | None = 100 * GIB,
        build_s: float = 0.0,
        destroy_s: float = 0.0,
        late_s: float = 5.0,
    ) -> None:
        self.name = "the fake cloud"
        self.clock = clock
        self.fault: Callable[[str], str | None] = lambda call: None
        self.changed: Callable[[Server, Server], None] = lambda before, after: None
        """Called when a server becomes another: (before, after)."""
        self.build_s, self.destroy_s, self.late_s = build_s, destroy_s, late_s
        self._sizes = sizes
        self._most = (servers, cores, memory)
        self.all: dict[str, Server] = {}
        """Id → server, also those that are gone."""
        self.gone_at: dict[str, float] = {}
        self.created: dict[str, int] = {}
        """Tag → how many servers were ever made with it."""
        self.calls: list[str] = []
        self._due: list[tuple[float, str, str, str]] = []
        """(when, id, state, native)."""
        self._late: list[tuple[float, Order]] = []
        self._keys: dict[str, str] = {"mine": "ssh-ed25519 AAAA"}
        self._lock = threading.RLock()
        self._count = 0

    # ---- the clock --------------------------------------------------------------------------------------------------

    def advance(self) -> float | None:
        """Let happen what is due; when the next thing is."""
        with self._lock:
            now = self.clock()
            for when, order in [row for row in self._late if row[0] <= now]:
                self._late.remove((when, order))
                self._make(order, None)
            while self._due and min(self._due)[0] <= now:
                row = min(self._due)
                self._due.remove(row)
                _, id, state, native = row
                if self.all[id].state != GONE:
                    self.become(id, state, native)
            return min([*(row[0] for row in self._due), *(row[0] for row in self._late)], default=None)

    def become(self, id: str, state: str, native: str, why: str = "") -> None:
        """Have a server be something else from now on."""
        with self._lock:
            before = self.all[id]
            after = replace(before, state=state, native=native, why=why or before.why)
            if state == GONE:
                self.gone_at[id] = self.clock()
            self.all[id] = after
        self.changed(before, after)

    def there(self) -> list[Server]:
        """The servers that are not gone."""
        self.advance()
        return [server for server in self.all.values() if server.state != GONE]

    def _called(self, call: str) -> str | None:
        self.advance()
        self.calls.append(call)
        fault = self.fault(call)
        if fault == "away":
            raise CloudError(f"{self.name}: {call}: it does not answer")
        return fault

    # ---- the interface ----------------------------------------------------------------------------------------------

    def sizes(self) -> list[Size]:
        """The flavors."""
        self._called("sizes")
        return list(self._sizes)

    def quota(self) -> Quota:
        """The quota."""
        self._called("quota")
        return self._quota()

    def _quota(self) -> Quota:
        nodes = [self._node(server.size) for server in self.there()]
        servers, cores, memory = self._most
        return Quota(
            Level(len(nodes), servers),
            Level(sum(node.cores for node in nodes), cores),
            Level(sum(node.memory for node in nodes), memory),
        )

    def _node(self, name: str) -> Amounts:
        return next(size.node for size in self._sizes if size.name == name)

    def images(self) -> list[Thing]:
        """The images."""
        self._called("images")
        return [Thing("i1", "debian-12", 2 * GIB), Thing("i2", "ubuntu-24.04", 3 * GIB)]

    def networks(self) -> list[Thing]:
        """The networks."""
        self._called("networks")
        return [Thing("n1", "inside"), Thing("n2", "world", outside=True)]

    def keys(self) -> list[Thing]:
        """The key pairs."""
        self._called("keys")
        return [Thing(name, name) for name in self._keys]

    def groups(self) -> list[Thing]:
        """The security groups."""
        self._called("groups")
        return [Thing("g1", "default")]

    def create(self, order: Order) -> Server:
        """Make a server."""
        fault = self._called("create")
        with self._lock:
            size = next((size for size in self._sizes if size.id == order.size), None)
            if size is None:
                raise RefusedError(f"{self.name}: there is no flavor {order.size}")
            quota, node = self._quota(), size.node
            for level, asked in ((quota.servers, 1), (quota.cores, node.cores), (quota.memory, node.memory)):
                if fault == "quota" or (level.left is not None and level.left < asked):
                    raise QuotaError(f"{self.name}: Quota exceeded: asked for {asked}, {level.used} of {level.most}")
            if fault == "undone":
                raise CloudError(f"{self.name}: create: the connection was lost", ran=True)
            if fault == "late":
                self._late.append((self.clock() + self.late_s, order))
                raise CloudError(f"{self.name}: create: no answer in time", ran=True)
            made = self._make(order, fault)
        if fault == "lost":
            raise CloudError(f"{self.name}: create: the answer was lost", ran=True)
        return made

    def _make(self, order: Order, fault: str | None) -> Server:
        self._count += 1
        id, now = f"server-{self._count:04}", self.clock()
        size = next(size.name for size in self._sizes if size.id == order.size)
        name = f"{order.name}-{order.tag}"
        address = f"10.0.{self._count // 250}.{self._count % 250 + 1}"
        made = Server(
            id, name, order.owner, order.tag, BUILDING, "BUILD", size, order.image, (address,), "", now
        )  # fmt: skip
        self.all[id] = made
        self.created[order.tag] = self.created.get(order.tag, 0) + 1
        state = (FAILED, "ERROR") if fault == "error" else (RUNNING, "ACTIVE")
        if fault == "error":
            self.all[id] = replace(made, why="No valid host was found.")
        self._due.append((now + self.build_s, id, *state))
        return made

    def servers(self, owner: str) -> list[Server]:
        """The servers of an owner."""
        self._called("servers")
        return [server for server in self.there() if server.owner == owner]

    def server(self, id: str) -> Server | None:
        """One server."""
        self._called("server")
        found = self.all.get(id)
        return None if found is None or found.state == GONE else found

    def destroy(self, id: str) -> None:
        """End a server."""
        fault = self._called("destroy")
        found = self.all.get(id)
        if found is None or found.state == GONE or fault == "stuck":
            return
        with self._lock:
            if found.state != ENDING:
                self.become(id, ENDING, f"{found.native} (deleting)")
            self._due.append((self.clock() + self.destroy_s, id, GONE, "DELETED"))

    def console(self, id: str, lines: int = 50) -> str:
        """What a server wrote."""
        self._called("console")
        return f"{id} login:" if id in self.all else ""

    def add_key(self, name: str, public: str) -> None:
        """Make a key pair."""
        self._called("add_key")
        self._keys[name] = public

    def remove_key(self, name: str) -> None:
        """Remove a key pair."""
        self._called("remove_key")
        self._keys.pop(name, None)

    def publish(self, id: str, network: str) -> str:
        """Give a server an address."""
        self._called("publish")
        return f"192.0.2.{int(id.rpartition('-')[2]) % 250 + 1}"

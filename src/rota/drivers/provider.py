"""What a cloud is to rota: a few questions and three deeds. Another cloud is one file with a class that has these.

Everything here blocks, and is called from threads, several at one time: drivers see to that, and to repeats. What a
provider must promise is small, and `rota.testing.check_cloud` examines it:

- What is created carries its owner and its tag *from the request that creates it*: there is no moment at which a server
  is there and nobody could say whose it is.
- An error of `create` says whether a server may be there nevertheless (`CloudError.ran`). Whoever is not sure says yes.
- A listing is whole, or raises. What it cannot say of a server is in it as `unknown`, not left out.
- `server` says None only of what certainly is not there. `destroy` may be repeated, also of what is gone.

A driver loads providers by name (`load_provider`): those of rota, and entry points of the group `rota.clouds`.
"""

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from msgspec import Struct

from rota.model.errors import BusyError, UsageError
from rota.model.needs import Amounts

__all__ = [
    "BUILDING", "ENDING", "FAILED", "GONE", "RESTARTING", "RUNNING", "STOPPED", "UNKNOWN", "CloudError", "Level",
    "Order", "Provider", "Quota", "QuotaError", "Server", "Size", "Thing", "is_provider", "load_provider",
    "provider_names",
]  # fmt: skip

GROUP = "rota.clouds"
BUILT_IN = {"openstack": "rota.drivers.openstack:OpenStack"}

BUILDING, RUNNING, RESTARTING, STOPPED = "building", "running", "restarting", "stopped"
FAILED, ENDING, GONE, UNKNOWN = "failed", "ending", "gone", "unknown"
"""What a server is. `restarting`: rebooted or rebuilt just now; `stopped`: switched off, suspended, shelved or paused,
and may come back; `failed`: the cloud says that it is no good; `ending`: being deleted, which can still fail; `gone`:
deleted; `unknown`: the cloud cannot tell now."""


class CloudError(BusyError):
    """The cloud could not do something now."""

    def __init__(self, words: str, *, ran: bool = False) -> None:
        super().__init__(words)
        self.ran = ran
        """Whether what was asked may have been done nevertheless."""


class QuotaError(CloudError):
    """There is no room in the quota. Nothing was created."""


class Size(Struct, frozen=True):
    """What servers are made in: a flavor."""

    id: str
    """What `create` is told."""
    name: str
    """What people call it, and what `Server.size` says."""
    node: Amounts
    """Millicores, bytes of memory, bytes of disk, gpus. A disk of 0: it has none of its own."""
    price: float | None = None
    """Money per hour, if the cloud says so; the configuration's price table goes first."""


class Level(Struct, frozen=True):
    """How much of something is used, and how much there may be; None: without end."""

    used: int
    most: int | None = None

    @property
    def left(self) -> int | None:
        """How much more there may be; None: without end."""
        return None if self.most is None else max(0, self.most - self.used)


class Quota(Struct, frozen=True):
    """What the project may have, whoever uses it."""

    servers: Level
    cores: Level
    """Millicores."""
    memory: Level
    """Bytes."""


class Thing(Struct, frozen=True):
    """Something that the cloud has and servers are made with: an image, a network, a key pair, a security group."""

    id: str
    name: str
    disk: int = 0
    """Of an image: bytes of disk that it needs."""
    memory: int = 0
    """Of an image: bytes of memory that it needs."""
    outside: bool = False
    """Of a network: whether addresses that the world can reach come from there."""


class Order(Struct, frozen=True):
    """One server to be created."""

    owner: str
    """Whose servers these are: one manager's, or one deployment's. 1 to 40 of the letters a-z, digits and `-`."""
    tag: str
    """Twelve hex digits, of this server alone, made up before it was asked for."""
    name: str
    """For people, and the host name; the native name is `NAME-TAG`."""
    size: str
    """`Size.id`."""
    image: str
    """`Thing.id`."""
    networks: tuple[str, ...] = ()
    """`Thing.id` of each; none: whatever the cloud gives a server of which nothing is said."""
    groups: tuple[str, ...] = ()
    """Names of security groups; none: as the cloud has it."""
    key: str | None = None
    """The name of a key pair."""
    user_data: str = ""
    """For cloud-init: a script (`#!…`) or `#cloud-config`. As text; the provider encodes it."""
    volume: int = 0
    """Bytes of a new disk to boot from, deleted with the server; 0: the size's own disk."""
    zone: str | None = None
    notes: tuple[tuple[str, str], ...] = ()
    """More words to keep with the server."""


class Server(Struct, frozen=True):
    """A server as the cloud sees it."""

    id: str
    name: str
    owner: str
    """Empty: it has none, or (if `unknown`) the cloud cannot tell now."""
    tag: str
    state: str
    """One of the words above."""
    native: str = ""
    """The cloud's own word for it, such as SHUTOFF or REBUILD."""
    size: str = ""
    """The name of its size."""
    image: str = ""
    """The id of its image; empty: not known. Another one than before: it was rebuilt."""
    addresses: tuple[str, ...] = ()
    """The best to reach it by first: those that the world can reach, then its own."""
    why: str = ""
    """Why it failed, in the cloud's words."""
    created: float = 0.0
    """Wall-clock time."""


class Provider(Protocol):
    """One project in one cloud. Every method blocks, and raises CloudError if the cloud cannot answer now.

    It is made without speaking to the cloud, as `Class(cloud, options)`: the cloud's name in the configuration of its
    own tools (None: as the environment says), and what else the configuration gives it, by name. UsageError: there is
    no such cloud, or there are no credentials, naming what there is.
    """

    name: str
    """What it is called, in words: `the cloud NAME`."""

    def sizes(self) -> list[Size]:
        """All sizes that servers can have."""
        ...

    def quota(self) -> Quota:
        """What may be had, and what is used."""
        ...

    def images(self) -> list[Thing]:
        """The images that can be used."""
        ...

    def networks(self) -> list[Thing]:
        """The networks that a server can be in."""
        ...

    def keys(self) -> list[Thing]:
        """The key pairs."""
        ...

    def groups(self) -> list[Thing]:
        """The security groups."""
        ...

    def create(self, order: Order) -> Server:
        """Ask for a server; it is there, and building.

        Raises QuotaError: no room, and nothing was created; RefusedError: it never will be, as it was ordered, and
        nothing was created; CloudError otherwise, with `ran` saying whether it may have been created.
        """
        ...

    def servers(self, owner: str) -> list[Server]:
        """All servers of an owner that are there, in whatever state; and every one whose owner is `unknown` now."""
        ...

    def server(self, id: str) -> Server | None:
        """One server, whoever has it; None: certainly there is none."""
        ...

    def destroy(self, id: str) -> None:
        """Ask for a server's end, with all that was made for it. That it is gone is seen by `server`."""
        ...

    def console(self, id: str, lines: int = 50) -> str:
        """The last lines that it wrote on its console; empty: none, or the cloud does not tell."""
        ...

    def add_key(self, name: str, public: str) -> None:
        """See to it that there is a key pair of this name with this public key (of OpenSSH)."""
        ...

    def remove_key(self, name: str) -> None:
        """See to it that there is no key pair of this name."""
        ...

    def publish(self, id: str, network: str) -> str:
        """Give a server an address that the world can reach, from a network (`Thing.id`), or tell which it has.

        It is given back by `destroy`.
        """
        ...


def provider_names() -> list[str]:
    """The names of all providers."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def is_provider(name: str) -> bool:
    """Whether a driver's name is that of a cloud."""
    return name in BUILT_IN or bool(entry_points(group=GROUP, name=name))


def load_provider(name: str, cloud: str | None, options: dict[str, str] | None = None) -> Provider:
    """Make the provider of that name. A name of rota's own is never another package's."""
    place = BUILT_IN.get(name)
    if place is not None:
        module, _, attribute = place.partition(":")
        made: Provider = getattr(import_module(module), attribute)(cloud, options or {})
        return made
    found: list[EntryPoint] = list(entry_points(group=GROUP, name=name))
    if not found:
        raise UsageError(f"there is no cloud {name!r}; there are {', '.join(provider_names())}")
    try:
        kind = found[0].load()
    except Exception as error:
        raise UsageError(f"the cloud {name!r} ({found[0].value}) cannot be loaded: {error!r}") from error
    foreign: Provider = kind(cloud, options or {})
    return foreign

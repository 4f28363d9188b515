"""What is written down of a deployment (`deployment.json`): which place has the queue, and how that is reached."""

import os

import msgspec
from msgspec import Struct

from rota.manager.paths import Paths
from rota.model.errors import RefusedError, RotaError

__all__ = [
    "AWAY", "HOME", "PLANNED", "SENT", "Deployment", "Wanted", "forbid_deployed", "head_directory", "read", "ssh_words",
]  # fmt: skip

PLANNED, SENT, AWAY, HOME = "planned", "sent", "away", "home"
"""Up to `sent` the queue is in this home, from `away` on it is on the head server, from `home` on it is here again."""


class Wanted(Struct, frozen=True):
    """What a head server is to be."""

    provider: str = "openstack"
    cloud: str | None = None
    image: str = ""
    size: str = ""
    networks: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    public: str | None = None
    """The network that its address for the world comes from."""
    user: str = "root"
    python: str = "python3"
    ssh_options: tuple[str, ...] = ()


class Deployment(Struct):
    """What is written down of it."""

    wanted: Wanted
    owner: str
    tag: str
    phase: str = PLANNED
    server: str = ""
    """The native id."""
    address: str = ""
    directory: str = ""
    """The home there."""
    since: float = 0.0
    asked: bool = False
    """Whether the cloud may have been asked for the server."""


def read(paths: Paths) -> Deployment | None:
    """What is deployed from this home. Raises RotaError if that cannot be read: a queue may be elsewhere."""
    try:
        with open(paths.deployment, "rb") as file:
            return msgspec.json.decode(file.read(), type=Deployment)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise RotaError(f"{paths.deployment} cannot be read ({error}): it says where the queue is") from None


def forbid_deployed(paths: Paths) -> None:
    """Refuse to start a manager here while the queue is on a head server."""
    found = read(paths)
    if found is not None and found.phase == AWAY:
        raise RefusedError(
            f"the queue of {paths.home} is on a server in the cloud ({found.address}): `rota cloud deploy` connects to "
            f"it again, `rota cloud teardown` brings it home"
        )


def ssh_words(paths: Paths, found: Deployment) -> list[str]:
    """How the head is reached, without its name."""
    place = head_directory(paths)
    options = (
        "BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=10", "ServerAliveCountMax=3", "IdentitiesOnly=yes",
        "StrictHostKeyChecking=accept-new", f"UserKnownHostsFile={place}/known_hosts", "LogLevel=ERROR",
    )  # fmt: skip
    words = ["ssh", "-i", f"{place}/id_ed25519", "-T"]
    for option in options:
        words += ["-o", option]
    return [*words, *found.wanted.ssh_options]


def head_directory(paths: Paths) -> str:
    """Where keys and the like for the head are kept."""
    return os.path.join(paths.home, "head")

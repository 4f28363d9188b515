"""OpenStack as a provider of servers, through its own Python library (the extra `rota[openstack]`)."""

import base64
import os
import re
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from rota.drivers.provider import (
    BUILDING,
    ENDING,
    FAILED,
    GONE,
    RESTARTING,
    RUNNING,
    STOPPED,
    UNKNOWN,
    CloudError,
    Level,
    Order,
    Quota,
    QuotaError,
    Server,
    Size,
    Thing,
)
from rota.model.errors import RefusedError, RotaError, UsageError
from rota.model.needs import Amounts

__all__ = ["OpenStack"]

OWNER, TAG = "rota-owner", "rota-tag"
"""Metadata of a server."""
MIB, GIB = 1 << 20, 1 << 30
TIMEOUT_S = 60.0
"""How long one request may take."""
STATES = {
    "BUILD": BUILDING,
    "ACTIVE": RUNNING, "MIGRATING": RUNNING, "PASSWORD": RUNNING, "VERIFY_RESIZE": RUNNING,
    "REBOOT": RESTARTING, "HARD_REBOOT": RESTARTING, "REBUILD": RESTARTING, "RESIZE": RESTARTING,
    "REVERT_RESIZE": RESTARTING,
    "SHUTOFF": STOPPED, "PAUSED": STOPPED, "SUSPENDED": STOPPED, "SHELVED": STOPPED, "SHELVED_OFFLOADED": STOPPED,
    "RESCUE": STOPPED,
    "ERROR": FAILED,
    "DELETED": GONE, "SOFT_DELETED": GONE,
}  # fmt: skip
NEVER_SENT = ("NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "Connection refused")
"""Words in an error of the connection after which the request has certainly not arrived."""
LOOKED_FOR = "looked for in OS_CLIENT_CONFIG_FILE, here, ~/.config/openstack and /etc/openstack"
GPU = re.compile(r"gpu", re.IGNORECASE)


class OpenStack:
    """One project of an OpenStack, as `clouds.yaml` or the environment (`OS_…`) says.

    Options: `region`, and `timeout` (seconds that one request may take).
    """

    def __init__(self, cloud: str | None, options: dict[str, str] | None = None) -> None:
        try:
            import openstack
        except ImportError as error:
            raise UsageError(f"OpenStack needs the extra openstack: pip install 'rota[openstack]' ({error})") from None
        self._sdk: Any = openstack
        self._lock = threading.Lock()
        self._made: Any = None
        given = options or {}
        self._timeout_s = float(given.get("timeout", TIMEOUT_S))
        self._region = self._read_cloud(cloud, given.get("region"))
        self.name = f"the cloud {cloud or self._region.name or 'of the environment'}"
        self._names: dict[str, str] = {}
        """Id of a flavor → its name."""

    def _read_cloud(self, cloud: str | None, region: str | None) -> Any:
        """The cloud's own configuration; refused here is what no request could go with."""
        sdk = self._sdk
        try:
            loader = sdk.config.OpenStackConfig(app_name="rota")
        except Exception as error:
            raise UsageError(f"clouds.yaml cannot be read: {_line(error)}") from None
        names = loader.get_cloud_names()
        there = sorted(set(names) - {"envvars", "defaults"})
        listed = f"clouds.yaml has {', '.join(there)}" if there else f"there is no clouds.yaml ({LOOKED_FOR})"
        if cloud is not None and cloud not in names:
            raise UsageError(f"there is no cloud '{cloud}': {listed}")
        more = {"region_name": region} if region is not None else {}
        try:
            found = loader.get_one(cloud=cloud, api_timeout=self._timeout_s, **more)
            found.get_auth()
        except Exception as error:
            if cloud is None and not os.environ.get("OS_AUTH_URL"):
                hint = 'give cloud = "NAME", or set OS_CLOUD or OS_AUTH_URL and what goes with it'
                raise UsageError(f"there are no credentials for a cloud: {hint}; {listed}") from None
            raise UsageError(f"the cloud '{cloud or 'of the environment'}' cannot be used: {_line(error)}") from None
        return found

    @property
    def _cloud(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._sdk.connection.Connection(config=self._region)
            return self._made

    def _ask(self, what: str, call: Callable[[], Any], *, ran: bool = False) -> Any:
        """Make a request, with errors of ours; `ran` is what is said of it where nobody knows."""
        try:
            self._cloud.authorize()
        except Exception as error:
            raise self._error(f"{what} (log in)", error, False) from error
        try:
            return call()
        except Exception as error:
            raise self._error(what, error, ran) from error

    def _error(self, what: str, error: Exception, ran: bool) -> RotaError:
        words = f"{self.name}: {what}: {_line(error)}"
        status = getattr(error, "status_code", None) or getattr(error, "http_status", None)
        if isinstance(error, RotaError):
            return error
        if status in (403, 413) and "quota" in str(error).lower():
            return QuotaError(words)
        if status in (401, 408, 429):
            return CloudError(words)
        if isinstance(status, int) and 400 <= status < 500:
            return RefusedError(words)
        if any(word in str(error) for word in NEVER_SENT):
            return CloudError(words)
        return CloudError(words, ran=ran)

    # ---- what there is ----------------------------------------------------------------------------------------------

    def sizes(self) -> list[Size]:
        """All flavors that are not disabled."""
        found = self._ask("list flavors", lambda: list(self._cloud.compute.flavors(details=True, get_extra_specs=True)))
        out = [
            Size(
                each.id,
                each.name,
                Amounts(each.vcpus * 1000, each.ram * MIB, (each.disk + (each.ephemeral or 0)) * GIB, _gpus(each)),
            )
            for each in found
            if not each.is_disabled
        ]
        self._names = {size.id: size.name for size in out}
        return out

    def quota(self) -> Quota:
        """The project's limits, as nova counts them."""
        found = self._ask("ask for the quota", lambda: self._cloud.compute.get_limits().absolute)
        return Quota(
            _level(found.instances_used, found.instances, 1),
            _level(found.total_cores_used, found.total_cores, 1000),
            _level(found.total_ram_used, found.total_ram, MIB),
        )

    def images(self) -> list[Thing]:
        """The images that are active."""
        found = self._ask("list images", lambda: list(self._cloud.image.images(status="active")))
        return [Thing(i.id, i.name or "", (i.min_disk or 0) * GIB, (i.min_ram or 0) * MIB) for i in found]

    def networks(self) -> list[Thing]:
        """The networks."""
        found = self._ask("list networks", lambda: list(self._cloud.network.networks()))
        return [Thing(each.id, each.name or "", outside=bool(each.is_router_external)) for each in found]

    def keys(self) -> list[Thing]:
        """The key pairs of the user."""
        found = self._ask("list key pairs", lambda: list(self._cloud.compute.keypairs()))
        return [Thing(each.name, each.name) for each in found]

    def groups(self) -> list[Thing]:
        """The security groups of the project."""
        found = self._ask("list security groups", lambda: list(self._cloud.network.security_groups()))
        return [Thing(each.id, each.name or "") for each in found]

    # ---- servers ----------------------------------------------------------------------------------------------------

    def create(self, order: Order) -> Server:
        """Ask nova for a server. Owner and tag are in the request, as metadata, and the tag is in its name."""
        asked: dict[str, Any] = {
            "name": f"{order.name}-{order.tag}",
            "flavor_id": order.size,
            "metadata": {OWNER: order.owner, TAG: order.tag, **dict(order.notes)},
            "networks": [{"uuid": each} for each in order.networks] or "auto",
        }
        if order.volume:
            asked["block_device_mapping_v2"] = [
                {
                    "boot_index": 0,
                    "uuid": order.image,
                    "source_type": "image",
                    "destination_type": "volume",
                    "volume_size": -(-order.volume // GIB),
                    "delete_on_termination": True,
                }
            ]
        else:
            asked["image_id"] = order.image
        if order.groups:
            asked["security_groups"] = [{"name": each} for each in order.groups]
        if order.key is not None:
            asked["key_name"] = order.key
        if order.user_data:
            asked["user_data"] = base64.b64encode(order.user_data.encode()).decode()
        if order.zone is not None:
            asked["availability_zone"] = order.zone
        made = self._ask("create a server", lambda: self._cloud.compute.create_server(**asked), ran=True)
        return Server(made.id, asked["name"], order.owner, order.tag, BUILDING, "BUILD", image=order.image)

    def servers(self, owner: str) -> list[Server]:
        """All servers of the project with our metadata. A cell of nova that is down lists ids alone."""
        found = self._ask("list servers", lambda: [self._read(each) for each in self._cloud.compute.servers()])
        return [each for each in found if each.owner == owner or (each.state == UNKNOWN and not each.owner)]

    def server(self, id: str) -> Server | None:
        """One server; nova's 404 is certain."""
        missing = self._sdk.exceptions.NotFoundException

        def look() -> Server | None:
            try:
                return self._read(self._cloud.compute.get_server(id))
            except missing as error:
                if getattr(error, "status_code", None) != 404 or "could not be found" not in str(error):
                    raise
                return None

        found: Server | None = self._ask("look at a server", look)
        return found

    def _read(self, found: Any) -> Server:
        status = (found.status or "").upper()
        state = STATES.get(status, UNKNOWN)
        if found.task_state in ("deleting", "soft-deleting") and state != GONE:
            state = ENDING
        metadata = found.metadata or {}
        fault = found.fault or {}
        return Server(
            found.id,
            found.name or "",
            metadata.get(OWNER, ""),
            metadata.get(TAG, ""),
            state,
            f"{status} ({found.task_state})" if found.task_state else status,
            self._size(found.flavor),
            (found.image.id if found.image is not None else "") or "",
            _addresses(found.addresses or {}),
            str(fault.get("message", "")),
            _seconds(found.created_at),
        )

    def _size(self, flavor: Any) -> str:
        if flavor is None:
            return ""
        return flavor.original_name or flavor.name or self._names.get(flavor.id or "", flavor.id or "")

    def destroy(self, id: str) -> None:
        """Give its address back and delete it; that it is not there any more is well too."""
        self._ask("give an address back", lambda: self._give_back(id))
        self._ask("delete a server", lambda: self._cloud.compute.delete_server(id, ignore_missing=True))

    def console(self, id: str, lines: int = 50) -> str:
        """What nova has of its console."""
        try:
            found = self._ask("read a console", lambda: self._cloud.compute.get_server_console_output(id, lines))
        except RefusedError:
            return ""
        return str((found or {}).get("output") or "")

    # ---- keys and addresses -----------------------------------------------------------------------------------------

    def add_key(self, name: str, public: str) -> None:
        """Make a key pair, or another one in place of one with another key."""
        found = self._ask("look for a key pair", lambda: self._cloud.compute.find_keypair(name, ignore_missing=True))
        if found is not None and _same_key(found.public_key, public):
            return
        if found is not None:
            self.remove_key(name)
        self._ask("make a key pair", lambda: self._cloud.compute.create_keypair(name=name, public_key=public))

    def remove_key(self, name: str) -> None:
        """Delete a key pair."""
        self._ask("delete a key pair", lambda: self._cloud.compute.delete_keypair(name, ignore_missing=True))

    def publish(self, id: str, network: str) -> str:
        """Give its first port a floating address, whose description says for whom it was made."""
        ports = self._ask("look for its ports", lambda: list(self._cloud.network.ports(device_id=id)))
        if not ports:
            raise CloudError(f"{self.name}: the server {id} is in no network yet")
        for ip in self._published(id):
            if ip.port_id == ports[0].id:
                return str(ip.floating_ip_address)
        made = self._ask(
            "make an address",
            lambda: self._cloud.network.create_ip(
                floating_network_id=network, port_id=ports[0].id, description=_published_for(id)
            ),
            ran=True,
        )
        return str(made.floating_ip_address)

    def credentials(self) -> dict[str, str]:
        """Files below a user's home on another host that make it speak to this cloud as we do, under the same name."""
        import json

        found = self._region.config
        kept = ("auth", "auth_type", "region_name", "identity_api_version", "interface", "verify")
        row = {key: found[key] for key in kept if found.get(key) is not None}
        text = json.dumps({"clouds": {self._region.name or "envvars": row}}, default=str, indent=1)
        return {".config/openstack/clouds.yaml": text + "\n"}

    def _published(self, id: str) -> list[Any]:
        words = _published_for(id)
        asked = self._ask("list addresses", lambda: list(self._cloud.network.ips(description=words)))
        return [ip for ip in asked if ip.description == words]

    def _give_back(self, id: str) -> None:
        for ip in self._published(id):
            self._cloud.network.delete_ip(ip, ignore_missing=True)


def _published_for(id: str) -> str:
    return f"rota: of the server {id}"


def _line(error: Exception) -> str:
    """What an error says, on one line, without the address of the request."""
    text = re.sub(r": (Client|Server) Error for url: \S+?(, |$)", ": ", str(error))
    return " ".join(text.split()).strip(" :")[:400] or type(error).__name__


def _level(used: int | None, most: int | None, unit: int) -> Level:
    return Level((used or 0) * unit, None if most is None or most < 0 else most * unit)


def _gpus(flavor: Any) -> int:
    """What a flavor's extra specifications say of gpus: `pci_passthrough:alias = gpu:2`, `resources:VGPU = 1`."""
    count = 0
    for key, value in (flavor.extra_specs or {}).items():
        if key == "pci_passthrough:alias":
            for pair in str(value).split(","):
                name, _, number = pair.strip().rpartition(":")
                if GPU.search(name) and number.isdigit():
                    count += int(number)
        elif key.startswith("resources") and GPU.search(key) and str(value).isdigit():
            count += int(value)
    return count


def _addresses(found: dict[str, Iterable[dict[str, Any]]]) -> tuple[str, ...]:
    """Floating addresses first, then those of the fourth version."""
    rows = [row for rows in found.values() for row in rows if row.get("addr")]
    rows.sort(key=lambda row: (row.get("OS-EXT-IPS:type") != "floating", row.get("version") != 4))
    return tuple(dict.fromkeys(str(row["addr"]) for row in rows))


def _same_key(one: str | None, other: str) -> bool:
    return (one or "").split()[:2] == other.split()[:2]


def _seconds(stamp: str | None) -> float:
    try:
        return datetime.fromisoformat((stamp or "").replace("Z", "+00:00")).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0

"""`rota doctor SITE` of a cloud: credentials, flavors, image, network, key and quota. No server is created."""

import tempfile

from rota.manager.config import SiteConfig
from rota.manager.offline.probing import Say, Verdict
from rota.manager.paths import Paths
from rota.manager.sites.cloud import CloudSite
from rota.manager.sites.doors import TlsDoor
from rota.model.amounts import format_size
from rota.model.errors import RotaError

__all__ = ["probe_cloud"]

SHOWN = 8


async def probe_cloud(name: str, config: SiteConfig, say: Say) -> Verdict:
    """Ask the cloud for all that the configuration names."""
    verdict = Verdict(name, "runners")
    advice = f"[site.{name}] in config.toml; docs/howto/openstack.md has what each key means"
    with tempfile.TemporaryDirectory(prefix="rota-doctor-") as place:
        paths = Paths(place)
        try:
            site = CloudSite(name, config, paths, TlsDoor(paths))
            say("cloud", "ok", site.provider.name, "")
            await site.check()
        except RotaError as error:
            say("cloud", "fail", str(error), advice)
            return verdict
    sizes = list(site.driver.offer.sizes.values())
    for size in sizes[:SHOWN]:
        node, price = site.node_of(size), site.driver.offer.prices.get(size.name)
        costs = f", {price:g} an hour" if price else ""
        say(size.name, "ok", f"{node.cores / 1000:g} cores, {format_size(node.memory)} memory{costs}", "")
    if len(sizes) > SHOWN:
        say("flavors", "ok", f"and {len(sizes) - SHOWN} more", "")
    quota = site.driver.offer.quota
    for what, level, unit in () if quota is None else (
        ("servers", quota.servers, 1), ("cores", quota.cores, 1000), ("memory", quota.memory, 1 << 30)
    ):  # fmt: skip
        most = "no limit" if level.most is None else f"{level.most / unit:g}"
        status = "warn" if level.left == 0 else "ok"
        shown = "GiB memory" if what == "memory" else what
        say(
            "quota", status, f"{level.used / unit:g} of {most} {shown} are used", "nothing is left" * (status == "warn")
        )
    verdict.mode = "runners"
    return verdict

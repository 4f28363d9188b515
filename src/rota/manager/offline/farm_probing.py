"""`rota doctor SITE` of a farm: whether each of its hosts can be reached, has a Python, and what else it has."""

import tempfile

from rota.manager.config import SiteConfig
from rota.manager.offline.probing import Say, Verdict
from rota.manager.paths import Paths
from rota.manager.sites.doors import TlsDoor
from rota.manager.sites.farm import FarmSite
from rota.model.amounts import format_size

__all__ = ["probe_farm"]


async def probe_farm(name: str, config: SiteConfig, say: Say) -> Verdict:
    """Ask every host; the site can be used if one of them answers."""
    verdict = Verdict(name, "runners")
    with tempfile.TemporaryDirectory(prefix="rota-doctor-") as place:
        paths = Paths(place)
        site = FarmSite(name, config, paths, TlsDoor(paths))
        await site.driver.probe()
    for host in site.driver.hosts.values():
        if host.why is not None:
            say(
                host.name,
                "fail",
                host.why,
                f"ssh {host.name} true must work without a password, and find a Python ≥ 3.8",
            )
            continue
        node = site.node_of(host)
        gpus = f", {node.gpus} gpus" if node.gpus else ""
        room = f"{format_size(node.disk)} free in {host.directory}"
        say(host.name, "ok", f"{node.cores / 1000:g} cores, {format_size(node.memory)} memory{gpus}, {room}", "")
        verdict.mode = "runners"
        verdict.host = verdict.host or host.name
        verdict.call_back = verdict.call_back or (host.hardware.caller if host.hardware is not None else None)
    return verdict

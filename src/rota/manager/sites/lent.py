"""Allocations that are lent to a manager (`rota pilot --join`), each a site of its own as long as it lasts.

What is lent is a file in the home: a manager takes it in when it reads its configuration again, or is started.
"""

import logging
import os

import msgspec

from rota.drivers.allocation import HERE
from rota.drivers.lent import LentDriver
from rota.manager.config import Config, SiteConfig
from rota.manager.paths import Paths
from rota.manager.sites.doors import TlsDoor, UnixDoor
from rota.manager.sites.given import GivenSite, Pilot
from rota.model.errors import RotaError
from rota.wire.home import read_own

__all__ = ["LENT", "LentSite", "add_lent", "lent_path"]

log = logging.getLogger("rota")

LENT = "lent"
"""The driver of such a site, and the directory of these files in the home."""


def lent_path(home: str, name: str) -> str:
    """The file that says what is lent."""
    return os.path.join(home, LENT, f"{name}.json")


def add_lent(config: Config, paths: Paths) -> None:
    """Add the allocations that are lent now to the sites of a configuration."""
    try:
        names = sorted(os.listdir(os.path.join(paths.home, LENT)))
    except FileNotFoundError:
        return
    for name in names:
        if name.endswith(".json") and name[:-5] not in config.site:
            config.site[name[:-5]] = SiteConfig(driver=LENT)


class LentSite(GivenSite):
    """One allocation that is somebody else's, of which we may use all nodes."""

    def __init__(self, name: str, config: SiteConfig, paths: Paths, tls: TlsDoor) -> None:
        try:
            pilot = msgspec.json.decode(read_own(lent_path(paths.home, name), 64 << 20), type=Pilot)
        except (OSError, msgspec.MsgspecError) as error:
            raise RotaError(f"{lent_path(paths.home, name)}: {error}") from None
        super().__init__(name, config, paths, tls, pilot)
        near = pilot.given.spread == HERE and pilot.here == os.uname().nodename
        self.door = UnixDoor(paths) if near else tls

    def _make_driver(self) -> LentDriver:
        return LentDriver(self._facts, self._pilot.given, self.directory, "")

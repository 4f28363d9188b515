"""Places where files are: this machine, the hosts of farms, and objects behind an address."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from rota.drivers.descriptors import as_before
from rota.drivers.farm import FarmDriver, Host
from rota.drivers.transport import UnreachableError
from rota.manager.sites.api import Site
from rota.manager.sites.farm import FarmSite
from rota.model.errors import RotaError

__all__ = ["HERE", "S3", "HostPlace", "LocalPlace", "ObjectPlace", "Place", "places_of"]

HERE = "local"
"""What this machine is called, if no site is it."""
S3 = "s3"
FILES_S = 120.0
CHECKSUM_S = 3600.0
PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "runner", "__main__.py")


class Place(Protocol):
    """Where files are: what is asked there, and the commands that send and receive."""

    name: str

    @property
    def why_not(self) -> str | None:
        """Why it cannot be used; None: it can."""
        ...

    @property
    def cache(self) -> str:
        """The directory for what has no path of its own there."""
        ...

    async def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """Ask about files. Raises RotaError if the place does not answer."""
        ...

    async def argv(self, request: dict[str, Any]) -> tuple[str, ...]:
        """The command that sends or receives."""
        ...


class LocalPlace:
    """This machine."""

    def __init__(self, name: str, cache: str) -> None:
        self.name = name
        self.cache = cache
        self.why_not: str | None = None

    async def argv(self, request: dict[str, Any]) -> tuple[str, ...]:
        """The same program as on hosts."""
        return (sys.executable, "-I", "-S", PROGRAM, "--outpost", json.dumps(request))

    async def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """Ask it in a process of its own: a directory may be large, a disk slow."""
        return await run_request(await self.argv({"what": what, **more}))


class ObjectPlace:
    """Objects behind an address: sent and received by a program beside this one, which has the library."""

    name = S3
    cache = ""
    why_not: str | None = None

    async def argv(self, request: dict[str, Any]) -> tuple[str, ...]:
        """The program that speaks S3."""
        return (sys.executable, "-m", "rota.manager.data.objects", json.dumps(request))

    async def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """Ask about objects."""
        return await run_request(await self.argv({"what": what, **more}))


class HostPlace:
    """A host of a farm."""

    def __init__(self, name: str, driver: FarmDriver, host: Host) -> None:
        self.name = name
        self._driver = driver
        self._host = host

    @property
    def why_not(self) -> str | None:
        """Why it cannot be reached."""
        return self._host.why if self._host.directory is None or self._host.why is not None else None

    @property
    def cache(self) -> str:
        """Below the directory of the farm there."""
        return f"{self._host.directory}/cache"

    async def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """Ask the outpost."""
        timeout_s = CHECKSUM_S if what == "checksum" else FILES_S
        return await self._driver.ask(self._host, what, timeout_s, **more)

    async def argv(self, request: dict[str, Any]) -> tuple[str, ...]:
        """By ssh."""
        return await self._host.argv(self._driver.package, request)


async def run_request(argv: tuple[str, ...]) -> dict[str, Any]:
    """Run a request to its end; its answer."""
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=as_before(),
    )
    out, err = await child.communicate()
    try:
        found: dict[str, Any] = json.loads(out.strip().rpartition(b"\n")[2])
        return found
    except ValueError:
        words = err.decode(errors="replace").strip().splitlines()
        raise UnreachableError(words[-1] if words else f"ended with {child.returncode}", ran=True) from None


def places_of(sites: Mapping[str, Site], home: str) -> dict[str, Place]:
    """All places by name: this machine first."""
    here = next((site.name for site in sites.values() if site.config.driver == "local"), HERE)
    out: dict[str, Place] = {here: LocalPlace(here, os.path.join(home, "cache"))}
    for site in sites.values():
        if isinstance(site, FarmSite):
            for host in site.driver.hosts.values():
                out[f"{site.name}/{host.name}"] = HostPlace(f"{site.name}/{host.name}", site.driver, host)
    out[S3] = ObjectPlace()
    return out


def check_answer(found: dict[str, Any]) -> dict[str, Any]:
    """An answer; raises RotaError with its words if it is an error."""
    if "error" in found:
        raise RotaError(str(found.get("words") or found["error"]))
    return found

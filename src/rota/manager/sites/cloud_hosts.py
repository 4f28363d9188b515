"""How the servers of a cloud are reached, what their runners are told, and how their output comes home."""

import asyncio
import contextlib
import os
import posixpath
import subprocess
import tarfile
from typing import IO

from rota.drivers.cloud import Reached
from rota.drivers.cloud_records import Kept
from rota.drivers.farm import Host, HostError, pack
from rota.drivers.script import build_script
from rota.drivers.ssh import SshTransport, shared_directory
from rota.manager.config import SiteConfig
from rota.manager.paths import Paths
from rota.manager.sites.doors import TlsDoor
from rota.manager.sites.installing import runner_digest, runner_files
from rota.manager.sites.reaching import way_here

__all__ = ["Reach", "home_of"]

FETCH_S = 600.0
FETCH_MOST = 1 << 30
"""Bytes of output that are brought home from one server."""


def home_of(directory: str, tag: str) -> str:
    """Where what a server's jobs wrote is kept when it is gone."""
    return os.path.join(directory, "output", tag)


class CloudHost(Host):
    """A server that is reached by ssh."""

    async def put(self, path: str, data: bytes, mode: int) -> None:
        """Put a file there."""
        await self.transport.write(path, data, mode)

    async def run(self, script: str, timeout_s: float) -> tuple[int | None, str]:
        """Run a shell script."""
        answer = await self.transport.run(("sh", "-s"), script, timeout_s)
        return answer.code, answer.words

    async def fetch(self, directory: str, name: str, into: str) -> None:
        """Bring a directory home, as it is."""
        argv = self.transport.argv(("tar", "-C", directory, "-cf", "-", name))
        path = os.path.join(into, "coming.tar")
        with await asyncio.to_thread(_opened, path) as out:
            process = await asyncio.create_subprocess_exec(*argv, stdout=out, stdin=asyncio.subprocess.DEVNULL)
            try:
                code = await asyncio.wait_for(process.wait(), FETCH_S)
            except TimeoutError:
                process.kill()
                raise HostError(f"{self.name}: its output did not arrive in time", self.name) from None
        try:
            if code != 0 or not await asyncio.to_thread(_unpack, path, into):
                raise HostError(f"{self.name}: its output cannot be brought here (tar ended with {code})", self.name)
        finally:
            os.unlink(path)


def _opened(path: str) -> IO[bytes]:
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    return open(path, "wb")


def _unpack(path: str, into: str) -> bool:
    if os.path.getsize(path) > FETCH_MOST:
        return False
    with tarfile.open(path) as tar:
        tar.extractall(into, filter="data")
    return True


class Reach:
    """How the servers of a site are reached, and what their runners are told."""

    def __init__(
        self, name: str, config: SiteConfig, paths: Paths, door: TlsDoor, directory: str, key_file: str | None
    ) -> None:
        self._name = name
        self._config = config
        self._paths = paths
        self._door = door
        self._directory = directory
        self._key_file = key_file
        """What servers are entered with; None: what ssh itself tries."""
        self.package = pack(runner_files(), runner_digest())

    def reach(self, kept: Kept) -> CloudHost:
        """The host of a server. Its key is taken at first sight, and only that one from then on."""
        config = self._config
        target = f"{config.user}@{kept.address}" if config.user else kept.address
        options = ["-o", f"UserKnownHostsFile={os.path.join(self._directory, 'known_hosts')}"]
        options += ["-o", "StrictHostKeyChecking=accept-new", "-o", f"HostKeyAlias=rota-{kept.server}"]
        if self._key_file is not None:
            options += ["-i", self._key_file, "-o", "IdentitiesOnly=yes"]
        shared = shared_directory()
        path = None if shared is None else f"{shared}/{kept.tag}"
        transport = SshTransport(target, options=(*options, *config.ssh_options), control_path=path)
        host = CloudHost(kept.address, transport, config.directory, config.python)
        if kept.directory:
            host.directory = posixpath.dirname(kept.directory)
        return host

    def command(self, kept: Kept, host: Reached, until_s: float | None) -> tuple[str, dict[str, str]]:
        """The script of a runner, and the files that it is to find."""
        assert isinstance(host, CloudHost)
        config, place = self._config, kept.directory
        caller = host.hardware.caller if host.hardware is not None else ""
        way, files = way_here(self._door, self._paths, kept.allocation, place, caller)
        words = [host.program(self.package), "--nonce", "yes", "--id", f"{kept.tag}.0.0"]
        words += ["--output", posixpath.join(place, "0"), "--allocation", kept.allocation, *way]
        for word in ("cores", "memory", "disk", "gpus"):
            words += [f"--{word}", str(getattr(kept.node, word))]
        if until_s is not None:
            words += ["--until-s", str(int(until_s))]
        for word in config.tags:
            words += ["--tag", word]
        words += ["--launcher", "none", "--guard", "yes"]
        title = f"rota: the runner of {self._name} on {kept.size}"
        return build_script(words, title=title, python=config.python, digest=self.package.digest), files

    async def bring_home(self, kept: Kept, host: Reached) -> None:
        """Bring what jobs wrote home before a server is destroyed."""
        if isinstance(host, CloudHost):
            await host.fetch(kept.directory, "0", home_of(self._directory, kept.tag))

    def left(self, kept: Kept) -> None:
        """Close the connection to a server that is gone."""
        shared = shared_directory()
        if shared is not None and os.path.exists(f"{shared}/{kept.tag}"):
            with contextlib.suppress(OSError):
                subprocess.Popen(
                    ["ssh", "-o", f"ControlPath={shared}/{kept.tag}", "-O", "exit", "gone"],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip

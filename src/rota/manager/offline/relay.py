"""A manager that runs as a job of a batch system, and hands over to a successor before its time is up.

`relay.json` in the home says which job may serve, and which comes next; without it none may. The lock of the home is
what keeps two from serving at once: the successor waits for it, and lets its predecessor know that it is there
(`relay.arrived`), so that it stops only then, or when its own time is nearly up.
"""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shlex
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from rota.drivers.api import Ask, Driver
from rota.drivers.command import CommandDriver
from rota.drivers.dialects import load_dialect
from rota.manager.config import SiteConfig, find_batch_site, load_config
from rota.manager.lock import AlreadyRunningError, Lock
from rota.manager.paths import Paths, prepare
from rota.manager.sites.api import Site
from rota.manager.sites.batch import make_transport, options_of
from rota.model.errors import RefusedError, RotaError, UsageError
from rota.model.needs import Amounts
from rota.model.site import SiteFacts
from rota.wire.client import Connection, NoManagerError
from rota.wire.home import write_private

if TYPE_CHECKING:
    from rota.manager.service import Manager

__all__ = ["Relay", "cancel", "forbid_other", "launch", "take_lock"]

log = logging.getLogger("rota")

MEMORY = 1 << 30
TIME_S = 24 * 3600
HAND_OVER_MOST_S = 3600
RETRY_S = 30.0
LOOK_S = 1.0
MARGIN_S = 30.0
"""How long before its end a manager stops, whether its successor is there or not."""
LIVE = ("pending", "held", "running", "suspended", "unsure")


def read(paths: Paths) -> dict[str, Any]:
    """The record in `relay.json`; {}: the manager of this home is no cluster job."""
    try:
        with open(paths.relay, "rb") as file:
            record = json.load(file)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _write(paths: Paths, record: dict[str, Any]) -> None:
    write_private(paths.relay, json.dumps(record).encode() + b"\n")


def _forget(paths: Paths) -> None:
    for name in (paths.relay, paths.relay_arrived):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def forbid_other(paths: Paths) -> None:
    """Refuse to start a manager here while one is to run as a cluster job."""
    record = read(paths)
    if record:
        job = f"job {native}" if (native := record["current"].get("native_id")) else "a job"
        raise RefusedError(
            f"the manager of {paths.home} is {job} of the site {record['site']}, which does not serve (yet): wait for "
            f"it, see that there is one with `rota up --on {record['site']}`, or give that up with `rota down`"
        )


# ---- submitting ------------------------------------------------------------------------------------------------------


def make_driver(name: str, site: SiteConfig) -> CommandDriver:
    """A driver for the manager jobs of a site."""
    facts = SiteFacts(Amounts(), (), 1, 0.0)
    return CommandDriver(name, load_dialect(site.driver), make_transport(site), facts, options_of(site))


def _script(paths: Paths, tag: str, time_s: int) -> str:
    words = [sys.executable, "-m", "rota.manager", "--home", paths.home, "--relay", tag, "--until-s", str(time_s)]
    lines = ["#!/bin/sh", f"# rota: the manager of {paths.home}"]
    if path := os.environ.get("PYTHONPATH"):
        absolute = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))
        lines.append(f"PYTHONPATH={shlex.quote(absolute)}; export PYTHONPATH")
    lines += ["umask 077", f"exec {shlex.join(words)} </dev/null >>{shlex.quote(paths.log)} 2>&1"]
    return "\n".join(lines) + "\n"


async def _submit(driver: Driver, site: SiteConfig, paths: Paths, record: dict[str, Any], tag: str) -> str:
    """Submit a manager job; its native id."""
    directory = os.path.join(site.directory or os.path.join(paths.home, "sites", record["site"]), tag)
    script = _script(paths, tag, record["time_s"])
    await make_transport(site).write(os.path.join(directory, "script.sh"), script.encode())
    ask = Ask(tag, "rota-manager", (tag,), Amounts(1000, MEMORY), script, directory, time_s=record["time_s"])
    (native,) = await driver.submit(ask)
    return native


async def _live(driver: CommandDriver, site: SiteConfig, record: dict[str, Any]) -> list[str] | None:
    """The native ids of our manager jobs that are not over; None: the batch system does not say.

    Where a listing cuts names (OpenPBS), they are known by their ids.
    """
    tags, natives = _tags(record), {each.get("native_id") for each in (record["current"], record["next"]) if each}
    await driver.start()
    answer = await driver.ask(driver.dialect.listing(driver.user))
    if answer.code is None:
        return None
    listing = driver.dialect.read_listing(answer, options_of(site))
    mine = [seen for seen in listing.seen if seen.tag in tags or (seen.tag is None and seen.native_id in natives)]
    found = [seen.native_id for seen in mine if seen.kind in LIVE]
    return found if found or listing.result == "ok" else None


async def _time(driver: CommandDriver, site: SiteConfig, wanted: int | None) -> int:
    """Seconds to ask for: those wanted, or a day, or what the queue gives if that is less."""
    if wanted is not None:
        return wanted
    longest = site.seconds("longest")
    command = driver.dialect.queues()
    if longest is None and command is not None:
        await driver.start()
        queues = driver.dialect.read_queues(await driver.ask(command))
        mine = [q for q in queues if (q.name == site.partition if site.partition else q.is_default)]
        longest = min((q.time_s for q in mine if q.time_s is not None), default=None)
    return min(TIME_S, longest or TIME_S)


def launch(home: str | None, name: str, time_s: int | None, hand_over_s: int | None, wait_s: float) -> dict[str, Any]:
    """Submit the first manager job of a home, unless one is there, and wait until it serves or the time is up."""
    return asyncio.run(_launch(home, name, time_s, hand_over_s, wait_s))


async def _launch(
    home: str | None, name: str, time_s: int | None, hand_over_s: int | None, wait_s: float
) -> dict[str, Any]:
    paths = Paths(home)
    site = _site(paths, name)
    prepare(home)
    driver = make_driver(name, site)
    record = read(paths)
    submitted = False
    if record and record["site"] != name:
        raise RefusedError(f"the manager of {paths.home} is a job of the site {record['site']}; first: rota down")
    if not record or await _live(driver, site, record) == []:
        time_s = await _time(driver, site, time_s)
        hand_over_s = min(HAND_OVER_MOST_S, time_s // 4) if hand_over_s is None else hand_over_s
        if not 0 < hand_over_s < time_s:
            raise UsageError(f"it cannot hand over {hand_over_s} s before the end of {time_s} s")
        tag = secrets.token_hex(6)
        record = {"site": name, "time_s": time_s, "hand_over_s": hand_over_s, "current": {"tag": tag}, "next": None}
        _write(paths, record)
        try:
            native = await _submit(driver, site, paths, record, tag)
        except BaseException:
            _forget(paths)
            raise
        submitted = True
        record["current"]["native_id"] = native
        if (now := read(paths)) and now["current"]["tag"] == tag:
            _write(paths, now | {"current": record["current"]})
    await driver.close()
    answer = {"site": name, "native_id": record["current"].get("native_id"), "submitted": submitted}
    return answer | {"serving": await _until_it_serves(paths, site, driver, record, wait_s)}


async def _until_it_serves(
    paths: Paths, site: SiteConfig, driver: CommandDriver, record: dict[str, Any], wait_s: float
) -> bool:
    deadline = time.monotonic() + wait_s
    looked, absent = time.monotonic(), 0
    while time.monotonic() < deadline:
        if await asyncio.to_thread(_answers, paths.home):
            return True
        if absent >= 2:  # one that was just submitted, or hands over, may be missing once
            _forget(paths)
            raise RotaError(
                f"site {driver.site}: job {record['current'].get('native_id')} is over, and no manager serves: see "
                f"{paths.log} and {paths.home}/sites; do nodes share {paths.home} and this Python ({sys.executable})?"
            )
        if time.monotonic() - looked > 3 * LOOK_S:
            looked = time.monotonic()
            absent = absent + 1 if await _live(driver, site, read(paths) or record) == [] else 0
        await asyncio.sleep(LOOK_S / 2)
    return False


def _answers(home: str) -> bool:
    try:
        with Connection.connect(home, 5.0) as connection:
            return bool(connection.ask("ping"))
    except (NoManagerError, RotaError):
        return False


def _tags(record: dict[str, Any]) -> set[str]:
    return {each["tag"] for each in (record["current"], record["next"]) if each}


def _site(paths: Paths, name: str) -> SiteConfig:
    return find_batch_site(load_config(paths.home), paths.config, name, "`rota up` starts the manager here")


def cancel(home: str | None) -> dict[str, Any] | None:
    """Give up a manager job that is queued or has vanished, so that none starts any more. None: there is none."""
    paths = Paths(home)
    record = read(paths)
    if not record:
        return None
    _forget(paths)  # first: one that starts from now on ends by itself
    ended = asyncio.run(_kill(paths, record))
    return {"site": record["site"], "native_id": record["current"].get("native_id"), "stopped": ended}


async def _kill(paths: Paths, record: dict[str, Any]) -> bool:
    site = _site(paths, record["site"])
    driver = make_driver(record["site"], site)
    for force in (0, 1, 1, 2):
        live = await _live(driver, site, record)
        if live == []:
            return True
        if live:
            await driver.ask(driver.dialect.kill(live, force))
        await asyncio.sleep(2 * LOOK_S)
    return await _live(driver, site, record) == []


# ---- in the manager --------------------------------------------------------------------------------------------------


def take_lock(paths: Paths, tag: str, until_s: float) -> Lock | None:
    """Wait for the lock of the home. None: this job is not wanted any more, or its time was nearly up."""
    deadline = time.monotonic() + until_s - MARGIN_S
    while tag in _tags(record) if (record := read(paths)) else False:
        try:
            lock = Lock(paths)
        except AlreadyRunningError as error:
            write_private(paths.relay_arrived, tag.encode())
            if time.monotonic() > deadline:
                log.error("my time is nearly up, and still: %s", error)
                return None
            time.sleep(LOOK_S)
            continue
        if tag not in _tags(read(paths) or {"current": None, "next": None}):  # taken down meanwhile
            lock.release()
            return None
        return lock
    return None


class Relay:
    """A manager that is one of a line of cluster jobs."""

    def __init__(self, paths: Paths, tag: str, until_s: float, began: float) -> None:
        self._paths = paths
        self._tag = tag
        self._end = began + until_s
        record = read(paths)
        candidates = [record["current"], record["next"]] if record else []
        mine = next((each for each in candidates if each and each["tag"] == tag), None)
        if mine is None:
            raise RefusedError(f"{paths.relay} no longer names this job: it is not wanted as a manager")
        self.record = record | {"current": mine, "next": None}
        self._over = False
        self._keep()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(paths.relay_arrived)
        self._now = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._now.set)

    @property
    def site(self) -> str:
        """The site where this manager is a job."""
        return str(self.record["site"])

    async def run(self, manager: "Manager", site: Site) -> None:
        """Submit the successor in time, and stop the manager once that has arrived."""
        left = self._end - self.record["hand_over_s"] - time.monotonic()
        with contextlib.suppress(TimeoutError):  # USR1: the batch system says that the end is near
            await asyncio.wait_for(self._now.wait(), max(0.0, left))
        margin = min(MARGIN_S, self.record["hand_over_s"] / 4)
        while time.monotonic() < self._end - margin and not manager.stopping:
            try:
                await self._name_successor(site)
                break
            except RotaError as error:
                log.error("no successor could be submitted (next try in %g s): %s", RETRY_S, error)
                site.note(f"the next manager could not be submitted: {error}")
                await asyncio.sleep(RETRY_S)
        while time.monotonic() < self._end - margin and not self._has_arrived():  # noqa: ASYNC110  a file tells
            await asyncio.sleep(LOOK_S)
        log.info("handing over to %s", self.record["next"] or "nobody: no successor could be submitted")
        manager.stop(kill=False)

    async def _name_successor(self, site: Site) -> None:
        tag = secrets.token_hex(6)
        self.record["next"] = {"tag": tag}
        self._keep()
        try:
            self.record["next"]["native_id"] = await _submit(site.driver, site.config, self._paths, self.record, tag)
        except RotaError:
            self.record["next"] = None
            self._keep()
            raise
        self._keep()
        log.info("the successor is job %s", self.record["next"]["native_id"])

    def _keep(self) -> None:
        if not self._over:
            _write(self._paths, self.record)

    def _has_arrived(self) -> bool:
        wanted = self.record["next"]
        try:
            with open(self._paths.relay_arrived) as file:
                return bool(wanted) and file.read().strip() == wanted["tag"]
        except OSError:
            return False

    async def finish(self, manager: "Manager") -> None:
        """The manager has ended. If it was told to, the line ends here: a successor is called back."""
        self._over = True
        if not manager.taken_down:
            return
        _forget(self._paths)
        if self.record["next"]:
            try:
                await _kill(self._paths, self.record | {"current": self.record["next"]})
            except RotaError as error:
                log.error("the successor could not be called back, and will end when it starts: %s", error)

"""The manager process: `python -m rota.manager --home DIR`. People start it with `rota up`."""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time

from rota.core.state import Settings
from rota.drivers.allocation import HERE
from rota.drivers.descriptors import raise_limit
from rota.manager import logs
from rota.manager.config import BrokerConfig, Config, SiteConfig, is_cloud, load_config
from rota.manager.daemon import say_failed, say_ready
from rota.manager.filesystem import warning_for
from rota.manager.housekeeping import HousekeepingSettings
from rota.manager.lock import REFRESH_S, Lock, announce
from rota.manager.offline.deployed import forbid_deployed
from rota.manager.offline.relay import Relay, forbid_other, take_lock
from rota.manager.paths import Paths, prepare
from rota.manager.reloading import Reloader
from rota.manager.service import Manager
from rota.manager.sites.api import Site
from rota.manager.sites.batch import BatchSite
from rota.manager.sites.doors import TlsDoor
from rota.manager.sites.farm import FarmSite, check_hosts
from rota.manager.sites.given import DRIVER, PILOT, GivenSite, Pilot, read_pilot
from rota.manager.sites.lent import LENT, LentSite, add_lent
from rota.manager.sites.local import LocalSite
from rota.model.errors import RefusedError, RotaError, UsageError
from rota.plugins import load_plugins, watched
from rota.schedule.broker.shares import share_tree
from rota.store.sqlite import SqliteStore
from rota.wire.client import read_notice
from rota.wire.home import CLIENT
from rota.wire.server import Limits, Server

log = logging.getLogger("rota")

ONCE_S = 30.0
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""What batch systems send before an allocation ends."""
COLLECTED = (10_000, 20, 20)
"""How often cycles are looked for. What a manager makes it drops at once or keeps, and next to nothing is a cycle."""
RESERVED = 256
"""Descriptors that are kept for the store, for commands of batch systems, and for the user's own clients."""


def settings_of(config: Config) -> Settings:
    """The settings of the core, from the configuration."""
    return Settings(
        touch_s=config.seconds("touch"),
        missing_s=config.seconds("missing_after"),
        start_by_s=min(config.seconds("start_by"), config.seconds("missing_after") * 0.75),
        rerun_s=config.seconds("rerun_after"),
        losses=config.losses,
        backoff_first_s=config.seconds("backoff_first"),
        backoff_most_s=config.seconds("backoff_most"),
        backoff_jitter_s=config.seconds("backoff_jitter"),
        backfill_after_s=config.backfill_after_s,
        rebroker_s=config.rebroker_after_s,
        shares=share_tree(config.shares),
        thresholds={name: float(value) for name, value in config.broker.thresholds.items()},
        policies=config.policies(),
    )


def make_site(name: str, site: SiteConfig, paths: Paths, tls: TlsDoor, pilot: Pilot | None = None) -> Site:
    """A site, of the kind that the configuration names by its driver; of a pilot, its allocation."""
    if pilot is not None:
        return GivenSite(name, site, paths, tls, pilot)
    if site.driver == "local":
        return LocalSite(name, site, paths, tls)
    if site.driver == LENT:
        return LentSite(name, site, paths, tls)
    try:
        if site.driver == "ssh":
            return FarmSite(name, site, paths, tls)
        if is_cloud(site.driver):
            from rota.manager.sites.cloud import CloudSite

            return CloudSite(name, site, paths, tls)
        return BatchSite(name, site, paths, tls.at(site.directory))
    except UsageError as error:
        raise UsageError(f"{paths.config}: [site.{name}] {error}") from None
    except OSError as error:
        where = site.directory or paths.home
        raise UsageError(
            f"{paths.config}: [site.{name}] its directory {where} cannot be used: {error}: set `directory` to one that "
            "you can write and that the nodes see too"
        ) from None


async def serve(paths: Paths, lock: Lock, args: argparse.Namespace) -> int:
    """Load the queue, listen, and run the manager until it is told to stop; the exit status."""
    config = load_config(paths.home)
    check_hosts(config, paths.config)
    relay = Relay(paths, args.relay, args.until_s, args.began) if args.relay else None
    pilot = read_pilot(paths) if args.pilot else None
    if relay is not None:
        _leave_here_alone(config)
    if pilot is not None:
        _only_the_allocation(config, pilot)
    else:
        add_lent(config, paths)
    tls = TlsDoor(paths)
    sites = {name: make_site(name, site, paths, tls, pilot) for name, site in config.site.items()}
    for plugin in load_plugins():
        if plugin.problem is not None:
            log.warning("the %s %s of %s is left out: %s", plugin.kind, plugin.name, plugin.source, plugin.problem)
    warning = warning_for(paths.home)
    if warning:
        log.warning("%s", warning)
    store = SqliteStore(paths.database, exclusive=warning is not None, keep_entries=config.keep_entries)
    manager = Manager(
        store,
        settings_of(config),
        sites,
        home=paths.home,
        embedded=args.embedded,
        pilot=pilot is not None,
        housekeeping=HousekeepingSettings(
            config.seconds("backup_every") if config.backup_every is not None else None,
            config.backup_keep,
            config.seconds("keep_settled") if config.keep_settled is not None else None,
        ),
    )
    manager.writer.apart = warning is not None
    server = Server(manager.inbound, Limits(peers=max(64, raise_limit() - RESERVED)))
    await server.listen_unix(paths.home)
    address, port = await _listen_tls(server, manager, paths, config)
    announce(lock, address=address, port=port)
    tls.listens(None if port is None else f"{address}:{port}")

    def load() -> Config:
        found = load_config(paths.home)
        check_hosts(found, paths.config)
        if relay is not None:
            _leave_here_alone(found)
        if pilot is not None:
            _only_the_allocation(found, pilot)
        else:
            add_lent(found, paths)
        return found

    async def listen(found: Config) -> None:
        """Listen for the first site whose runners come from elsewhere."""
        if tls.address is None:
            address, port = await _listen_tls(server, manager, paths, found)
            if port is not None:
                announce(lock, address=address, port=port)
                tls.listens(f"{address}:{port}")

    def make(name: str, site: SiteConfig) -> Site:
        return make_site(name, site, paths, tls, pilot)

    manager.reloader = Reloader(manager, paths.config, config, load, make, listen)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, *(WARNINGS if pilot is not None else ())):
        loop.add_signal_handler(number, manager.stop, pilot is not None)
    if pilot is not None and pilot.stop_at is not None:
        loop.call_later(max(0.0, pilot.stop_at - time.time()), manager.stop, True)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    manager.start()
    if config.broker != BrokerConfig():
        manager.reloader.tell_broker()
    refreshing = loop.create_task(_refresh(lock, manager))
    if args.ready_fd is not None:
        say_ready(args.ready_fd)
    log.info("serving %s (pid %d)", paths.home, os.getpid())
    if args.once:
        loop.create_task(_once(manager))  # noqa: RUF006
    if relay is not None:
        loop.create_task(relay.run(manager, sites[relay.site]))  # noqa: RUF006
    with watched():
        code = await manager.stopped
    refreshing.cancel()
    if relay is not None:
        await relay.finish(manager)
    await server.close()
    with contextlib.suppress(OSError):
        os.unlink(paths.pid)
    log.info("ended with %d", code)
    return code


def _leave_here_alone(config: Config) -> None:
    """Change the configuration for a manager in a cluster job: tomorrow it is on another machine.

    So no jobs run on this one, and clients come by TLS.
    """
    for name in [name for name, site in config.site.items() if site.driver == "local"]:
        log.info("the site %s is left out: this manager is a cluster job", name)
        del config.site[name]
    config.listen = config.listen or ":0"


def _only_the_allocation(config: Config, pilot: Pilot) -> None:
    """Change the configuration for a manager inside an allocation: there is no site but that."""
    config.site = {PILOT: SiteConfig(driver=DRIVER)}
    if pilot.given.spread != HERE:
        config.listen = config.listen or ":0"


async def _listen_tls(server: Server, manager: Manager, paths: Paths, config: Config) -> tuple[str | None, int | None]:
    listen = config.listen
    if listen is None and any(
        site.driver not in ("local", DRIVER) and site.mode == "runners" for site in config.site.values()
    ):
        listen = ":0"  # their runners call back
    if listen is None:
        return None, None
    from rota.wire.certificates import publish_ca, server_identity, withdraw_keys

    bind, _, port = listen.rpartition(":")
    if not port.isdigit():
        raise UsageError(f"{paths.config}: listen '{listen}': write host:port, or :0 for any address and port")
    withdraw_keys(paths.private, paths.tls)
    identity = server_identity(paths.private)
    publish_ca(paths.private, paths.tls)
    with contextlib.suppress(FileNotFoundError):  # where earlier releases kept it, for nodes to see
        os.unlink(os.path.join(paths.tokens, CLIENT))
    manager.tokens.prepare()
    number = None
    if port == "0" and (last := read_notice(paths.home).get("port")):
        with contextlib.suppress(RotaError):  # runners of our last life look for us there
            number = await server.listen_tls(identity, bind or None, int(last))
    if number is None:
        number = await server.listen_tls(identity, bind or None, int(port))
    return bind or socket.gethostname(), number


async def _refresh(lock: Lock, manager: Manager) -> None:
    """Keep the lock ours; if another host took it while we slept, stop before anything is written twice."""
    while True:
        await asyncio.sleep(REFRESH_S)
        if not lock.refresh():
            manager.lost_home()
            return


async def _once(manager: Manager) -> None:
    """Do what is due, then stop (for cron): wait for runners to come back and for work to be handed out."""
    deadline = asyncio.get_running_loop().time() + ONCE_S
    quiet = 0
    while asyncio.get_running_loop().time() < deadline and quiet < 5:
        seq = manager.state.seq
        await asyncio.sleep(0.2)
        expected = [
            a for a in manager.state.allocations.values() if a.state in ("WAITING", "SUBMITTING", "PENDING", "RUNNING")
        ]
        there = {r.allocation for r in manager.state.runners.values() if manager.state.soft.contacts[r.id].connected}
        asked = all(manager.state.soft.sites[name].most for name in manager.sites)
        idle = asked and manager.state.seq == seq and all(a.id in there for a in expected)
        quiet = quiet + 1 if idle else 0
    manager.stop(kill=False)


def main() -> int:
    """Parse the arguments, take the lock of the home, serve; the exit status."""
    parser = argparse.ArgumentParser(prog="rota.manager", description=__doc__)
    parser.add_argument("--home", default=None)
    parser.add_argument("--ready-fd", type=int, default=None)
    parser.add_argument("--embedded", action="store_true", help="end when nobody is connected and nothing runs")
    parser.add_argument("--once", action="store_true", help="do what is due, then end")
    parser.add_argument("--pilot", action="store_true", help="inside the allocation of pilot.json, and for it alone")
    parser.add_argument("--relay", metavar="TAG", help="this is a cluster job of `rota up --on SITE`")
    parser.add_argument("--until-s", type=float, default=0.0, help="of --relay: seconds until its time limit")
    args = parser.parse_args()
    args.began = time.monotonic()
    gc.set_threshold(*COLLECTED)
    if args.relay or args.pilot:
        for number in WARNINGS if args.pilot else WARNINGS[:1]:
            signal.signal(number, signal.SIG_IGN)  # until it can be taken for what it is
    logs.set_up(Paths(args.home).log)
    os.umask(0o077)
    try:
        paths = prepare(args.home)
        if args.relay:
            taken = take_lock(paths, args.relay, args.until_s)
            if taken is None:
                log.info("this job is not wanted as a manager any more")
                return 0
        else:
            forbid_other(paths)
            forbid_deployed(paths)
            if not args.pilot and os.path.exists(paths.pilot):
                raise RefusedError(
                    f"{paths.home} is the home of a pilot, whose jobs are for an allocation: go on there with "
                    f"`rota pilot --resume --home {paths.home}`"
                )
            taken = Lock(paths)
        with taken as lock:
            forbid_deployed(paths)  # again: it may have gone away just before the lock was ours
            return asyncio.run(serve(paths, lock, args))
    except (RotaError, OSError) as error:
        log.error("%s", error)
        if args.ready_fd is not None:
            say_failed(args.ready_fd, error)
        else:
            print(f"rota: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())

"""The configuration, read again while the manager runs: sites are added, changed and removed; jobs go on."""

import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from rota.core import effects as ef
from rota.core.stimuli import FactSeen
from rota.manager.brokering import broker_facts
from rota.manager.config import Config, SiteConfig
from rota.manager.inbound import now
from rota.manager.observing import site_seen
from rota.manager.sites.api import Site
from rota.model.amounts import format_duration
from rota.model.errors import RefusedError

if TYPE_CHECKING:
    from rota.manager.service import Manager

__all__ = ["Reloader"]

AT_ONCE = ("site", "broker")
"""What is taken over without a restart."""
FIXED = ("driver", "mode", "directory")
"""What cannot change under an allocation: where and how its files are, and who is asked about it."""
LEAVES = "it is not in config.toml any more: it takes no more allocations, and goes when those that it has are over"


class Reloader:
    """Knows which configuration the manager has, and makes it have that of the file."""

    def __init__(
        self,
        manager: "Manager",
        path: str,
        config: Config,
        load: Callable[[], Config],
        make: Callable[[str, SiteConfig], Site],
        listen: Callable[[Config], Awaitable[None]],
    ) -> None:
        self._manager = manager
        self._path = path
        self._config = config
        self._load = load
        self._make = make
        self._listen = listen
        self._read = _stamp(path)
        self._leaving: set[str] = set()
        """Sites that are in the file no more, and have allocations."""
        self._facts: dict[tuple[str, str], Any] = {}
        """What the core was told of the brokerage."""

    @property
    def changed(self) -> str | None:
        """That the file is not what was read, and what to do; None: it is."""
        now = _stamp(self._path)
        if now == self._read:
            return None
        if now is None:
            return f"{self._path} is gone since it was read: rota reload takes the defaults"
        age = format_duration(max(0, round(time.time() - now[0] / 1e9)))
        return f"{self._path} was changed {age} ago, after it was read: rota reload takes the change over"

    async def reload(self) -> dict[str, Any]:
        """Read the file, and add, change and remove sites; what else differs waits for a restart.

        An error in it changes nothing.
        """
        stamp, config = _stamp(self._path), self._load()
        old, new = self._config.site, config.site
        added = [name for name in new if name not in old or name in self._leaving]
        sites = self._manager.sites
        changed = [
            name
            for name in new
            if name in old and name not in added and (new[name] != old[name] or sites[name].is_other(new[name]))
        ]
        removed = [name for name in old if name not in new]
        for name in [*changed, *added]:
            self._check(name, old.get(name), new[name])
        facts = broker_facts(config.broker, os.path.dirname(self._path))
        made = {name: self._make(name, new[name]) for name in [*added, *changed]}
        await self._listen(config)
        for site in made.values():
            self._enter(site)
        for name in removed:
            self._leaving.add(name)
            site = self._manager.sites[name]
            site.note(LEAVES)
            self._manager.observer.drop(name)
            self._manager.tell(site_seen(name, replace(site.facts(), most=0)))
        restart = sorted(
            key for key, value in asdict(config).items() if key not in AT_ONCE and value != asdict(self._config)[key]
        )
        news = facts != self._facts and (config.broker != self._config.broker or config.broker.queues is not None)
        self._config, self._read = config, stamp
        if news:
            self.tell_broker(facts)
        self.look()
        return {"added": added, "changed": changed, "removed": removed, "restart": restart, "broker": news}

    def tell_broker(self, facts: dict[tuple[str, str], Any] | None = None) -> None:
        """Tell the core what the configuration says of the brokerage, as far as that is news."""
        if facts is None:
            facts = broker_facts(self._config.broker, os.path.dirname(self._path))
        for name, key in {**self._facts, **facts}:
            value = facts.get((name, key))
            if value != self._facts.get((name, key)):
                self._manager.tell(FactSeen(at=now(), name=name, key=key, value=value))
        self._facts = facts

    def look(self) -> None:
        """Let sites go that are in the file no more, once all their allocations are over."""
        for name in [name for name in self._leaving if not self._live(name)]:
            self._leaving.discard(name)
            del self._manager.sites[name]
            self._manager.tell(site_seen(name, None))

    def _live(self, name: str) -> int:
        rows = self._manager.state.allocations.values()
        return sum(row.site == name and row.state.endswith("ING") for row in rows)

    def _check(self, name: str, old: SiteConfig | None, new: SiteConfig) -> None:
        fixed = [key for key in FIXED if old is not None and getattr(old, key) != getattr(new, key)]
        if fixed and (live := self._live(name)):
            raise RefusedError(
                f"{self._path}: [site.{name}] {', '.join(fixed)} cannot change while {live} of its allocations are "
                "not over: reload when they are (rota allocations --live), or give the site another name"
            )

    def _enter(self, site: Site) -> None:
        """Take a site in, perhaps instead of an earlier one of its name."""
        manager, name = self._manager, site.name
        if name in manager.sites:
            site.take_over(manager.sites[name])
        self._leaving.discard(name)
        manager.sites[name] = site
        manager.book.set_up_site(name, site.config.setup)
        manager.book.tell(name, site.env_style, site.env)
        manager.tell(manager.observer.enter(site))
        for row in manager.state.allocations.values():
            if row.site == name and row.state == "KILLING":  # who was asked to end it is gone
                manager.observer.allocate(manager.state, ef.Allocate("terminate", row.id, name, row.tag))


def _stamp(path: str) -> tuple[int, int, int] | None:
    """By what a change of a file is known; None: there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

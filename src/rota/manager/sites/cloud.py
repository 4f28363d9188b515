"""A cloud: servers that are created for allocations, and destroyed when they have nothing to do."""

import asyncio
import os
import posixpath
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import random
from typing import Any

from msgspec.structs import asdict, replace

from rota.drivers.api import Ask, Known
from rota.drivers.cloud import CloudDriver
from rota.drivers.cloud_records import CloudSettings, Kept, Records
from rota.drivers.gate import Health, Times
from rota.drivers.provider import CloudError, Provider, Size, Thing, load_provider
from rota.manager.config import SiteConfig
from rota.manager.paths import Paths
from rota.manager.sites.api import UNSENT, Site
from rota.manager.sites.cloud_hosts import Reach, home_of
from rota.manager.sites.doors import TlsDoor
from rota.manager.sites.queues import UNKNOWN, queue_row
from rota.model.allocation import Allocation, Waiting
from rota.model.amounts import format_duration, parse_size
from rota.model.errors import RotaError, UsageError
from rota.model.needs import Amounts, named_resources
from rota.model.site import QueueFacts, SiteFacts
from rota.wire.files import BadFileError, Left, decode_left, read_bounded
from rota.wire.home import write_private

__all__ = ["CloudSite"]

MOST = 1000
THREADS = 8
LEARN_S = 60.0
"""How often the quota is asked for."""
LEARN_SOON_S = 15.0
"""How often, while something is closed or asked for."""
CATALOGUE_S = 1800.0
"""How often sizes are asked for."""
HOUR_S = 3600
SHOWN = 12
"""How many names an error tells."""


class CloudSite(Site):
    """Servers on demand. Each flavor is a queue of the site; an allocation is a server, its runner has all of it."""

    driver: CloudDriver
    answers_at_once = False
    verb_of_submitted = "pend"

    def __init__(
        self, name: str, config: SiteConfig, paths: Paths, tls: TlsDoor, provider: Provider | None = None
    ) -> None:
        self.name = name
        self.config = config
        self.door = tls
        self.directory = os.path.join(paths.home, "sites", name)
        os.makedirs(self.directory, 0o700, exist_ok=True)
        if provider is None:
            given = {key: str(value) for key, value in config.options.items()}
            provider = load_provider(config.driver, config.cloud, given)
        self.provider = provider
        self.key_file = os.path.expanduser(config.key_file) if config.key_file else None
        """What servers are entered with; None: what ssh itself tries."""
        if config.key is None and self.key_file is None:
            self.key_file = os.path.join(self.directory, "key")  # known from the start: servers may be there already
        self._patterns = [_pattern(word) for word in _listed(config.flavors)]
        self._sets = [[_pattern(word) for word in each] for each in config.flavor_sets]
        self._notes: list[str] = []
        self._why: str | None = "it was not asked yet"
        self._why_since = time.time()
        self._learned_at = -CATALOGUE_S
        self._pool = ThreadPoolExecutor(THREADS, "rota-cloud")
        if config.max_cost_per_day is not None and not (config.prices or config.cost):
            words = 'prices = {"FLAVOR" = MONEY_PER_HOUR}, or cost = MONEY_PER_CORE_AND_HOUR'
            raise UsageError(f"max_cost_per_day: nothing says what servers cost: give {words}")
        settings = CloudSettings(
            _owner(self.directory),
            f"rota-{re.sub('[^a-z0-9-]', '-', name.lower())}",
            groups=tuple(config.security_groups),
            user_data=_read(config.user_data, "user_data"),
            volume=parse_size(config.volume) if config.volume is not None else 0,
            zone=config.zone,
            spawns_most=config.spawns,
            spawn_delay_s=float(config.seconds("spawn_delay") or 0),
            boot_s=float(config.seconds("boot_within") or 900),
            poll_s=float(config.seconds("poll") or 30),
            poll_busy_s=float(config.seconds("poll_least") or 2),
            servers_most=config.max_servers,
            cores_most=None if config.max_cores is None else config.max_cores * 1000,
            money_most=config.max_cost_per_day,
            files=tuple(_copied(config.files)),
            start_script=_read(config.start_script, "start_script"),
            end_script=_read(config.end_script, "end_script"),
        )
        self.driver = CloudDriver(
            provider,
            Reach(name, config, paths, tls, self.directory, self.key_file),
            Records(self.directory),
            settings,
            self.facts,
            Times(time.monotonic, time.time, asyncio.sleep, random, self._aside),
        )
        self.driver.learned = False

    async def _aside(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    @property
    def learn_again_s(self) -> float:  # type: ignore[override]
        """Sooner while a size is closed or a server comes."""
        busy = any(not kept.up or kept.verb for kept in self.driver.records.live())
        shut = any(self.driver.offer.why_closed(name) for name in self.driver.offer.sizes)
        return LEARN_SOON_S if busy or shut else LEARN_S

    def watch(self, wake: Callable[[], None]) -> None:
        """Poll as soon as a runner was started."""
        self.driver.wake = wake

    def take_over(self, earlier: Site) -> None:
        """Keep what the cloud has said; what goes on there is begun again."""
        if isinstance(earlier, CloudSite):
            old, new = earlier.driver, self.driver
            new.unsent, new.last, new.suspects = old.unsent, old.last, old.suspects
            old.retire()

    # ---- what it offers ---------------------------------------------------------------------------------------------

    def facts(self) -> SiteFacts:
        """The flavors, cheapest first, and what may be had of all of them."""
        config, driver = self.config, self.driver
        queues = tuple(self._queue(size) for size in driver.offer.sizes.values())
        nodes = [queue.node for queue in queues] or [UNKNOWN]
        largest = Amounts(*(max(getattr(node, word) for node in nodes) for word in ("cores", "memory", "disk", "gpus")))
        money = config.max_cost_per_day is not None
        return SiteFacts(
            largest,
            tuple(config.tags),
            (config.max_servers or MOST) if queues else 0,
            float(config.seconds("keep_alive") or 0),
            allocation_s=(config.seconds("allocation_time") or HOUR_S) if money else config.seconds("allocation_time"),
            job_s=config.seconds("job_time"),
            time_most_s=config.seconds("longest"),
            queues=queues,
            shared=named_resources(config.resources),
            cost=config.cost,
            paused=config.paused,
            reassign=config.reassign,
            cloud=True,
            bounds=driver.offer.bounds(),
            paid_s=driver.settings.paid_s if money else 0,
            dead_after_s=None if config.dead_after == "off" else float(config.seconds("dead_after") or 0),
        )

    def first_facts(self) -> SiteFacts:
        """Nothing, until the cloud has said what it has."""
        return replace(self.facts(), most=0)

    def _queue(self, size: Size) -> QueueFacts:
        why = self.driver.offer.why_closed(size.name)
        price = self.driver.offer.prices.get(size.name, 0.0)
        longest = self.config.seconds("longest")
        return QueueFacts(
            size.name, self.node_of(size), None, longest, up=not why, tags=tuple(self.config.tags), auto=not why,
            nodes_most=1, why=why, price=price,
        )  # fmt: skip

    def node_of(self, size: Size) -> Amounts:
        """What a server of a size has for jobs."""
        node, config = size.node, self.config
        system = parse_size(config.system_memory) if config.system_memory is not None else 0
        disk = self.driver.settings.volume or node.disk
        return Amounts(
            node.cores, max(0, node.memory - system), disk, node.gpus, named_resources(config.node_resources)
        )

    async def learn(self) -> SiteFacts:
        """Ask the cloud for its sizes now and then, and for the quota; check what the configuration names, at first."""
        driver = self.driver
        try:
            if time.monotonic() - self._learned_at >= CATALOGUE_S:
                await self._learn_all()
                self._learned_at = time.monotonic()
            await driver.learn_quota()
        except RotaError as error:
            if self._why is None or not self._why.startswith(str(error)[:80]):
                self._why_since = time.time()
            self._why = str(error)
            raise
        self._why = None
        return self.facts()

    async def check(self) -> None:
        """Look for all that the configuration names, and ask for the quota; nothing is made. Raises RotaError."""
        await self._learn_all(False)
        self.driver.offer.quota = await self.driver.call(self.provider.quota)

    async def _learn_all(self, make: bool = True) -> None:
        driver, config, provider = self.driver, self.config, self.provider
        sizes: list[Size] = await driver.call(provider.sizes)
        images: list[Thing] = await driver.call(provider.images)
        networks: list[Thing] = await driver.call(provider.networks)
        chosen = self._choose(sizes)
        if config.image is None:
            raise UsageError(f'site {self.name}: give image = "NAME": the cloud has {_names(images)}')
        image = _one(f"site {self.name}: image", config.image, images)
        inside = [network for network in networks if not network.outside] or networks
        nets = [_one(f"site {self.name}: network", each, networks) for each in _listed(config.network)]
        if not nets and len(inside) > 1:
            raise UsageError(f'site {self.name}: give network = "NAME": the cloud has {_names(inside)}')
        public = (
            _one(f"site {self.name}: public_network", config.public_network, networks)
            if config.public_network
            else None
        )
        if config.security_groups:
            groups: list[Thing] = await driver.call(provider.groups)
            for each in config.security_groups:
                _one(f"site {self.name}: security_groups", each, groups)
        key = await self._learn_key() if make or config.key is not None else None
        small = [size for size in chosen if self._is_large_enough(size, image)]
        if not small:
            needs = f"{image.disk / (1 << 30):g} GiB of disk and {image.memory / (1 << 30):g} GiB of memory"
            raise UsageError(
                f"site {self.name}: no flavor is large enough for the image {image.name}, which needs {needs}"
            )
        driver.offer.sizes = {size.name: size for size in small}
        driver.offer.prices = {size.name: self._price(size) for size in small}
        driver.offer.sets = {size.name: self._set_of(size) for size in small}
        driver.offer.settings = replace(
            driver.settings, image=image.id, networks=tuple(each.id for each in nets), key=key,
            public=public.id if public is not None else None,
        )  # fmt: skip
        driver.learned = True

    def _is_large_enough(self, size: Size, image: Thing) -> bool:
        disk = self.driver.settings.volume or size.node.disk
        return size.node.memory >= image.memory and (not disk or disk >= image.disk)

    def _choose(self, sizes: Sequence[Size]) -> list[Size]:
        """The flavors that may be used: of the sets in their order, cheapest first."""
        found = [size for size in sizes if not self._patterns or any(p.fullmatch(size.name) for p in self._patterns)]
        if self._sets:
            found = [size for size in found if self._set_of(size) < len(self._sets)]
        if not found:
            said = [pattern.pattern for pattern in self._patterns or [p for each in self._sets for p in each]]
            raise UsageError(
                f"site {self.name}: no flavor matches {', '.join(said)}: the cloud has "
                f"{_names([Thing(size.id, size.name) for size in sizes])}"
            )
        unpriced = [size.name for size in found if self.config.max_cost_per_day is not None and not self._price(size)]
        if unpriced:
            raise UsageError(
                f"site {self.name}: max_cost_per_day: prices says nothing of {', '.join(unpriced[:SHOWN])}"
            )
        return sorted(
            found,
            key=lambda size: (
                self._set_of(size), self._price(size), size.node.gpus, size.node.cores, size.node.memory,
                size.node.disk, size.name,
            ),
        )  # fmt: skip

    def _set_of(self, size: Size) -> int:
        for number, patterns in enumerate(self._sets):
            if any(pattern.fullmatch(size.name) for pattern in patterns):
                return number
        return len(self._sets)

    def _price(self, size: Size) -> float:
        """What a server costs for an hour: by the price table, the cloud, or its cores."""
        found = self.config.prices.get(size.name, size.price)
        return self.config.cost * size.node.cores / 1000 if found is None else float(found)

    async def _learn_key(self) -> str:
        """The name of the key pair; if the configuration has none, one of our own is made."""
        config, driver = self.config, self.driver
        if config.key is not None:
            keys: list[Thing] = await driver.call(self.provider.keys)
            return _one(f"site {self.name}: key", config.key, keys).name
        try:
            public = await self._aside(lambda: _own_key(self.key_file or "", config.key_file is None))
        except OSError as error:
            raise UsageError(
                f"site {self.name}: key_file {self.key_file}: its public key cannot be read: {error}"
            ) from None
        await driver.call(lambda: self.provider.add_key(driver.settings.owner, public))
        return driver.settings.owner

    # ---- allocations ------------------------------------------------------------------------------------------------

    async def submit(
        self, tag: str, allocations: Sequence[Allocation], leases: Mapping[int, dict[str, Any]]
    ) -> list[str]:
        """Ask for a server for each."""
        found: list[str] = []
        for allocation in allocations:
            options = (("partition", allocation.queue or ""),)
            ask = Ask(
                tag, "rota", (allocation.id,), allocation.capacity, "", self.directory, time_s=allocation.time_s,
                options=options,
            )  # fmt: skip
            try:
                found += await self.driver.submit(ask)
            except CloudError as error:
                self.note(str(error))
                raise
        return found

    def doubt(self, known: Known) -> None:
        """Look at its server at the next poll."""
        self.driver.doubt(known)

    def waits(self, allocation: Allocation) -> Waiting | None:
        """What an allocation waits for: its server, or that the server answers."""
        suspect = self.driver.suspects.get(allocation.tag)
        kept = self.driver.records.all.get(allocation.tag)
        if kept is not None and kept.verb and not kept.gone:
            return Waiting(f"its server is being destroyed: {kept.why}")
        if suspect is not None:
            kind = "suspected" if kept is not None and kept.pid else "not reached yet"
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(suspect.since))
            return Waiting(f"{kind} since {since}: {suspect.why}")
        if kept is None or kept.pid:
            return None
        return Waiting("its server is being built" if kept.server else "its server is asked for")

    def know(self, tags: Callable[[], set[str]]) -> None:
        """What is of none of these is destroyed when it is seen."""
        self.driver.wanted = tags

    def cleaned(self, tags: set[str]) -> Coroutine[Any, Any, dict[str, list[dict[str, str]]]]:
        """Destroy servers of ours that are of no allocation."""
        return self.driver.clean(tags)

    def costs(self) -> list[dict[str, Any]]:
        """What each server has cost."""
        return [asdict(row) for row in self.driver.records.costs(time.time())]

    # ---- what allocations leave -------------------------------------------------------------------------------------

    def output_of(self, tag: str, runner: str) -> str:
        """Runners have theirs on their server, in the directory of their allocation."""
        kept = self.driver.records.all.get(tag)
        if kept is None or not kept.directory:
            return posixpath.join("/", "nonexistent", tag)
        return posixpath.join(kept.directory, "0")

    def unsent(self, output: str) -> Left | None:
        """The reports that its host found when its runner was over, or that were brought home."""
        text = self.driver.unsent.pop(output, None)
        try:
            if text is not None:
                return decode_left(text.encode())
            tag = posixpath.basename(posixpath.dirname(output))
            data = read_bounded(os.path.join(home_of(self.directory, tag), "0", UNSENT)) if len(tag) == 12 else None
            return None if data is None else decode_left(data)
        except BadFileError:
            return None

    async def last_output(self, known: Known) -> str | None:
        """The last line of a runner that never called."""
        return self.driver.came_to_nothing(known)

    async def read_output(self, host: str, path: str, offset: int, limit: int) -> bytes | None:
        """What a job wrote on its server; here, if that was destroyed."""
        for tag in path.split("/"):
            kept = self.driver.records.all.get(tag)
            if len(tag) == 12 and (kept is None or kept.verb):
                inside = path.partition(f"/{tag}/")[2]
                found = await asyncio.to_thread(_stretch, home_of(self.directory, tag), inside, offset, limit)
                if found is not None:
                    return found
        return await self.driver.read(host, path, offset, limit)

    # ---- what people see --------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Well, if the cloud answers and has what the configuration names."""
        trouble = self.driver.trouble
        if trouble is not None:
            return Health("failing", trouble[1], trouble[0])
        if self._why is not None:
            new = self._why == "it was not asked yet"
            return Health("new") if new else Health("failing", self._why, self._why_since)
        if (why := self.driver.offer.unfit.get(self.driver.settings.image)) is not None:
            return Health("failing", why)
        return Health("ok")

    def trouble(self, wall: float) -> str | None:
        """That the cloud cannot be used, and since when."""
        health = self.health()
        if health.state != "failing":
            return None
        return f"{self.name}: {health.why} (for {format_duration(max(0, round(wall - (health.since or wall))))})"

    def shown(self, wall: float) -> dict[str, Any]:
        """The flavors, the servers and what they cost, and which do not answer."""
        driver, notes = self.driver, []
        for tag, suspect in driver.suspects.items():
            kept = driver.records.all.get(tag)
            if kept is not None and kept.pid:
                since = format_duration(max(0, round(wall - suspect.since)))
                notes.append(
                    f"the server {kept.server} of {kept.allocation} is suspected since {since}: {suspect.why}; if you "
                    f"know that it is dead: rota allocations --end {kept.allocation}"
                )
        if driver.settings.money_most is not None:
            notes.append(
                f"{driver.offer.put_aside():.4g} of {driver.settings.money_most:g} are spent or put aside for a day"
            )
        for bound in driver.offer.bounds():
            if bound.name == "quota":
                shown = {"cores": 1000, "memory": 1 << 30}.get(bound.what, 1)
                notes.append(f"quota: others have {bound.others / shown:g} of {bound.most / shown:g} {bound.what}")
        rows = [{**queue_row(queue), "price": queue.price} for queue in self.facts().queues]
        servers = [self._server_row(kept) for kept in driver.records.live()]
        return {"queues": rows, "notes": [*self._notes, *driver.notes, *notes], "servers": servers}

    def _server_row(self, kept: Kept) -> dict[str, Any]:
        suspect = self.driver.suspects.get(kept.tag)
        return {
            "id": kept.server or None,
            "allocation": kept.allocation,
            "flavor": kept.size,
            "address": kept.address or None,
            "price": kept.price,
            "asked": kept.asked,
            "up": kept.up or None,
            "ending": kept.why if kept.verb else None,
            "suspected_since": suspect.since if suspect is not None and kept.pid else None,
            "suspected_why": suspect.why if suspect is not None and kept.pid else None,
        }

    def note(self, words: str) -> None:
        """Show some words with the site."""
        if words not in self._notes:
            self._notes = [*self._notes[-4:], words]


def _owner(directory: str) -> str:
    """Whose our servers are: made up once, for this home and site."""
    path = os.path.join(directory, "owner")
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except FileNotFoundError:
        owner = f"rota-{secrets.token_hex(6)}"
        write_private(path, f"{owner}\n".encode())
        return owner


def _listed(given: str | list[str] | None) -> list[str]:
    return [] if given is None else [given] if isinstance(given, str) else list(given)


def _pattern(word: str) -> re.Pattern[str]:
    try:
        return re.compile(word)
    except re.error as error:
        raise UsageError(f"flavors: '{word}' is no regular expression: {error}") from None


def _names(things: Sequence[Thing]) -> str:
    names = sorted({thing.name or thing.id for thing in things})
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return (", ".join(names[:SHOWN]) + more) if names else "none"


def _one(what: str, word: str, things: Sequence[Thing]) -> Thing:
    """The thing of a name, an id, or that alone has a name with this beginning."""
    found = [thing for thing in things if word in (thing.name, thing.id)]
    found = found or [thing for thing in things if thing.name.startswith(word)]
    if not found:
        raise UsageError(f"{what} '{word}': the cloud has no such thing; it has {_names(things)}")
    if len(found) > 1 and any(thing.name != found[0].name for thing in found):
        raise UsageError(f"{what} '{word}': which? the cloud has {_names(found)}")
    return found[0]


def _read(path: str | None, key: str) -> str:
    if path is None:
        return ""
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{key} {path}: {error}") from None


def _copied(files: Mapping[str, str]) -> list[tuple[str, bytes, int]]:
    out = []
    for here, there in files.items():
        path = os.path.expanduser(here)
        if not there.startswith("/"):
            raise UsageError(f"files: '{there}': give an absolute path on the server")
        try:
            with open(path, "rb") as file:
                out.append((there, file.read(), os.stat(path).st_mode & 0o777))
        except OSError as error:
            raise UsageError(f"files: {here}: {error}") from None
    return out


def _own_key(path: str, make: bool) -> str:
    """The public key that belongs to a private one, which is made if there is none and that is wanted."""
    if make and not os.path.exists(path):
        _make_key(path)
    with open(f"{path}.pub", encoding="ascii") as file:
        return file.read().strip()


def _make_key(path: str) -> None:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise UsageError("there is no ssh-keygen to make a key with: give key and key_file")
    done = subprocess.run(
        [program, "-q", "-t", "ed25519", "-N", "", "-C", "rota", "-f", path],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UsageError(f"a key cannot be made: {done.stderr.strip()}")


def _stretch(directory: str, inside: str, offset: int, limit: int) -> bytes | None:
    path = os.path.realpath(os.path.join(directory, inside))
    if not path.startswith(os.path.realpath(directory) + os.sep):
        return None
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return None

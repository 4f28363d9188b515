"""Servers on demand: an allocation is a server of a cloud, with a runner that is started there by ssh.

What a server is asked for with is written down before the cloud is asked (`Records`), and the server carries the
allocation's tag from its first moment. So after any doubt it is looked for before it is asked for again; of two with
one tag the later is destroyed; and one that nobody knows of is destroyed. A server's allocation is over when the server
is gone, by the cloud's own word: until then nothing that ran there is given to another.
"""

import asyncio
import base64
import posixpath
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rota.drivers.api import Ask, Known, Observation
from rota.drivers.cloud_offer import Offer
from rota.drivers.cloud_records import CloudSettings, Kept, Records
from rota.drivers.farm import Hardware, HostError, NoPythonError, Package
from rota.drivers.gate import Times
from rota.drivers.provider import (
    BUILDING,
    ENDING,
    FAILED,
    GONE,
    RESTARTING,
    STOPPED,
    UNKNOWN,
    CloudError,
    Order,
    Provider,
    Quota,
    QuotaError,
    Server,
    Size,
)
from rota.drivers.transport import UnreachableError
from rota.model.allocation import Outcome
from rota.model.amounts import format_duration
from rota.model.errors import RefusedError, RotaError
from rota.model.needs import Amounts
from rota.model.site import SiteFacts

__all__ = ["CloudDriver", "Hosts", "Reached", "Suspect"]

PROBE_S = 60.0
START_S = 60.0
LOOK_S = 90.0
POLL_S = 15.0
"""How long a poll waits for servers: of one that answers later nothing is told."""
NO_HARDWARE = ("No valid host", "Not enough", "Insufficient", "Exceeded maximum number of retries")
CONSOLE_LINES = 15
BACK_OFF_MOST_S = 60.0


class Suspect(Struct, frozen=True):
    """A server that does not answer."""

    since: float
    """Wall-clock time."""
    why: str


class Reached(Protocol):
    """A server as a host that is reached by ssh: `rota.drivers.farm.Host` is one."""

    directory: str | None
    hardware: Hardware | None

    async def prepare(self, package: Package) -> None:
        """See to it that the runner's files are there."""
        ...

    async def ask(self, package: Package, what: str, timeout_s: float, **more: Any) -> dict[str, Any]:
        """Ask the outpost."""
        ...

    async def put(self, path: str, data: bytes, mode: int) -> None:
        """Put a file there."""
        ...

    async def run(self, script: str, timeout_s: float) -> tuple[int | None, str]:
        """Run a shell script; (exit code, last words)."""
        ...


class Hosts(Protocol):
    """How servers are reached, and what their runners are told. The site knows."""

    package: Package

    def reach(self, kept: Kept) -> Reached:
        """The host of a server, by its address."""
        ...

    def command(self, kept: Kept, host: Reached, until_s: float | None) -> tuple[str, dict[str, str]]:
        """(the script that is the runner of a server, the files that it is to find)."""
        ...

    async def bring_home(self, kept: Kept, host: Reached) -> None:
        """Bring what jobs wrote home before a server is destroyed."""
        ...

    def left(self, kept: Kept) -> None:
        """A server is gone."""
        ...


class CloudDriver:
    """Creates servers, starts runners there, watches both, and destroys servers."""

    def __init__(
        self,
        provider: Provider,
        hosts: Hosts,
        records: Records,
        settings: CloudSettings,
        facts: Callable[[], SiteFacts],
        times: Times | None = None,
    ) -> None:
        self.provider = provider
        self.hosts = hosts
        self.records = records
        self._facts = facts
        self._times = times or Times(time.monotonic, time.time, asyncio.sleep, lambda: 0.5)
        self._began = self._times.wall() - self._times.mono()
        self.offer = Offer(settings, records, self._wall, self._times.mono)
        self.learned = True
        """Whether what the settings name was looked up in the cloud: without that no server can be brought up."""
        self.suspects: dict[str, Suspect] = {}
        """Tag → since when its server does not answer, and why."""
        self.trouble: tuple[float, str] | None = None
        """Since when the cloud does not answer, and why."""
        self.notes: list[str] = []
        self.unsent: dict[str, str] = {}
        """Directory of a runner that is over → the reports that it could not send."""
        self.last: dict[str, str] = {}
        """Tag → the last line that its runner wrote."""
        self.wake: Callable[[], None] = lambda: None
        self.wanted: Callable[[], set[str]] | None = None
        """The tags of allocations that are not over, by the manager's word; None: it has not said yet."""
        self._reached: dict[str, Reached] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Tag → the task that brings its server up, or ends it."""
        self._submitting: set[str] = set()
        self._unwanted: set[str] = set()
        self._known: set[str] = set()
        """Tags that the manager asked about last."""
        self._failures = 0
        self._not_before = 0.0
        self._listed = -1e9
        """When all servers were last listed, by the monotonic clock."""
        self._in_doubt = False
        """Whether somebody doubts that a server is well since then."""
        self._unlisted = -1e9
        """When that last failed."""
        self._listing = asyncio.Lock()
        self._looked: dict[str, float] = {}
        self._seen: dict[str, Server] = {}
        self._looks: dict[str, asyncio.Task[Observation | None]] = {}
        """Tag → the task that looks at its server."""
        self._restarts: dict[str, str] = {}
        """Tag → what its server was last while it did not run: stopped, or restarting."""
        self._parted: set[str] = set()
        """Tags of servers that are to go, whose runners were told so."""
        self._sought: dict[str, float] = {}
        """Tag → since when its server is looked for."""
        self._at_it: dict[str, float] = {}
        """Tag → since when the cloud says that it destroys its server, or when it was asked again."""
        self._lock = asyncio.Lock()

    @property
    def settings(self) -> CloudSettings:
        """How servers are made and ended."""
        return self.offer.settings

    def facts(self) -> SiteFacts:
        """What the cloud offers."""
        return self._facts()

    def _wall(self) -> float:
        """Wall-clock time, as it was when the driver was made and has gone on since: whoever sets it moves nothing."""
        return self._began + self._times.mono()

    async def call(self, work: Callable[[], Any]) -> Any:
        """Ask the cloud something, in a thread; whether it answers is noted."""
        try:
            found = await self._times.aside(work)
        except (QuotaError, RefusedError):
            self.trouble = None
            raise
        except CloudError as error:
            self.trouble = self.trouble or (self._wall(), str(error))
            raise
        self.trouble = None
        return found

    # ---- asking for servers -----------------------------------------------------------------------------------------

    async def learn_quota(self) -> None:
        """Ask for the quota, and how much of it we use ourselves."""
        quota: Quota = await self.call(self.provider.quota)
        await self._list()
        self.offer.learn(quota, [server.size for server in self._seen.values() if server.tag])

    async def submit(self, ask: Ask) -> list[str]:
        """Ask for a server of the size that the options name."""
        name = dict(ask.options).get("partition", "")
        size = self.offer.sizes.get(name)
        if size is None:
            raise HostError(f"the cloud has no flavor {name} that may be used", name)
        self._submitting.add(ask.tag)
        try:
            return [await self._create(ask, size)]
        finally:
            self._submitting.discard(ask.tag)
            self._unwanted.discard(ask.tag)

    async def _create(self, ask: Ask, size: Size) -> str:
        async with self._lock:  # one at a time: each counts with those before it
            await self._turn(ask.tag)
            self.offer.check_limits(size, ask)
            self.offer.check_quota(await self.call(self.provider.quota), size)
            self._check_wanted(ask.tag)
            settings = self.settings
            price = self.offer.prices.get(size.name, 0.0)
            now = self._wall()
            kept = Kept(ask.tag, ask.ids[0], size.name, ask.amounts, price, ask.time_s or 0, now, image=settings.image)
            self.records.keep(kept)
        order = Order(
            settings.owner,
            ask.tag,
            settings.name,
            size.id,
            settings.image,
            settings.networks,
            settings.groups,
            settings.key,
            settings.user_data,
            settings.volume,
            settings.zone,
        )
        try:
            made: Server = await self.call(lambda: self.provider.create(order))
            native = made.id
        except QuotaError as error:
            self.records.forget(ask.tag)
            self.offer.close(size.name, BACK_OFF_MOST_S, str(error))
            raise HostError(str(error), size.name) from None
        except RefusedError as error:
            self.records.forget(ask.tag)
            if size.node.disk or settings.volume:
                raise
            words = f'{error}: the flavor {size.name} has no disk; give `volume = "20G"`, or other `flavors`'
            self.offer.close(size.name, settings.no_hardware_s, words)
            raise HostError(words, size.name) from None
        except CloudError as error:
            self._failed()
            if not error.ran:
                self.records.forget(ask.tag)
                raise
            native = (await self.find(ask.tag, 1) or [""])[0]
        kept = self.records.all.get(ask.tag, kept)
        self.records.keep(replace(kept, server=native))
        self._listed = -1e9
        return native

    async def _turn(self, tag: str) -> None:
        """Wait until one more server may be made: not too many at once, not too soon after the last or a failure."""
        while True:
            self._check_wanted(tag)
            building = len([kept for kept in self.records.live() if kept.asked and not kept.pid and not kept.verb])
            wait = self._not_before - self._times.mono()
            if wait <= 0 and building < self.settings.spawns_most:
                break
            await self._times.sleep(min(max(wait, 0.5), 5.0))
        self._not_before = self._times.mono() + self.settings.spawn_delay_s

    def _check_wanted(self, tag: str) -> None:
        if tag in self._unwanted:
            raise CloudError("it is not wanted any more, and the cloud was not asked")
        if self.settings.image in self.offer.unfit:
            raise CloudError(self.offer.unfit[self.settings.image])

    def _failed(self) -> None:
        """Wait before the next server is asked for, longer after each failure."""
        self._failures += 1
        wait = min(BACK_OFF_MOST_S, 1.5 ** min(self._failures, 20))
        self._not_before = self._times.mono() + self._times.jittered(wait)

    async def find(self, tag: str, count: int) -> list[str] | None:
        """Look for a server by its tag, for as long as it may still come to be.

        None: the cloud was never asked. Raises CloudError if it was, and there is none: that tag is not used again.
        """
        while True:
            kept = self.records.all.get(tag)
            if kept is not None and kept.server:
                return [kept.server]
            if kept is not None and kept.gone:
                raise CloudError(kept.why)
            since = self._sought.setdefault(tag, self._times.mono())  # not by the wall clock, which may be set
            late = kept is None or self._times.mono() - since >= self.settings.settle_s
            try:
                found: list[Server] = await self.call(lambda: self.provider.servers(self.settings.owner))
            except RotaError:
                await self._times.sleep(self._times.jittered(10.0))
                continue
            mine = sorted((s for s in found if s.tag == tag and s.state != GONE), key=lambda s: (s.created, s.id))
            if mine:
                kept = kept or Kept(tag, "", mine[0].size, self._node(mine[0].size), asked=mine[0].created)
                self.records.keep(replace(kept, server=mine[0].id))
                return [mine[0].id]
            if late and not any(s.state == UNKNOWN and not s.owner for s in found):
                if kept is None:
                    return None
                # Should it come later, it is of no allocation; under the same tag there would be two. That is kept, for
                # whoever looks for it again: this may be told to a manager that does not live to write it down.
                words = f"no server with the tag {tag} came to be: another is asked for, with another tag"
                self.records.keep(replace(kept, price=0.0, verb="fail", why=words, gone=self._wall()))
                raise CloudError(words)
            await self._times.sleep(min(5.0, self.settings.settle_s / 4))

    def _node(self, size: str) -> Amounts:
        return self.offer.sizes[size].node if size in self.offer.sizes else Amounts()

    # ---- looking ----------------------------------------------------------------------------------------------------

    def doubt(self, known: Known) -> None:
        """Look at a server soon. That is said again and again of one that is missing: no reason to list more often."""
        self._looked.pop(known.tag, None)
        self._in_doubt = True

    def _is_due(self) -> bool:
        busy = (
            any(not kept.up or bool(kept.verb) for kept in self.records.live()) or bool(self.suspects) or self._in_doubt
        )
        period = self.settings.poll_busy_s if busy else self.settings.poll_s
        now = self._times.mono()
        return now - self._listed >= min(period, self.settings.poll_s) and now - self._unlisted >= min(
            self.settings.poll_busy_s, self.settings.poll_s
        )

    async def _list(self) -> list[Server]:
        """All servers of ours; what nobody knows of is destroyed."""
        self._in_doubt = False
        found: list[Server] = await self.call(lambda: self.provider.servers(self.settings.owner))
        self._listed = self._times.mono()
        self._seen = {server.id: server for server in found}
        for server in self.strangers(found):
            self._note(f"the server {server.name} ({server.id}) is not of any allocation, and is destroyed")
            self._background(f"stranger {server.id}", self._remove(server.id))
        self._tidy()
        return found

    def strangers(self, found: Sequence[Server]) -> list[Server]:
        """Servers of ours that are of no allocation: made twice, or left behind. None, while nobody says what is."""
        out: list[Server] = []
        if self.wanted is None:
            return out
        known = self._known | self.wanted()
        for server in found:
            if server.owner != self.settings.owner or server.state in (ENDING, GONE):
                continue
            kept = self.records.all.get(server.tag)
            if server.tag in self._submitting or (kept is not None and not kept.server and not kept.gone):
                continue  # it is being looked for
            if kept is None and server.tag in known:
                continue
            if kept is None or (kept.server != server.id or kept.gone):
                out.append(server)
        return out

    def _tidy(self) -> None:
        """Forget servers that are gone for longer than a day, which is how long they count."""
        if self.wanted is None:
            return
        before, known = self._wall() - self.settings.day_s - 3600, self._known | self.wanted()
        for tag in [tag for tag, kept in self.records.all.items() if kept.gone and kept.gone < before]:
            if tag not in known:  # the clock may have been set: a day is no reason to forget what still waits
                self.records.forget(tag)

    async def _remove(self, server: str) -> None:
        """Destroy what is of no allocation; if that fails it is seen again."""
        await self.call(lambda: self.provider.destroy(server))

    async def clean(self, tags: set[str]) -> dict[str, list[dict[str, str]]]:
        """Destroy every server of ours that is of none of the allocations with these tags; what went, what is kept."""
        self._known |= tags
        self.wanted = self.wanted or (lambda: tags)
        found: list[Server] = await self.call(lambda: self.provider.servers(self.settings.owner))
        strange = {server.id for server in self.strangers(found)}
        for server in found:
            kept = self.records.all.get(server.tag)
            waits = kept is not None and not kept.server and server.tag not in tags
            if waits and server.tag not in self._submitting:
                strange.add(server.id)
        for id in strange:
            await self._remove(id)
        mine = [server for server in found if server.owner == self.settings.owner]
        rows = {server.id: {"id": server.id, "name": server.name, "state": server.native} for server in mine}
        return {
            "deleted": [row for id, row in rows.items() if id in strange],
            "kept": [row for id, row in rows.items() if id not in strange],
        }

    async def poll(self, known: Sequence[Known]) -> list[Observation]:
        """List all servers at once, and look at those that run by ssh. Of what does not answer nothing is told."""
        self._known = {each.tag for each in known}
        async with self._listing:  # several may ask at one time, about one server each
            if not self._is_due():
                return [seen for each in known if (seen := self._over(each)) is not None]
            try:
                await self._list()
            except RotaError:
                self._unlisted = self._times.mono()
                return []
        mine = [self._begin_to_look(each) for each in known if each.tag not in self._looks]
        done, _ = await asyncio.wait(mine, timeout=POLL_S) if mine else (set(), set())
        return [seen for task in mine if task in done and not task.cancelled() and (seen := task.result()) is not None]

    def _begin_to_look(self, each: Known) -> "asyncio.Task[Observation | None]":
        """Look at a server in a task of its own, one at a time: one that does not answer holds up nothing."""
        task = self._looks[each.tag] = asyncio.get_running_loop().create_task(self._observe(each))
        task.add_done_callback(lambda _: self._looks.pop(each.tag, None))
        return task

    def _over(self, each: Known) -> Observation | None:
        """How an allocation ended whose server is gone."""
        kept = self.records.all.get(each.tag)
        if kept is None or not kept.gone:
            return None
        outcome = Outcome(why=kept.kind) if kept.kind else None
        return Observation(each.id, kept.verb or "fail", kept.server or None, kept.why, outcome)

    async def _observe(self, each: Known) -> Observation | None:
        try:
            return await self._look_at(each)
        except RotaError:
            return None

    async def _look_at(self, each: Known) -> Observation | None:
        if each.tag in self._submitting:
            return None
        kept = self.records.all.get(each.tag)
        if kept is None:
            kept = self._adopt(each)
        if kept is None:
            if each.native_id is None:
                return Observation(each.id, "abort", None, "the cloud was never asked for it")
            kept = Kept(each.tag, each.id, "", Amounts(), asked=each.submitted, server=each.native_id)
        if kept.gone:
            return self._over(each)
        if not kept.server:
            if each.native_id is None:
                return None
            kept = replace(kept, server=each.native_id)
        if not kept.allocation:
            kept = replace(kept, allocation=each.id)
        server = self._seen.get(kept.server)
        if server is None:
            server = await self.call(lambda: self.provider.server(kept.server))
        if server is None or server.state == GONE:
            self._is_gone(kept)
            return self._over(each)
        if self.records.all.get(each.tag) != kept:
            self.records.keep(kept)
        if server.state == UNKNOWN:
            self._suspect(kept, f"the cloud cannot tell what it is: {server.native}")
            return None
        if server.state == ENDING and not kept.verb:
            self._end(kept, "fail", f"somebody deleted the server {server.name}", "node-fail")
            return None
        if kept.verb:
            if self._is_to_be_asked_again(kept, server):
                self._go_on_ending(kept)
            return None
        return await self._judge(each, kept, server)

    def _adopt(self, each: Known) -> Kept | None:
        """A server that is there and of which nothing is written down, as after a restored backup."""
        mine = [s for s in self._seen.values() if s.tag == each.tag and s.owner == self.settings.owner]
        mine.sort(key=lambda server: (server.id != each.native_id, server.created, server.id))
        if not mine:
            return None
        first = mine[0]
        price = self.offer.prices.get(first.size, 0.0)
        new = Kept(each.tag, each.id, first.size, self._node(first.size), price, 0, first.created, server=first.id)
        return self.records.keep(new)

    async def _judge(self, each: Known, kept: Kept, server: Server) -> Observation | None:
        """Look at a server that is wanted."""
        settings, now = self.settings, self._wall()
        name = f"the server {server.name} ({kept.size})"
        if server.state == FAILED:
            words = f"{name} is in {server.native}: {server.why or 'the cloud does not say why'}"
            if not kept.pid:
                self._spawn_failed(kept, server.why)
            self._end(kept, "fail", words, "node-fail" if kept.pid else "host")
            return None
        if kept.time_s and now > kept.asked + kept.time_s + settings.paid_s / 2:
            self._end(kept, "complete", f"the time of {name} is over", "")
            return None
        if not kept.pid and now > kept.asked + settings.boot_s:
            last = self.suspects.get(kept.tag)
            words = f"{name} was not of use {format_duration(round(settings.boot_s))} after it was asked for"
            words += f" ({server.native}{'; ' + last.why if last is not None else ''})"
            self._spawn_failed(kept, "")
            self._end(kept, "fail", words, "host")
            return None
        if server.state == BUILDING:
            return None
        if server.state in (STOPPED, RESTARTING):
            self._suspect(kept, f"it is {server.native}")
            self._restarts[kept.tag] = server.state
            return None
        if server.image and kept.image and server.image != kept.image and not settings.volume:
            self._end(kept, "fail", f"somebody rebuilt {name}, with another image", "node-fail")
            return None
        if not kept.pid:
            if self.learned and kept.tag not in self._tasks:
                self._background(kept.tag, self._bring_up(kept, server))
            return None
        return await self._look(each, kept, name)

    async def _look(self, each: Known, kept: Kept, name: str) -> Observation | None:
        """Ask the host whether its runner is there."""
        if self._times.mono() - self._looked.get(kept.tag, -1e9) < self.settings.poll_s and not self._doubted(kept):
            return None
        self._looked[kept.tag] = self._times.mono()
        host = self._host(kept)
        try:
            told = await host.ask(
                self.hosts.package, "look", LOOK_S, directory=posixpath.dirname(kept.directory),
                tags={kept.tag: kept.runner},
            )  # fmt: skip
            found = told[kept.tag]
        except (RotaError, KeyError) as error:
            self._suspect(kept, " ".join(str(error).split())[:300])
            return None
        if self.records.all.get(kept.tag) != kept or kept.verb:
            return None  # it was told to end meanwhile
        self.suspects.pop(kept.tag, None)
        if found["state"] == "run":
            self._restarts.pop(kept.tag, None)
            return Observation(each.id, "run", kept.server)
        if found["state"] == "stuck":
            self._suspect(kept, "processes of its runner cannot be ended")
            return None
        self.unsent.update(found.get("unsent") or {})
        if found.get("last"):
            self.last[kept.tag] = found["last"]
        if found["state"] == "rebooted":
            how = "rebuilt" if not found.get("there", True) else "rebooted"
            how = "stopped and started again" if self._restarts.get(kept.tag) == STOPPED else how
            self._end(kept, "fail", f"somebody {how} {name}, and its runner is gone", "node-fail")
        else:
            self._end(kept, "complete", f"the runner on {name} is done", "")
        return None

    def _doubted(self, kept: Kept) -> bool:
        return kept.tag in self.suspects

    def _suspect(self, kept: Kept, why: str) -> None:
        """A server does not answer, since now or since before."""
        before = self.suspects.get(kept.tag)
        self.suspects[kept.tag] = Suspect(before.since if before is not None else self._wall(), why)

    def _spawn_failed(self, kept: Kept, why: str) -> None:
        self._failed()
        if any(words in why for words in NO_HARDWARE):
            self.offer.close(kept.size, self.settings.no_hardware_s, f"the cloud has no hardware for it: {why}")
        else:
            self.offer.close(kept.size, self._not_before - self._times.mono(), why or "its last server was of no use")

    def _host(self, kept: Kept) -> Reached:
        host = self._reached.get(kept.tag)
        if host is None:
            host = self._reached[kept.tag] = self.hosts.reach(kept)
        return host

    # ---- bringing servers up ----------------------------------------------------------------------------------------

    async def _bring_up(self, kept: Kept, server: Server) -> None:
        """Reach a server that runs, prepare it, and start its runner. Each step may be repeated."""
        settings, times = self.settings, self._times
        deadline = kept.asked + settings.boot_s
        try:
            address = server.addresses[0] if server.addresses else ""
            if settings.public is not None:
                address = await self.call(lambda: self.provider.publish(kept.server, settings.public or ""))
            if not address:
                self._suspect(kept, "it has no address")
                return
            kept = self.records.keep(replace(self.records.all.get(kept.tag, kept), address=address))
            host = self._host(kept)
            while True:
                try:
                    await host.prepare(self.hosts.package)
                    break
                except UnreachableError as error:
                    if self._wall() > deadline or self._is_ending(kept):
                        return
                    self._suspect(kept, " ".join(str(error).split())[:300])
                    await times.sleep(settings.again_s)
            await self._set_up(kept, host)
            host.hardware = msgspec.convert(await self._probe(kept, host, deadline), Hardware)
            if self._is_ending(kept):
                return
            place = posixpath.join(host.directory or "", kept.tag)
            kept = replace(kept, directory=place)
            until_s = None
            if kept.time_s:
                until_s = max(1.0, kept.asked + kept.time_s + settings.paid_s / 3 - self._wall())
                until_s = min(until_s, float(kept.time_s))
            script, files = self.hosts.command(kept, host, until_s)
            found = await host.ask(
                self.hosts.package, "start", START_S, tag=kept.tag, directory=place,
                files={**files, "script.sh": script}, script="script.sh",
            )  # fmt: skip
        except UnreachableError as error:
            self._suspect(kept, " ".join(str(error).split())[:300])
            return  # the next poll begins again
        except (HostError, msgspec.ValidationError) as error:
            words = f"the server {server.name} ({kept.size}) is there, but its runner cannot be started: {error}"
            self._spawn_failed(kept, " ".join(str(error).split())[:200])
            if isinstance(error, NoPythonError) and not (settings.user_data or settings.start_script):
                self.offer.unfit[kept.image] = (
                    "the image has no Python 3.8 or newer, and no more servers are made of it: give another `image`, "
                    "the path of its Python (`python`), or a `start_script` that installs one"
                )
            self._end(self.records.all.get(kept.tag, kept), "fail", words + await self._console(kept), "")
            return
        now = self.records.all.get(kept.tag)
        if now is None:
            return
        runner = {"pid": found["pid"], "start": found["start"], "boot": found["boot"]}
        self.records.keep(replace(now, directory=place, up=self._wall(), **runner))
        self._failures = 0
        self.suspects.pop(kept.tag, None)
        self._looked.pop(kept.tag, None)
        self._listed = -1e9
        self.wake()

    async def _probe(self, kept: Kept, host: Reached, deadline: float) -> dict[str, Any]:
        """What a server has. If it has no Python, user data may be about to install one: then it is asked again."""
        while True:
            try:
                return await host.ask(self.hosts.package, "probe", PROBE_S, directory=host.directory)
            except NoPythonError as error:
                if not self.settings.user_data or self._wall() > deadline or self._is_ending(kept):
                    raise
                self._suspect(kept, " ".join(str(error).split())[:300])
                await self._times.sleep(self.settings.again_s)

    def _is_ending(self, kept: Kept) -> bool:
        now = self.records.all.get(kept.tag)
        return now is None or bool(now.verb)

    async def _set_up(self, kept: Kept, host: Reached) -> None:
        """Copy files, and run the start script once."""
        for path, data, mode in self.settings.files:
            await host.put(path, data, mode)
        if not self.settings.start_script:
            return
        done = posixpath.join(host.directory or "", f"{kept.tag}.ready")
        script = f'[ -e "{done}" ] && exit 0\n(\n{self.settings.start_script}\n) && : > "{done}"\n'
        code, words = await host.run(script, self.settings.script_s)
        if code != 0:
            raise HostError(f"start_script ended with {code}: {words}", kept.tag)

    async def _console(self, kept: Kept) -> str:
        """The end of a server's console, for a message."""
        try:
            text: str = await self.call(lambda: self.provider.console(kept.server, CONSOLE_LINES))
        except RotaError:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f"; its console ends with: {lines[-1][:200]}" if lines else ""

    # ---- ending servers ---------------------------------------------------------------------------------------------

    async def terminate(self, known: Known) -> bool:
        """Have a server end: its runner reports, if it can be reached, and the server is destroyed."""
        kept = self.records.all.get(known.tag)
        if known.tag in self._submitting:
            self._unwanted.add(known.tag)
        if kept is None or kept.gone:
            self._listed = -1e9
            return True
        if not kept.verb:
            self._end(kept, "complete", "it was told to end", "")
        return True

    def _end(self, kept: Kept, verb: str, why: str, kind: str) -> None:
        """Decide that a server is to go, and why; that is kept, so it goes also if we do not live to see it."""
        task = self._tasks.pop(kept.tag, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        now = self.records.all.get(kept.tag, kept)
        kept = self.records.keep(replace(now, verb=verb, why=why, kind=kind, ending=self._wall()))
        if kept.server:
            self._background(kept.tag, self._finish(kept))

    def _is_to_be_asked_again(self, kept: Kept, server: Server) -> bool:
        """Whether the cloud is asked once more to destroy a server: not while it says that it is at it.

        A request then is worse than useless: nova takes it for said already, and if the first fails just then, the
        server stays `deleting` and every later request is ignored too.
        """
        if server.state != ENDING:
            self._at_it.pop(kept.tag, None)
            return True
        now = self._times.mono()
        if now - self._at_it.setdefault(kept.tag, now) < self.settings.end_again_s:
            return False
        self._at_it[kept.tag] = now
        return True

    def _go_on_ending(self, kept: Kept) -> None:
        if kept.tag not in self._tasks:
            self._background(kept.tag, self._finish(kept))

    async def _finish(self, kept: Kept) -> None:
        """End a runner and what it has, as far as it can be reached in time; then destroy the server."""
        if kept.pid and kept.address and kept.tag not in self.suspects and kept.tag not in self._parted:
            self._parted.add(kept.tag)
            try:
                await self._say_goodbye(kept)
            except (RotaError, KeyError):
                pass  # it is destroyed all the same
        await self.call(lambda: self.provider.destroy(kept.server))
        self._listed = min(self._listed, self._times.mono() - self.settings.poll_busy_s + 2.0)

    async def _say_goodbye(self, kept: Kept) -> None:
        host, place = self._host(kept), posixpath.dirname(kept.directory)
        await host.ask(self.hosts.package, "end", START_S, **kept.runner)
        until = self._times.mono() + self.settings.last_s / 2
        while True:
            told = (await host.ask(self.hosts.package, "look", LOOK_S, directory=place, tags={kept.tag: kept.runner}))[
                kept.tag
            ]
            if told["state"] != "run" or self._times.mono() > until:
                break
            await self._times.sleep(1.0)
        self.unsent.update(told.get("unsent") or {})
        await self.hosts.bring_home(kept, host)
        if self.settings.end_script:
            await host.run(self.settings.end_script, self.settings.script_s)

    def _is_gone(self, kept: Kept) -> None:
        """The cloud says that a server is not there."""
        if not kept.verb:
            words = f"the server {kept.server} ({kept.size}) is gone: somebody deleted it"
            kept = replace(kept, verb="fail", why=words, kind="node-fail")
        self.records.account(self.records.keep(replace(kept, gone=self._wall())))
        for table in (self.suspects, self._reached, self._looked, self._restarts, self._sought, self._at_it):
            table.pop(kept.tag, None)
        self._parted.discard(kept.tag)
        if (task := self._tasks.pop(kept.tag, None)) is not None:
            task.cancel()
        if (look := self._looks.get(kept.tag)) is not None and look is not asyncio.current_task():
            look.cancel()
        self.hosts.left(kept)

    def came_to_nothing(self, known: Known) -> str | None:
        """The last line that a runner wrote which never called."""
        return self.last.pop(known.tag, None)

    # ---- files, and tasks -------------------------------------------------------------------------------------------

    def host_named(self, name: str) -> Reached | None:
        """The host that calls itself so, or has this address."""
        for kept in self.records.live():
            host = self._reached.get(kept.tag)
            if host is None and kept.pid:
                host = self._host(kept)
            if host is not None and (kept.address == name or (host.hardware and host.hardware.host == name)):
                return host
        return None

    async def read(self, name: str, path: str, offset: int, limit: int) -> bytes | None:
        """A stretch of a file of ours on a server; None: there is no such server."""
        host = self.host_named(name)
        if host is None:
            return None
        out = b""
        while len(out) < limit:
            more = {"path": path, "offset": offset + len(out), "limit": limit - len(out)}
            data = base64.b64decode((await host.ask(self.hosts.package, "read", START_S, **more))["data"])
            out += data
            if not data:
                break
        return out

    def _note(self, words: str) -> None:
        self.notes = [*self.notes[-4:], words]

    def _background(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except RotaError as error:
                self._note(str(error))
            finally:
                if self._tasks.get(key) is asyncio.current_task():
                    del self._tasks[key]

        if key in self._tasks:
            work.close()
            return
        self._tasks[key] = asyncio.get_running_loop().create_task(run())

    def retire(self) -> None:
        """End what goes on in the background; it is begun again by the next driver."""
        for task in (*self._tasks.values(), *self._looks.values()):
            task.cancel()
        self._tasks.clear()

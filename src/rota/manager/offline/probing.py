"""Testing a site with a batch system from end to end, with one tiny job of its own."""

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from rota.drivers.api import Ask, Known
from rota.drivers.command import CommandDriver
from rota.drivers.dialect import Queue
from rota.drivers.dialects import load_dialect
from rota.drivers.gate import shown
from rota.drivers.script import NO_PYTHON, build_script
from rota.drivers.settings import Settings
from rota.manager.config import Config, SiteConfig, find_batch_site, is_cloud, load_config
from rota.manager.paths import Paths, prepare
from rota.manager.sites.batch import make_transport, options_of
from rota.model.amounts import format_duration
from rota.model.errors import RotaError, UsageError
from rota.model.needs import Amounts
from rota.model.site import SiteFacts
from rota.wire.client import Connection, NoManagerError, read_notice
from rota.wire.home import write_private

__all__ = ["Say", "Verdict", "probe"]

Say = Callable[[str, str, str, str], None]
"""Takes a finding: what was looked at, ok / warn / fail, what was seen, what to do."""
MEMORY = 512 << 20
TIME_S = 600
LOOK_S = 1.0
LATE_FILES_S = 10.0
"""How long a shared file system may take to show what the job wrote before it ended."""
SOON_FILES_S = 3.0
"""How long the rest of these files may take once the first was seen."""
END_S = 60.0
SKEW_WARN_S = 10.0
LIVE = ("pending", "held", "running", "suspended", "unsure")

NODE_LINES = """\
exec 2>>{place}/messages
{{ uname -n; date +%s; id -un; }} >{place}/node.part && mv -f {place}/node.part {place}/node
"""
NODE_PROGRAM = """\
import json, os, socket, sys, time

here = sys.argv[1]
with open(os.path.join(here, "plan.json")) as file:
    plan = json.load(file)
found = {"python": sys.version.split()[0], "executable": sys.executable, "host": os.uname().nodename}
found["nonce"] = plan["nonce"]
try:
    with open(plan["home_file"]) as file:
        found["home"] = file.read() == plan["nonce"]
except OSError as error:
    found["home"], found["home_error"] = False, str(error)
found["tried"] = []
reached = set()
for kind, host, port in plan["targets"]:
    if kind in reached:
        continue
    error = None
    try:
        with socket.create_connection((host, port), timeout=5) as sock:
            if kind == "listener":
                sock.sendall(("%s %r\\n" % (plan["nonce"], time.time())).encode())
                if sock.recv(16) != b"ok\\n":
                    raise OSError("something else answers there")
            reached.add(kind)
    except OSError as problem:
        error = str(problem)
    found["tried"].append([kind, host, port, error])
found["time"] = time.time()
with open(os.path.join(here, "result.part"), "w") as file:
    json.dump(found, file)
os.rename(os.path.join(here, "result.part"), os.path.join(here, "result.json"))
"""


class Verdict(Struct):
    """What the test of a site has found."""

    site: str
    configured_mode: str
    mode: str | None = None
    """The better of the modes that can be used; None: neither can."""
    version: str | None = None
    native_id: str | None = None
    wait_s: float | None = None
    host: str | None = None
    python: str | None = None
    skew_s: float | None = None
    call_back: str | None = None
    """The address at which a node has reached us."""


def probe(home: str | None, name: str, timeout_s: float, say: Say) -> Verdict:
    """Test one site. The job of the test is ended also on Ctrl-C, TERM and when the time is up."""
    return asyncio.run(_guarded(home, name, timeout_s, say))


async def _guarded(home: str | None, name: str, timeout_s: float, say: Say) -> Verdict:
    paths = Paths(home)
    config = load_config(paths.home)
    if name in config.site and config.site[name].driver == "ssh":
        from rota.manager.offline.farm_probing import probe_farm

        return await probe_farm(name, config.site[name], say)
    if name in config.site and is_cloud(config.site[name].driver):
        from rota.manager.offline.cloud_probing import probe_cloud

        return await probe_cloud(name, config.site[name], say)
    site = find_batch_site(config, paths.config, name, "`rota doctor` tests it")
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        prober = Prober(paths, config, name, site, timeout_s, say)
    except UsageError as error:
        raise UsageError(f"{paths.config}: [site.{name}] {error}") from None
    try:
        await prober.run()
    finally:
        await prober.clean_up()
    return prober.verdict


class Prober:
    """One test of one site."""

    def __init__(self, paths: Paths, config: Config, name: str, site: SiteConfig, timeout_s: float, say: Say) -> None:
        self.verdict = Verdict(name, site.mode)
        self._paths = paths
        self._config = config
        self._site = site
        self._say = say
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._tag = secrets.token_hex(6)
        self._nonce = secrets.token_hex(16)
        self._top = site.directory or os.path.join(paths.home, "sites", name)
        self._place = os.path.join(self._top, self._tag)
        self._home_file = os.path.join(paths.home, f"probe-{self._tag}")
        self._transport = make_transport(site)
        self._driver = CommandDriver(
            name,
            load_dialect(site.driver),
            self._transport,
            SiteFacts(Amounts(), (), 1, 0.0),
            options_of(site),
            Settings(poll_s=5.0, poll_min_s=float(site.seconds("poll_least") or 2)),
        )
        self._submitted: float | None = None
        self._server: asyncio.Server | None = None
        self._called: list[tuple[str, float]] = []
        """(address, clock less ours) of each node that called back."""
        self._listen: str | None = None
        """What `listen` must be set to for a node to reach us, or None."""
        self._state = "not heard of"
        self._exit: int | None = None

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    async def run(self) -> None:
        """Go through the steps of the test, until one fails."""
        try:
            await self._driver.start()
        except RotaError as error:
            self._say("programs", "fail", str(error), "the PATH that rota is started with, `ssh`, `via` and `driver`")
            return
        health = self._driver.health()
        self.verdict.version = health.version
        where = ", ".join(str(path) for path in health.programs.values())
        self._say("programs", "ok", f"{health.version or self._site.driver} on {health.where}: {where}", "")
        if not await self._queues() or not await self._prepare() or not await self._submit():
            return
        result = await self._wait()
        if result is not None:
            self._judge(result)

    async def _queues(self) -> bool:
        command = self._driver.dialect.queues()
        if command is None:
            return True
        answer = await self._driver.ask(command, min(60.0, self._left() or 1.0))
        queues: tuple[Queue, ...] = ()
        queues, _ = await self._driver.read(lambda: self._driver.dialect.read_queues(answer), queues, answer)
        wanted = self._site.partition
        names = ", ".join(queue.name + (" (default)" if queue.is_default else "") for queue in queues)
        if not queues:
            self._say("queues", "warn", f"{shown(command)}: {answer.words}", "is the batch system up?")
        elif wanted is not None and wanted not in [queue.name for queue in queues]:
            self._say("queues", "fail", f"there is no partition '{wanted}'; there are {names}", "set `partition`")
            return False
        else:
            strange = sorted(set(self._site.queues or ()) - {queue.name for queue in queues})
            closed = [queue.name for queue in queues if queue.name == wanted and not queue.up]
            advice = f"'{wanted}' is closed at the moment" if closed else ""
            if strange:
                advice = f"`queues` names {', '.join(strange)}, which are not there"
            self._say("queues", "warn" if advice else "ok", names, advice)
        return True

    async def _prepare(self) -> bool:
        """Write the files that the job reads, and open a socket that it may call."""
        try:
            prepare(self._paths.home)
        except RotaError as error:
            self._say("home", "fail", str(error), "")
            return False
        try:
            write_private(self._home_file, self._nonce.encode())
            plan = {"nonce": self._nonce, "home_file": self._home_file, "targets": await self._targets()}
            await self._transport.write(os.path.join(self._place, "plan.json"), json.dumps(plan).encode())
            await self._transport.write(os.path.join(self._place, "probe.py"), NODE_PROGRAM.encode())
        except (RotaError, OSError) as error:
            self._say("directory", "fail", str(error), f"set `directory` of the site (now {self._top})")
            return False
        return True

    async def _targets(self) -> list[tuple[str, str, int]]:
        """Where a node may reach us: the manager that is up, and a socket of our own."""
        bind = (self._config.listen or ":0").rpartition(":")[0]
        names = [bind] if bind else list(dict.fromkeys([socket.gethostname(), socket.getfqdn(), _own_address()]))
        names = [name for name in names if name]
        out: list[tuple[str, str, int]] = []
        port = await asyncio.to_thread(self._manager_port)
        if port is not None:
            # Nobody proves there who answers, and every node is a localhost.
            out += [("manager", name, port) for name in names if bind or not name.startswith("localhost")]
        with contextlib.suppress(OSError):
            self._server = await asyncio.start_server(self._take_call, sock=_listening(bind))
            number = self._server.sockets[0].getsockname()[1]
            out += [("listener", name, number) for name in names]
        return out

    def _manager_port(self) -> int | None:
        """The TLS port of the manager, if one is up and has one."""
        try:
            with Connection.connect(self._paths.home, 10.0) as connection:
                connection.ask("ping")
        except (NoManagerError, RotaError):
            return None
        port = read_notice(self._paths.home).get("port")
        return port if isinstance(port, int) else None

    async def _take_call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            words = (await asyncio.wait_for(reader.readline(), 5)).decode().split()
            now = time.time()
            if len(words) == 2 and secrets.compare_digest(words[0], self._nonce):
                self._called.append((str(writer.get_extra_info("peername")[0]), float(words[1]) - now))
                writer.write(b"ok\n")
                await writer.drain()
        writer.close()

    async def _submit(self) -> bool:
        place = shlex.quote(self._place)
        script = build_script(
            [os.path.join(self._place, "probe.py"), self._place],
            title=f"rota: a test of the site {self.verdict.site}",
            python=self._site.python,
            setup=NODE_LINES.format(place=place),
        )
        time_s = min(TIME_S, self._site.seconds("longest") or TIME_S)
        amounts = Amounts(1000, MEMORY)
        ask = Ask(self._tag, "rota-doctor", ("probe",), amounts, script, self._place, time_s=time_s)
        self._submitted = time.time()
        try:
            async with asyncio.timeout(self._left()):
                (self.verdict.native_id,) = await self._driver.submit(ask)
        except TimeoutError:
            self._say("submit", "fail", f"no answer after {format_duration(round(self._timeout_s))}", "")
            return False
        except RotaError as error:
            advice = "account, partition, qos and `native` of the site; `rota add --dry-run --on` shows what is sent"
            self._say("submit", "fail", str(error), advice)
            return False
        self._submitted = time.time()
        self._say("submit", "ok", f"job {self.verdict.native_id}", "")
        return True

    async def _wait(self) -> dict[str, Any] | None:
        """Wait for the findings of the job; None: it is over without, or the time is up."""
        known = Known("probe", self._tag, self.verdict.native_id, 0, self._submitted or 0.0, 1)
        over_at = None
        patience = LATE_FILES_S
        while self._left() > 0 and (over_at is None or time.monotonic() - over_at < patience):
            files = await self._read("result.json", "node")
            if "node" in files:
                patience = SOON_FILES_S
            if "result.json" in files:
                found: dict[str, Any] = json.loads(files["result.json"])
                return found
            for seen in await self._driver.poll([known]):
                self._state = f"{seen.verb}: {seen.reason}" if seen.reason else seen.verb
                if seen.verb in ("complete", "fail", "abort"):
                    over_at = over_at or time.monotonic()
                    self._exit = seen.outcome.exit_code if seen.outcome is not None else None
            await asyncio.sleep(LOOK_S if self._site.ssh is None else 3 * LOOK_S)
        await self._why_not(over_at is not None)
        return None

    async def _read(self, *names: str) -> dict[str, bytes]:
        paths = {os.path.join(self._place, name): name for name in names}
        try:
            return {paths[path]: data for path, data in (await self._transport.read(list(paths))).items()}
        except RotaError:
            return {}

    async def _why_not(self, over: bool) -> None:
        """Say why the job has left no findings."""
        files = await self._read("node", "messages")
        messages = files.get("messages", b"").decode(errors="replace").strip().splitlines()
        job = f"job {self.verdict.native_id}"
        if "node" in files:
            self._started(files["node"].decode(errors="replace").split())
            last = f": {messages[-2 if len(messages) > 1 else -1]}" if messages else f" ({self._state})"
            if self._exit == NO_PYTHON or any("no Python" in line for line in messages):
                self._say("python", "fail", f"{job} found none{last}", "set `python` of the site to one on the nodes")
            else:
                self._say("python", "fail", f"{job} wrote nothing more{last}", "look at the site's own job history")
        elif over:
            text = f"{job} is over ({self._state}) and has left nothing in {self._place}"
            advice = f"is {self._top} shared with the nodes, and writable there? Set `directory` to a place that is"
            self._say("directory", "fail", text, advice)
        else:
            text = f"{job} has not started after {format_duration(round(self._timeout_s))} (last seen: {self._state})"
            self._say("wait", "fail", text, "give it longer with --timeout, or use another partition")

    def _started(self, words: list[str]) -> None:
        """Take the host and the time that the job's shell has written."""
        if len(words) >= 2 and words[1].isdigit() and self._submitted is not None:
            skew = self._called[0][1] if self._called else 0.0
            self.verdict.host = words[0]
            self.verdict.wait_s = round(max(0.0, float(words[1]) - skew - self._submitted), 1)
            self._say("wait", "ok", f"started on {words[0]} after {self.verdict.wait_s:g} s in the queue", "")
            self._say("directory", "ok", f"{self._top} is shared with the node, and writable there", "")

    # ---- judging ----------------------------------------------------------------------------------------------------

    def _judge(self, found: dict[str, Any]) -> None:
        verdict = self.verdict
        if found.get("nonce") != self._nonce:
            text = f"the node sees another {self._top} than this host"
            self._say("directory", "fail", text, "set `directory` to a place that both share")
            return
        verdict.host = str(found["host"])
        verdict.python = str(found["python"])
        began = self._submitted or 0.0
        verdict.skew_s = self._skew(float(found["time"]))
        wait = float(found["time"]) - (verdict.skew_s or 0.0) - began
        verdict.wait_s = round(max(0.0, wait), 1)
        self._say("wait", "ok", f"ran on {verdict.host} {verdict.wait_s:g} s after it was submitted", "")
        self._say("directory", "ok", f"{self._top} is shared with the node, and writable there", "")
        wanted, has = self._site.python, str(found["executable"])
        advice = "" if wanted in (None, has) else f"`python` of the site is {wanted}: it is not on the node, or too old"
        self._say("python", "warn" if advice else "ok", f"Python {verdict.python} ({has})", advice)
        self._clock()
        home = bool(found.get("home"))
        self._call_back(found["tried"])
        if not home:
            text = f"the node cannot read {self._paths.home}: {found.get('home_error')}"
            status = "fail" if self._site.mode == "runners" else "warn"
            self._say("home", status, text, "runners need it (their tokens are there): set ROTA_HOME to a shared place")
        verdict.mode = "runners" if verdict.call_back is not None and home else "direct"
        self._choose(verdict.mode)

    def _skew(self, node: float) -> float | None:
        """The node's clock less ours: measured if it called, else only as far as it must be wrong."""
        if self._called:
            return round(self._called[0][1], 3)
        if self._submitted is not None and node < self._submitted - 1:
            return round(node - self._submitted, 3)
        return round(node - time.time(), 3) if node > time.time() + 1 else None

    def _clock(self) -> None:
        skew = self.verdict.skew_s
        if skew is None:
            self._say("clock", "ok", "the node's clock is not wrong by more than the job took", "")
            return
        side = "ahead of" if skew > 0 else "behind"
        text = f"the node's clock is {abs(skew):.2f} s {side} ours"
        advice = "times that jobs report will look odd; tell the administrators" if abs(skew) > SKEW_WARN_S else ""
        self._say("clock", "warn" if advice else "ok", text, advice)

    def _call_back(self, tried: list[list[Any]]) -> None:
        """Judge whether nodes can call back: at the manager's port where it has one, else at our socket."""
        deciding = "manager" if any(row[0] == "manager" for row in tried) else "listener"
        rows = [row for row in tried if row[0] == deciding]
        good = next((row for row in rows if row[3] is None), None)
        who = "the manager" if deciding == "manager" else "this host"
        wanted = self._site.mode == "runners"
        if good is None:
            why = "; ".join(f"{host}:{port}: {error}" for _, host, port, error in rows) or "no socket could be opened"
            advice = 'set listen = "ADDRESS:PORT" to one that nodes reach (a firewall may want a fixed port)'
            self._say("call-back", "fail" if wanted else "warn", f"the node cannot reach {who}: {why}", advice)
            return
        self.verdict.call_back = f"{good[1]}:{good[2]}"
        if good is rows[0]:
            self._say("call-back", "ok", f"the node reaches {who} at {self.verdict.call_back}", "")
            return
        text = f"the node reaches {who} at {good[1]}, but not at {rows[0][1]} ({rows[0][3]})"
        self._listen = f"{good[1]}:0"
        advice = f'set listen = "{self._listen}" in {self._paths.config}'
        self._say("call-back", "fail" if wanted else "warn", text, advice)

    def _choose(self, mode: str) -> None:
        has = self._site.mode
        if has == mode == "runners" and self._listen is not None:
            self._say("mode", "warn", f'mode = "runners" can be used with listen = "{self._listen}"', "")
        elif has == mode:
            self._say("mode", "ok", f'mode = "{mode}" can be used, and is', "")
        elif mode == "runners":
            advice = 'mode = "runners" would too, and is quicker with short jobs'
            self._say("mode", "ok", 'mode = "direct" works', advice)
        else:
            text = 'mode = "runners" is set, and nodes cannot call back'
            self._say("mode", "fail", text, f'set mode = "direct" in [site.{self.verdict.site}]: it needs no network')

    # ---- afterwards -------------------------------------------------------------------------------------------------

    async def clean_up(self) -> None:
        """Remove all that the test made: the job, its files and our socket."""
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(OSError):
            os.unlink(self._home_file)
        if self._submitted is None:
            await self._remove()
            return
        gentle = time.monotonic() + (10.0 if self.verdict.python else 0.0)
        deadline = time.monotonic() + END_S
        known = Known("probe", self._tag, self.verdict.native_id, 0, self._submitted, 1)
        while (live := await self._is_live()) is not False:
            if time.monotonic() > deadline:
                name = self.verdict.native_id or f"with the name rota-doctor-{self._tag}"
                command = self._driver.dialect.kill([self.verdict.native_id or "ID"], 1)
                text = f"job {name} may still be there: the batch system did not confirm its end"
                self._say("clean-up", "warn", text, shown(command))
                return
            if live and time.monotonic() > gentle:
                with contextlib.suppress(RotaError):
                    await self._driver.terminate(known)
                    await self._driver.poll([known])
            await asyncio.sleep(LOOK_S)
        await self._driver.close()
        await self._remove()

    async def _is_live(self) -> bool | None:
        """Whether the batch system lists the job as not over; None: it does not say."""
        answer = await self._driver.ask(self._driver.dialect.listing(self._driver.user), 20.0)
        if answer.code is None:
            return None
        listing = self._driver.dialect.read_listing(answer, options_of(self._site))
        if any(seen.tag == self._tag and seen.kind in LIVE for seen in listing.seen):
            return True
        return False if listing.result == "ok" else None

    async def _remove(self) -> None:
        with contextlib.suppress(RotaError):
            await self._transport.run(("rm", "-rf", "--", self._place), None, 30.0)


def _listening(bind: str) -> socket.socket:
    """A socket on one address, or on all: with one port for both families, as the manager has."""
    if bind:
        return socket.create_server((bind, 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _own_address() -> str:
    """The address of this host on the network that leads outside; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
            return str(sock.getsockname()[0])
        except OSError:
            return ""

"""A manager on a server of a cloud, used from here: `rota cloud deploy` and `teardown`.

At every moment one place has the queue. `deployment.json` in the home says which, and is written before anything is
done about it. So whatever breaks in between, the same command again goes on from there, and no manager is started in
the place that does not have the queue. The server's tag is written down before it is asked for: it is found again, and
not made twice.

What leads to the head is one ssh that forwards a socket (`forwarding.py`): commands here find the manager where they
always do.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from rota.drivers.provider import (
    ENDING,
    FAILED,
    GONE,
    RUNNING,
    STOPPED,
    CloudError,
    Order,
    Provider,
    Server,
    Thing,
    load_provider,
)
from rota.manager.lock import AlreadyRunningError, Lock, start_ticks
from rota.manager.offline.carrying import Package, pack_rota
from rota.manager.offline.deployed import AWAY, HOME, SENT, Deployment, Wanted, head_directory, read, ssh_words
from rota.manager.paths import Paths, prepare
from rota.model.errors import BusyError, NotFoundError, RefusedError, RotaError, UsageError
from rota.wire.home import MAX_SOCKET_PATH, write_private

__all__ = ["deploy", "shown", "teardown"]

BOOT_S = 1200.0
"""How long a server may take until it runs."""
SSH_S = 600.0
"""How long after that until it lets us in."""
GONE_S = 300.0
"""How long until it is gone, once it is to be."""
SETTLE_S = 30.0
"""How long after a request without an answer its server may still come to be."""
LOOK_S = 2.0
COMMAND_S = 120.0
COPY_S = 3600.0
Say = Callable[[str], None]


def shown(home: str | None) -> dict[str, Any]:
    """What is deployed, for people and programs."""
    paths = Paths(home)
    found = read(paths)
    if found is None:
        return {"deployed": False}
    return {
        "deployed": True,
        "phase": found.phase,
        "server": found.server,
        "address": found.address,
        "since": found.since,
        "connected": _forwards(paths) is not None,
    }


# ---- deploy ----------------------------------------------------------------------------------------------------------


def deploy(home: str | None, wanted: Wanted | None, say: Say) -> dict[str, Any]:
    """Bring the queue to a head server, or connect to it again; what `shown` says, and the manager's words."""
    paths = prepare(home)
    if len(os.fsencode(paths.socket)) > MAX_SOCKET_PATH:
        raise UsageError(f"{paths.home} is too long a path for a socket of ssh: set ROTA_HOME to a shorter one")
    with _alone(paths):
        found = read(paths)
        if found is not None and found.phase == HOME:
            raise RefusedError("the last deployment is not taken down yet: run `rota cloud teardown` again")
        what = found.wanted if found is not None else wanted
        if what is None:
            raise UsageError("nothing is deployed yet: say with --image and --flavor what the head server is to be")
        cloud = load_provider(what.provider, what.cloud)
        if found is None:
            _refuse_live(paths)
            found = _plan(paths, what, cloud)
        head = Head(paths, found)
        _see_server(paths, found, cloud, head, say)
        _see_address(paths, found, cloud)
        head.wait(say)
        head.install(pack_rota(found.wanted.provider), say)
        if found.phase != AWAY:
            _send(paths, found, cloud, head, say)
        head.rota("up")
        _connect(paths)
        return shown(home)


def _refuse_live(paths: Paths) -> None:
    """No job may run here: its runner would report to a queue that has moved away."""
    if not os.path.exists(paths.database):
        return
    from rota.manager.offline.looking import Reader

    with Reader(paths.home) as reader:
        counts: dict[str, int] = reader.ask("count", sel=[":active"])["counts"]
    if live := sum(counts.values()):
        raise RefusedError(f"{live} jobs still run here: wait for them (rota up; rota wait), or rota down --kill")


def _plan(paths: Paths, wanted: Wanted, cloud: Provider) -> Deployment:
    """Check all that was said against what there is, then write it down."""
    image = _named("image", wanted.image, cloud.images())
    sizes = {size.name: size for size in cloud.sizes()}
    if wanted.size not in sizes and wanted.size not in {size.id for size in sizes.values()}:
        raise NotFoundError(f"there is no flavor '{wanted.size}'; there are {', '.join(sorted(sizes))}")
    networks = cloud.networks() if wanted.networks or wanted.public else []
    inside = tuple(_named("network", name, networks) for name in wanted.networks)
    public = None if wanted.public is None else _named("network", wanted.public, networks)
    groups = cloud.groups() if wanted.groups else []
    for name in wanted.groups:
        _named("security group", name, groups)
    size = sizes[wanted.size].id if wanted.size in sizes else wanted.size
    wanted = msgspec.structs.replace(wanted, image=image, size=size, networks=inside, public=public)
    name = secrets.token_hex(4)
    found = Deployment(wanted, f"rota-head-{name}", secrets.token_hex(6), since=time.time())
    _write(paths, found)
    return found


def _named(kind: str, name: str, things: list[Thing]) -> str:
    """The id of what is called so."""
    found = [thing.id for thing in things if name in (thing.name, thing.id)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{kind} '{name}' means {len(found)} of them: give the id, one of {', '.join(found)}")
    there = ", ".join(sorted({thing.name for thing in things})) or "none"
    raise NotFoundError(f"there is no {kind} '{name}'; there are: {there}" if name else f"give a {kind}: {there}")


def _write(paths: Paths, found: Deployment) -> None:
    write_private(paths.deployment, msgspec.json.encode(found) + b"\n")
    _sync(paths.home)


def _see_server(paths: Paths, found: Deployment, cloud: Provider, head: "Head", say: Say) -> None:
    """See to it that there is one server, and that it runs."""
    deadline = time.monotonic() + BOOT_S
    server = _look(found, cloud)
    settled = time.monotonic() + SETTLE_S
    while server is None and found.asked and not found.server and time.monotonic() < settled:
        time.sleep(LOOK_S)  # the one that asked for it did not live to see the answer: it may be on its way
        server = _look(found, cloud)
    while True:
        if server is None or server.state == GONE:
            if found.phase == AWAY:
                raise NotFoundError(
                    f"the head server {found.server} is gone, and the queue with it. What was here before it was "
                    f"deployed is still in {paths.database}: `rota cloud teardown --abandon` goes back to that"
                )
            server = _ask_for(paths, found, cloud, head, say)
        if found.server != server.id:
            found.server = server.id
            _write(paths, found)
        if server.state == RUNNING:
            _destroy_others(found, cloud)
            return
        if server.state == FAILED and found.phase != AWAY:
            _start_over(paths, found, cloud, server)
        if server.state in (FAILED, STOPPED):
            raise CloudError(f"the head server {server.name} is {server.native}: {server.why or 'start it again'}")
        if time.monotonic() > deadline:
            raise BusyError(f"the head server {server.name} is still {server.native}: deploy again to wait for it")
        time.sleep(LOOK_S)
        server = _look(found, cloud)


def _look(found: Deployment, cloud: Provider) -> Server | None:
    if found.server:
        return cloud.server(found.server)
    if not found.asked:
        return None
    mine = [each for each in cloud.servers(found.owner) if each.tag == found.tag and each.state not in (ENDING, GONE)]
    return mine[0] if mine else None


def _destroy_others(found: Deployment, cloud: Provider) -> None:
    """Destroy what came of requests that were given up, and arrived nevertheless."""
    for each in cloud.servers(found.owner):
        if each.owner == found.owner and each.id != found.server and each.state not in (ENDING, GONE):
            cloud.destroy(each.id)


def _ask_for(paths: Paths, found: Deployment, cloud: Provider, head: "Head", say: Say) -> Server:
    head.make_key()
    cloud.add_key(found.owner, head.public_key())
    found.asked, found.server, found.address = True, "", ""
    _write(paths, found)
    wanted = found.wanted
    order = Order(
        found.owner, found.tag, "rota-head", wanted.size, wanted.image, wanted.networks, wanted.groups, found.owner
    )
    say("asking for a server")
    return cloud.create(order)


def _start_over(paths: Paths, found: Deployment, cloud: Provider, server: Server) -> None:
    """It failed: the next one has another tag."""
    cloud.destroy(server.id)
    found.tag, found.server, found.asked = secrets.token_hex(6), "", False
    _write(paths, found)
    raise CloudError(f"the server {server.name} failed: {server.why or server.native}; deploy again to try another")


def _see_address(paths: Paths, found: Deployment, cloud: Provider) -> None:
    if found.wanted.public is not None:
        address = cloud.publish(found.server, found.wanted.public)
    else:
        server = cloud.server(found.server)
        if server is None or not server.addresses:
            raise CloudError(f"the head server {found.server} has no address yet: deploy again in a while")
        address = server.addresses[0]
    if address != found.address:
        found.address = address
        _write(paths, found)


def _send(paths: Paths, found: Deployment, cloud: Provider, head: "Head", say: Say) -> None:
    """Bring everything there; the last deed is to write down that the queue is there now."""
    say("sending the configuration and the queue")
    found.directory = head.prepare()
    if os.path.exists(paths.config):
        with open(paths.config, "rb") as file:
            head.put(f"{found.directory}/config.toml", file.read())
    credentials = getattr(cloud, "credentials", None)
    for path, text in (credentials() if credentials is not None else {}).items():
        head.put(path, text.encode())
    if os.path.exists(paths.database):
        copy = os.path.join(head.directory, "rota.db.going")
        _copy_database(paths.database, copy)
        try:
            with open(copy, "rb") as file:
                head.put(f"{found.directory}/rota.db", file.read())
        finally:
            os.unlink(copy)
        head.send_tree(paths.output, f"{found.directory}/output")
    head.send_tree(os.path.join(paths.home, "sites"), f"{found.directory}/sites")
    found.phase = SENT
    _write(paths, found)
    found.phase = AWAY
    _write(paths, found)


# ---- teardown --------------------------------------------------------------------------------------------------------


def teardown(home: str | None, say: Say, *, kill: bool = False, abandon: bool = False) -> dict[str, Any]:
    """Bring the queue home, then destroy the server."""
    paths = prepare(home)
    with _alone(paths):
        found = read(paths)
        if found is None:
            raise NotFoundError(f"nothing is deployed from {paths.home}")
        cloud = load_provider(found.wanted.provider, found.wanted.cloud)
        head = Head(paths, found)
        kept = None
        if found.phase == AWAY and not abandon:
            kept = _bring_home(paths, found, cloud, head, kill, say)
        if found.phase == AWAY:
            found.phase = HOME
            _write(paths, found)
        _disconnect(paths)
        say("destroying the server")
        _destroy(found, cloud)
        shutil.rmtree(head.directory, ignore_errors=True)
        os.unlink(paths.deployment)
        _sync(paths.home)
        return {"server": found.server, "database": paths.database, "replaced": kept}


def _bring_home(paths: Paths, found: Deployment, cloud: Provider, head: "Head", kill: bool, say: Say) -> str | None:
    """Stop the manager there and fetch its queue; the path of what was here before."""
    server = cloud.server(found.server)
    if server is None or server.state == GONE:
        raise NotFoundError(f"the head server {found.server} is gone, and the queue with it: --abandon gives it up")
    try:
        head.check()
    except BusyError as error:
        raise BusyError(f"{error}. Its queue is not home: try again (--abandon gives it up)") from None
    say("stopping the manager there")
    if not kill and (live := head.live_jobs()):
        raise RefusedError(f"{live} jobs run: wait for them (rota wait :active), or --kill: they are run again at home")
    done = head.rota("down", *(["--kill"] if kill else []), check=False)
    if done.returncode not in (0, 3):
        raise BusyError(f"the manager on {found.address} does not stop: {done.stderr.strip()[-300:]}")
    say("bringing the queue home")
    coming = f"{paths.database}.coming"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(coming)
    head.fetch_database(coming)
    head.fetch_tree(f"{found.directory}/output", paths.output)
    head.fetch_tree(f"{found.directory}/sites", os.path.join(paths.home, "sites"))
    head.fetch_log(os.path.join(paths.home, "manager.log.head"))
    kept = None
    if os.path.exists(paths.database):
        kept = f"{paths.database}.before-{time.strftime('%Y%m%d-%H%M%S')}"
        os.rename(paths.database, kept)
        for more in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.rename(paths.database + more, kept + more)
    os.rename(coming, paths.database)
    _sync(paths.home)
    return kept


def _destroy(found: Deployment, cloud: Provider) -> None:
    """Every server of this deployment, and its key."""
    deadline = time.monotonic() + GONE_S
    ended: set[str] = set()
    while True:
        left = [each for each in cloud.servers(found.owner) if each.owner == found.owner and each.state != GONE]
        if not left:
            break
        for each in left:
            if each.id not in ended or each.state == FAILED:
                cloud.destroy(each.id)
                ended.add(each.id)
        if time.monotonic() > deadline:
            names = ", ".join(each.name for each in left)
            raise BusyError(f"still there: {names}. The queue is home; run `rota cloud teardown` again for the rest")
        time.sleep(LOOK_S)
    cloud.remove_key(found.owner)


# ---- the head --------------------------------------------------------------------------------------------------------


PROBE = """\
import os, platform, sys
print("%d.%d %s" % (*sys.version_info[:2], platform.machine()))
print(os.path.expanduser("~"))
"""
PUT = (
    'umask 077; mkdir -p "$(dirname "$1")" && cat > "$1.coming" && '
    '[ "$(sha256sum < "$1.coming" | cut -d" " -f1)" = "$2" ] && sync "$1.coming" && mv -T "$1.coming" "$1"'
)
"""Whole or not at all: what is cut off on the way has another sum."""
INSTALL = (
    'umask 077; mkdir -p "$1" && cd "$1" && [ ! -d "$2" ] || exit 0; rm -rf ".$2" && mkdir ".$2" && '
    'tar -xzf - -C ".$2" && mv -T ".$2" "$2"'
)
SNAPSHOT = """\
import hashlib, os, sqlite3, sys
path, copy = sys.argv[1], sys.argv[1] + ".going"
if os.path.exists(copy):
    os.unlink(copy)
if os.path.exists(path):
    one, other = sqlite3.connect(path), sqlite3.connect(copy)
    one.backup(other)
    other.close()
    one.close()
    with open(copy, "rb") as file:
        print(hashlib.file_digest(file, "sha256").hexdigest())
else:
    print("none")
"""


class Head:
    """The head server, by ssh."""

    def __init__(self, paths: Paths, found: Deployment) -> None:
        self._paths = paths
        self._found = found
        self.directory = head_directory(paths)
        self._program: list[str] = []

    def make_key(self) -> None:
        """Make our key, unless there is one."""
        os.makedirs(self.directory, 0o700, exist_ok=True)
        path = os.path.join(self.directory, "id_ed25519")
        if not os.path.exists(path) or not os.path.exists(f"{path}.pub"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self._found.owner, "-f", path]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)

    def public_key(self) -> str:
        """Its public half."""
        with open(os.path.join(self.directory, "id_ed25519.pub")) as file:
            return file.read().strip()

    def run(
        self, words: list[str], data: bytes = b"", timeout_s: float = COMMAND_S, check: bool = True
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run a command there. Raises BusyError if it cannot be reached, or (`check`) if the command fails."""
        where = f"{self._found.wanted.user}@{self._found.address}"
        argv = [*ssh_words(self._paths, self._found), where, "--", shlex.join(words)]
        try:
            done = subprocess.run(argv, check=False, input=data, capture_output=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise BusyError(f"the head server {self._found.address} did not answer within {timeout_s:g} s") from None
        said = done.stderr.decode(errors="replace").strip()[-300:]
        if done.returncode == 255:
            raise BusyError(f"the head server {self._found.address} cannot be reached: {said or 'ssh failed'}")
        if check and done.returncode != 0:
            raise BusyError(f"{words[0]} on the head server: exit status {done.returncode}: {said}")
        return done

    def check(self) -> None:
        """See whether it lets us in."""
        self.run(["true"], timeout_s=40)

    def wait(self, say: Say) -> None:
        """Wait until it lets us in."""
        deadline = time.monotonic() + SSH_S
        say(f"waiting for {self._found.address}")
        while True:
            try:
                return self.check()
            except BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_S)

    def install(self, package: Package, say: Say) -> None:
        """See to it that our own rota is there, with all that it needs."""
        python = self._found.wanted.python
        done = self.run([python, "-c", PROBE], check=False)
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-200:]
            raise UsageError(f"the image of the head server has no {python} ({said}): it needs {package.python}")
        there, user_home = done.stdout.decode().splitlines()[:2]
        if there != package.python:
            raise UsageError(f"the head server has Python {there}, and what is sent from here is for {package.python}")
        lib = f"{user_home}/.rota-head/lib"
        probe = ["sh", "-c", '[ -d "$1/$2" ] && echo there || true', "sh", lib, package.name]
        if self.run(probe).stdout.strip() != b"there":
            say(f"sending rota ({len(package.data()) >> 20} MiB)")
            self.run(["sh", "-c", INSTALL, "sh", lib, package.name], package.data(), COPY_S)
        self._program = ["env", f"PYTHONPATH={lib}/{package.name}", python, "-m", "rota"]

    def prepare(self) -> str:
        """Make the home there; its path."""
        script = 'umask 077; mkdir -p "$HOME/.rota" && cd "$HOME/.rota" && rm -f rota.db-wal rota.db-shm && pwd -P'
        return self.run(["sh", "-c", script]).stdout.decode().strip()

    def put(self, path: str, data: bytes) -> None:
        """Write a file there, whole or not at all; a path that is not absolute is below the user's home."""
        self.run(["sh", "-c", PUT, "sh", path, hashlib.sha256(data).hexdigest()], data, COPY_S)

    def rota(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run rota there."""
        program = self._program or self._installed()
        done = self.run([*program, "--home", self._found.directory, *words], timeout_s=300, check=check)
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def _installed(self) -> list[str]:
        self.install(pack_rota(self._found.wanted.provider), lambda words: None)
        return self._program

    def live_jobs(self) -> int:
        """How many jobs run, as the queue there has it."""
        done = self.rota("jobs", ":active", "--json", check=False)
        if done.returncode not in (0, 1, 3):
            raise BusyError(f"the queue on the head server cannot be read: {done.stderr.strip()[-300:]}")
        return len(done.stdout.splitlines())

    def fetch_database(self, path: str) -> None:
        """Copy the queue; what has arrived is what was sent, or it raises."""
        there = f"{self._found.directory}/rota.db"
        said = self.run([self._found.wanted.python, "-c", SNAPSHOT, there], timeout_s=COPY_S).stdout.decode().strip()
        if said == "none":
            raise NotFoundError(f"there is no queue on the head server ({there})")
        data = self.run(["cat", f"{there}.going"], timeout_s=COPY_S).stdout
        if hashlib.sha256(data).hexdigest() != said:
            raise BusyError("the queue did not arrive whole: try again")
        write_private(path, data)

    def send_tree(self, here: str, there: str) -> None:
        """Copy a directory there."""
        if os.path.isdir(here):
            data = subprocess.run(["tar", "-czf", "-", "-C", here, "."], check=True, capture_output=True).stdout
            self.run(["sh", "-c", 'umask 077; mkdir -p "$1" && tar -xzf - -C "$1"', "sh", there], data, COPY_S)

    def fetch_tree(self, there: str, here: str) -> None:
        """Copy a directory from there, over what is here."""
        os.makedirs(here, 0o700, exist_ok=True)
        data = self.run(["sh", "-c", 'mkdir -p "$1"; tar -czf - -C "$1" .', "sh", there], timeout_s=COPY_S).stdout
        subprocess.run(["tar", "-xzf", "-", "-C", here], input=data, check=True)

    def fetch_log(self, here: str) -> None:
        """Copy the manager's log."""
        words = ["sh", "-c", 'tail -c 10000000 "$1" 2>/dev/null || true', "sh", f"{self._found.directory}/manager.log"]
        write_private(here, self.run(words, timeout_s=COPY_S).stdout)


# ---- this side -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _alone(paths: Paths) -> Iterator[None]:
    """No manager is up here, and no second one of these commands."""
    try:
        lock = Lock(paths)
    except AlreadyRunningError as error:
        raise RefusedError(f"{error}: stop it first (rota down), then the queue can go") from None
    with lock:
        yield


def _copy_database(path: str, copy: str) -> None:
    """A whole copy, with what is still in the log of the database."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(copy)
    with contextlib.closing(sqlite3.connect(path)) as one, contextlib.closing(sqlite3.connect(copy)) as other:
        one.backup(other)
    os.chmod(copy, 0o600)


def _sync(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _forwards(paths: Paths) -> int | None:
    """The process that forwards, if it lives."""
    try:
        with open(os.path.join(head_directory(paths), "forward.json")) as file:
            row = json.load(file)
        return int(row["pid"]) if start_ticks(int(row["pid"])) == row["start"] else None
    except (OSError, ValueError, KeyError):
        return None


def _disconnect(paths: Paths) -> None:
    """End the process that forwards."""
    from rota.manager.daemon import stop

    pid = _forwards(paths)
    if pid is not None:
        stop(pid, start=start_ticks(pid))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(paths.socket)


def _connect(paths: Paths) -> None:
    """Forward the socket, anew; returns once a manager has answered through it."""
    from rota.wire.client import Connection

    _disconnect(paths)
    log = os.open(os.path.join(head_directory(paths), "forward.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        subprocess.Popen(
            [sys.executable, "-m", "rota.manager.offline.forwarding", "--home", paths.home],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
    finally:
        os.close(log)
    deadline = time.monotonic() + 60
    while True:
        try:
            with Connection.connect(paths.home) as connection:
                _ = connection.manager
                return
        except RotaError as error:
            if time.monotonic() > deadline:
                raise BusyError(f"the manager is up on the head server, and cannot be reached: {error}") from None
            time.sleep(0.1)

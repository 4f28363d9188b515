"""`rota pilot --format qcg` and `--qcg`: what QCG-PilotJob's users bring, its request files and its client."""

import argparse
import os
import time

from msgspec.structs import replace

from rota.cli.parser import Parser
from rota.cli.pilot import Flight
from rota.cli.run import Interrupts
from rota.model.errors import UsageError
from rota.wire.client import Connection, NoManagerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rota.manager.offline.piloting import Pilot
    from rota.qcg.desk import Desk
    from rota.qcg.server import Server
    from rota.submission import Submission

__all__ = ["configure_qcg", "is_qcg", "make_flight"]

ADDRESS = "qcg.address"
"""The file in the home that says where QCG's clients find the pilot."""
VARIABLE = "QCG_PM_ZMQ_ADDRESS"
PING_S = 5.0


def configure_qcg(parser: Parser) -> None:
    """The options for what QCG-PilotJob's users bring."""
    add = parser.add_argument_group("coming from QCG-PilotJob").add_argument
    add("--format", choices=("qcg",), help="FILE has requests of QCG-PilotJob, as its --file-path takes them")
    add("--qcg", action="store_true", help="serve QCG's own client until it says finish (needs rota[qcg])")
    add(
        "--too-large",
        choices=("refuse", "fail"),
        default="refuse",
        help="a job that asks for more than there is: its request is refused (default), or it alone is FAILED",
    )
    add("--qcg-tcp", metavar="HOST:PORT", help="the same over TCP: anybody who reaches the port can run commands")


def is_qcg(args: argparse.Namespace) -> bool:
    """Whether any of these options was given."""
    return bool(args.format or args.qcg or args.qcg_tcp)


def make_flight(args: argparse.Namespace, pilot: "Pilot") -> Flight:
    """A pilot for QCG's jobs; everything that can be wrong is found here."""
    from rota.qcg.files import check_requests, read_file
    from rota.qcg.translating import Room

    words = [word for word in (*args.words, args.file) if word and word != "--"]
    if args.format is None and words:
        raise UsageError(f"--qcg takes no command; for a file of requests: --qcg --format qcg {words[0]}")
    if args.format is not None and len(words) != 1 and not args.resume:
        raise UsageError("--format qcg: give one file of requests")
    nodes = tuple(node.cores for node in pilot.given.used)
    room = Room(nodes, os.path.abspath(args.cwd or "."), args.policy or "qcg", args.too_large)
    requests = read_file(words[0]) if words else []
    if requests:
        check_requests(words[0], requests, room)
    return QcgFlight(args, pilot, room, requests, words[0] if words else "")


class QcgFlight(Flight):
    """One pilot for QCG's jobs."""

    def __init__(self, args: argparse.Namespace, pilot: "Pilot", room: "Any", requests: "list[Any]", path: str) -> None:
        super().__init__(args, pilot)
        self._room = room
        self._requests = requests
        self._path = path
        self._server: Server | None = None
        self._serves = bool(args.qcg or args.qcg_tcp)

    def execute(self, submission: "Submission | None") -> int:
        """Run everything to the end; the exit status."""
        try:
            return super().execute(submission)
        finally:
            if self._server is not None:
                self._server.close()
                path = os.path.join(self.args.home, ADDRESS)
                if os.path.exists(path):
                    os.unlink(path)

    def _begin(self, resume: bool) -> Connection:
        if self._serves and self._server is None and not _is_up(self.args.home, resume):
            from rota.qcg.server import Server

            os.makedirs(self.args.home, 0o700, exist_ok=True)
            self._server = Server(self.args.home, self.args.qcg_tcp)
            self.pilot = replace(self.pilot, env={**self.pilot.env, VARIABLE: self._server.address})
            if self.args.qcg_tcp:
                self._say("warning: --qcg-tcp is neither encrypted nor asks who it is: who reaches the port is you")
        return super()._begin(resume)

    def _to_the_end(self, submission: "Submission | None", interrupts: Interrupts) -> int:
        from rota.api import Client
        from rota.manager.paths import Paths
        from rota.qcg.desk import Desk
        from rota.qcg.feed import Feed
        from rota.qcg.registry import Registry

        interrupts.disarm()
        with self._begin(bool(self.args.resume)):
            pass
        interrupts.arm()
        self._set_timer()
        feed = Feed(self.args.home)
        client = Client(self.args.home, start=False)
        try:
            registry = Registry(os.path.join(Paths(self.args.home).home, "qcg.jobs"))
            desk = Desk(client, registry, self._room, feed.follow)
            first = self._hand_in(desk)
            if self._server is not None:
                _write_address(os.path.join(self.args.home, ADDRESS), self._server.address)
                self._say(f"QCG's clients find it with {VARIABLE}={self._server.address}")
                self._server.serve(desk, feed, _Pinging(client).tick)
        finally:
            feed.close()
            client.close()
        with Connection.connect(self.args.home) as connection:
            if self._server is None:
                self._follow(connection, self._left(connection), None)
            with Connection.connect(self.args.home) as other:
                code = self._sum_up(other, first)
        return code or int(any(entry.unsent for entry in registry.entries.values()))

    def _hand_in(self, desk: "Desk") -> int:
        """Give the requests of the file to the desk; the first batch that is new."""
        first = 0
        for at, request in enumerate(self._requests):
            answer = desk.answer(request)
            if answer["code"]:
                self._say(f"warning: {self._path}: [{at}]: {answer['message']}")
            numbers = [entry.batch for entry in desk.registry.entries.values() if entry.batch]
            first = first or min(numbers, default=0)
        for entry in desk.registry.entries.values():
            if entry.why:
                self._say(f"warning: {entry.name} is {entry.never}: {entry.why}")
        return first


class _Pinging:
    """Notices a manager that is gone."""

    def __init__(self, client: "Any") -> None:
        self._client = client
        self._next = time.monotonic() + PING_S

    def tick(self) -> None:
        """Ask whether it is there, now and then."""
        if time.monotonic() > self._next:
            self._client.ask("ping")
            self._next = time.monotonic() + PING_S


def _is_up(home: str, resume: bool) -> bool:
    """Whether a pilot runs in this home already, so that its sockets are not ours."""
    try:
        with Connection.connect(home) as connection:
            _ = connection.manager
            return not resume
    except NoManagerError:
        return False


def _write_address(path: str, address: str) -> None:
    """Say where clients find us, whole or not at all."""
    beside = f"{path}.{os.getpid()}"
    number = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(number, "w") as file:
        file.write(address + "\n")
    os.replace(beside, path)

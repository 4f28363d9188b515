"""`rota pilot`: run commands to the end inside one allocation, on all its nodes."""

import argparse
import os
import signal
import sys
import time

from rota.cli.link import take_down
from rota.cli.parser import Parser
from rota.cli.run import Interrupts
from rota.cli.show import jobs_word
from rota.cli.submitting import configure_submission, pairs, print_dry_run, say_about, submission_of
from rota.cli.submitting import number as whole_number
from rota.cli.summary import print_summary
from rota.cli.wait import all_well
from rota.manager.paths import PILOT_HOME
from rota.model.amounts import format_duration, parse_duration
from rota.model.errors import RotaError, UsageError
from rota.wire.client import Connection, LostError, NoManagerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from rota.manager.offline.piloting import Pilot
    from rota.submission import Submission

OUT_OF_TIME = 75
"""The exit status if the allocation ended first, and there is a rest to go on with (EX_TEMPFAIL of sysexits.h)."""
ENDS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""What batch systems send before they end an allocation."""
UNABLE = 5
DESCRIPTION = f"""\
Run commands to the end inside an allocation of Slurm, PBS, LSF or Grid Engine, on all its nodes; elsewhere on the
hosts of --nodes, or on this machine. What jobs add meanwhile is run too.

Exit status: 0 all well, 1 jobs failed, {OUT_OF_TIME} the allocation ended first: `rota pilot --resume` in the
next one goes on with exactly the rest. TERM and USR1 end it as the time limit does."""
LEFT = (":waiting", ":pending", ":active")
LOST_S = 120.0
"""If nothing is left but what ran on nodes that have been silent for so long, the pilot ends."""
LOOKED_AT = 20
"""Batches that are asked why they wait."""
SUMMARIES = 20
"""The most batches that are summed up one by one."""


def configure(parser: Parser, command: str) -> None:
    """The options of `pilot`."""
    from rota.cli.pilot_qcg import configure_qcg

    add = parser.add_argument
    add("--resume", action="store_true", help="go on with what an earlier allocation left, and only with that")
    add("--join", action="store_true", help="lend the allocation to a manager that is up; takes no command")
    add("--hosts", metavar="HOST:CORES,…", help="the pilot's nodes, as in node1:8,node2:8; also --nodes with hosts")
    add("--reserve-core", action="store_true", help="leave one core of this node to the pilot itself")
    add("--offer", metavar="NAME=N", action="append", default=[], help="a named resource that each node has (repeat)")
    add("--offer-in-all", metavar="NAME=N", action="append", default=[], help="one that all nodes have together")
    add("--ends-in", metavar="TIME", help="when the allocation ends, where its batch system does not say: 90m, 12h …")
    add("--margin", metavar="TIME", help="end what runs so long before that (default 1m, or a tenth of what is left)")
    add(
        "--share",
        metavar="HOW",
        help="share all cores out among the jobs: maximum-iters[:LEAST] (as many at one time as can be), "
        "split-into[:PARTS] (equal parts)",
    )
    add("--show", dest="show", action="store_const", const="ended", help="print each job's output as it ends")
    add("--dry-run", action="store_true", help="show the nodes, and what would be run")
    add("-q", "--quiet", action="store_true", help="no progress, and a summary only of what failed")
    parser.json("the summary")
    configure_submission(parser)
    configure_qcg(parser)
    _let_nodes_name_hosts(parser)
    parser.options()[
        "--home"
    ].help = f"the pilot's own directory (default: $ROTA_HOME or {PILOT_HOME}): nodes must see it"
    parser.description = DESCRIPTION
    parser.examples(
        "rota pilot -f commands.txt                  # in a batch script: sbatch -N 4 --exclusive …",
        "rota pilot --array 1-1000 -- ./simulate {}",
        "rota pilot --nodes 2 -- mpirun ./solve      # each job on two nodes",
        "rota pilot --nodes node1:8,node2:8 -f commands.txt    # no batch system: by ssh",
        "rota pilot --resume                         # in the next allocation",
    )


def _let_nodes_name_hosts(parser: Parser) -> None:
    """Let `--nodes` take the pilot's own hosts too: they have a colon, and a number of nodes has none."""

    action = parser.options()["--nodes"]
    action.type, action.metavar = _nodes_or_hosts, "N|HOST:CORES,…"
    action.help = f"{action.help}; or the hosts of the pilot, as in node1:8,node2:8"


def _nodes_or_hosts(text: str) -> "int | str":
    return int(text) if text.isascii() and text.isdigit() else text


def _names_hosts(given: "int | str | None") -> bool:
    return isinstance(given, str) and not set(given) <= set("0123456789.")


def execute(args: argparse.Namespace) -> int:
    """Find the allocation, run everything to the end there, sum up."""
    from rota.manager.offline.piloting import make_pilot, pilot_home

    if args.remove_on:
        raise UsageError("--remove-on: a pilot sums its jobs up and needs them on the books; use rota run or rota add")
    if args.resume and (args.words or args.file):
        raise UsageError("--resume goes on with what is left: it takes no command")
    if args.join:
        return _join(args)
    args.home = pilot_home(args.home)
    if _names_hosts(args.nodes):
        if args.hosts is not None:
            raise UsageError(f"--hosts {args.hosts} and --nodes {args.nodes}: name the hosts once")
        args.hosts, args.nodes = args.nodes, None
    from rota.cli.pilot_qcg import is_qcg, make_flight

    submission = None if args.resume or is_qcg(args) else submission_of(args)
    pilot = make_pilot(
        os.environ,
        nodes=args.hosts,
        reserve=args.reserve_core,
        ends_in_s=_seconds("--ends-in", args.ends_in),
        margin_s=_seconds("--margin", args.margin),
        node_resources=pairs("--offer", args.offer, whole_number),
        resources=pairs("--offer-in-all", args.offer_in_all, whole_number),
    )
    if args.share is not None:
        if submission is None:
            raise UsageError("--resume goes on with what is left: --share was said before")
        from rota.submission.sharing import share_out

        share_out(submission, args.share, sum(node.cores for node in pilot.given.used))
    if args.dry_run:
        for line in lines_about(pilot):
            print(line)
        if submission is not None:
            print_dry_run(args, submission)
        return 0
    flight = make_flight(args, pilot) if is_qcg(args) else Flight(args, pilot)
    return flight.execute(submission)


def _join(args: argparse.Namespace) -> int:
    """Lend the allocation to a manager that is up."""
    from rota.cli.lending import lend
    from rota.manager.offline.piloting import make_pilot
    from rota.manager.paths import default_home

    if args.resume or args.words or args.file or args.dry_run or args.share:
        raise UsageError("--join lends this allocation to a manager, which has its own jobs: it takes no command")
    hosts = args.hosts if args.hosts is not None else args.nodes if _names_hosts(args.nodes) else None
    pilot = make_pilot(
        os.environ,
        nodes=hosts,
        reserve=args.reserve_core,
        ends_in_s=_seconds("--ends-in", args.ends_in),
        margin_s=_seconds("--margin", args.margin),
        node_resources=pairs("--offer", args.offer, whole_number),
        resources=pairs("--offer-in-all", args.offer_in_all, whole_number),
    )
    return lend(os.path.abspath(args.home or default_home()), pilot, args.quiet)


def _seconds(option: str, text: "str | None") -> "int | None":
    try:
        return None if text is None else parse_duration(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def lines_about(pilot: "Pilot") -> "list[str]":
    """The allocation, in words."""
    given = pilot.given
    cores = sum(node.cores for node in given.used)
    gpus = sum(node.gpus for node in given.used)
    of = f"{given.system} job {given.job}: " if given.job is not None else ""
    counts = f"{len(given.used)} node{'' if len(given.used) == 1 else 's'}, {cores} core{'' if cores == 1 else 's'}"
    what = f"{of}{counts}" + (f", {gpus} gpus" if gpus else "")
    if given.until is not None:
        left = max(0, int(given.until - time.time()))
        what += f"; it ends in {format_duration(left)}, and jobs do {format_duration(round(pilot.margin_s))} before"
    elif given.job is not None:
        what += "; nobody says when it ends (--ends-in)"
    return [*(f"{line}; the others go on" for line in pilot.away), what]


class Flight:
    """One `rota pilot`."""

    def __init__(self, args: argparse.Namespace, pilot: "Pilot") -> None:
        self.args = args
        self.pilot = pilot
        self.began = time.monotonic()
        self.started = False
        """Whether the manager is ours to take down."""
        self.found = False
        """Whether it was there: its pilot was killed, and soon it ends."""
        self._nodes = Nodes()

    def execute(self, submission: "Submission | None") -> int:
        """Run everything to the end; the exit status."""
        with Interrupts(*ENDS, signal.SIGALRM) as interrupts:
            try:
                try:
                    code = self._to_the_end(submission, interrupts)
                except (LostError, NoManagerError):
                    if not self.found:
                        raise
                    code = self._to_the_end(None, interrupts)  # it was just about to end
            except KeyboardInterrupt:
                return self._ended(interrupts.seen)
            except OutOfTimeError:
                return self._ended(0)
            except NodeLostError as error:
                return self._ended(0, str(error))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            self._take_down()
            return code

    def _to_the_end(self, submission: "Submission | None", interrupts: Interrupts) -> int:
        interrupts.disarm()
        with self._begin(submission is None) as connection:
            interrupts.arm()
            self._set_timer()
            if submission is not None:
                added = [self._add(connection, submission, interrupts)]
            elif not (added := self._left(connection)) and not self.args.quiet:
                self._say("nothing is left to do")
            self._follow(connection, added, submission)
        with Connection.connect(self.args.home) as connection:
            return self._sum_up(connection, 0 if submission is None else added[0])

    def _set_timer(self) -> None:
        if (stop_at := self.pilot.stop_at) is not None:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, stop_at - time.time()))

    # ---- the beginning ----------------------------------------------------------------------------------------------

    def _begin(self, resume: bool) -> Connection:
        """Start the manager; to resume, one that is there will do: its pilot was killed."""
        from rota.manager.offline.piloting import check_home, launch

        home = self.args.home
        before = check_home(home)
        try:
            connection = Connection.connect(home)
            if resume and before is not None and before.given.job != self.pilot.given.job:
                take_down(connection, kill=True)  # it has outlived its allocation
                connection.close()
                raise NoManagerError("it was of another allocation")
        except NoManagerError:
            left = self._left_in_store()
            if resume and left is None:
                raise UsageError(f"--resume: nothing was ever added in {home}: give --home, or what to run") from None
            if not resume and left:
                raise UsageError(
                    f"{jobs_word(left)} of an earlier allocation are left in {home}: go on with them with "
                    "rota pilot --resume, or give another --home"
                ) from None
            launch(home, self.pilot, self._say)
            self.started, self.found = True, False
            lines = lines_about(self.pilot)
            self._say(*(lines[:-1] if self.args.quiet else lines))  # what is missing is always said
            return Connection.connect(home)
        if not resume:
            there = connection.manager
            connection.close()
            raise UsageError(
                f"a pilot runs in {home} already, on {there.get('host')} (pid {there.get('pid')}): rota add --home "
                "adds to it, rota pilot --resume follows it, or give another --home"
            )
        self.started = self.found = True
        return connection

    def _left_in_store(self) -> "int | None":
        """How many jobs are not settled, by the store; None: no job was ever added."""
        from rota.manager.offline.looking import Reader
        from rota.manager.paths import Paths

        if not os.path.exists(Paths(self.args.home).database):
            return None
        with Reader(self.args.home) as reader:
            if not reader.ask("count", sel=[])["jobs"]:
                return None
            return int(reader.ask("count", sel=list(LEFT))["jobs"])

    def _add(self, connection: Connection, submission: "Submission", interrupts: Interrupts) -> int:
        from rota.submission import send

        try:
            answer = send(connection, submission, interrupts.disarm)
        except BaseException:
            self._take_down()
            raise
        interrupts.arm()
        say_about(self.args, submission, answer)
        return int(answer["batch"])

    def _left(self, connection: Connection) -> "list[int]":
        """The batches with jobs that are not settled."""
        return [int(row["id"]) for row in _batches(connection, *LEFT)]

    # ---- to the end -------------------------------------------------------------------------------------------------

    def _follow(self, connection: Connection, batches: "list[int]", submission: "Submission | None") -> None:
        """Follow these batches, and what is added meanwhile, until nothing is left."""
        followed: set[int] = set()
        spec = submission.spec if submission is not None else None
        while todo := [number for number in batches if number not in followed] or self._left(connection):
            for number in todo:
                _follower(self.args, number, spec, self._nodes).follow(connection)
                followed.add(number)
                spec = None
                connection = self._kept(connection)

    def _kept(self, connection: Connection) -> Connection:
        """The connection, or another if it was lost meanwhile."""
        try:
            connection.ask("ping")
        except LostError:
            return Connection.connect(self.args.home)
        return connection

    def _sum_up(self, connection: Connection, first: int) -> int:
        """Print the summaries of all batches from this one on; the exit status."""
        rows = {int(row["id"]): row["counts"] for row in _batches(connection) if int(row["id"]) >= first}
        elapsed_s = time.monotonic() - self.began
        for number in sorted(rows)[:SUMMARIES]:
            print_summary(self.args, connection, number, rows[number], elapsed_s, home=self.args.home)
        if len(rows) > SUMMARIES and not self.args.json:
            print(f"… and {len(rows) - SUMMARIES:,} more batches: rota status --home {self.args.home}")
        return 0 if all(map(all_well, rows.values())) else 1

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _ended(self, number: int, lost: str = "") -> int:
        """End what runs, as the end of its allocation does, and say how to go on."""
        why = "interrupted" if number == signal.SIGINT else "the allocation ends"
        if not number:
            why = lost or "what is left asks for more time than this allocation has"
        if number in (signal.SIGTERM, signal.SIGHUP, *ENDS):
            why = f"the allocation ends (told by {signal.Signals(number).name})"
        self._say(f"{why}: what runs is ended, and stays queued" if number else why)
        self._take_down()
        left = self._left_in_store()
        if left is None:
            self._say("nothing was added: begin again")
            return 130 if number == signal.SIGINT else UNABLE
        if left:
            self._say(f"{jobs_word(left)} left; in the next allocation: rota pilot --home {self.args.home} --resume")
        else:
            self._say(f"no job is left; see: rota status --home {self.args.home}")
        return 130 if number == signal.SIGINT else OUT_OF_TIME

    def _take_down(self) -> None:
        if not self.started:
            return
        try:
            with Connection.connect(self.args.home) as connection:
                take_down(connection, kill=True)
        except NoManagerError:
            pass  # it has ended by itself, for the same reason
        except KeyboardInterrupt:
            self._say("the manager was told to end; this did not wait for it")
        except RotaError as error:
            self._say(f"the manager of this pilot: {error}")

    def _say(self, *lines: str) -> None:
        for line in lines:
            print(f"rota: {line}", file=sys.stderr)


class OutOfTimeError(Exception):
    """Nothing runs, and what waits needs more time than the allocation has."""


class NodeLostError(Exception):
    """Nothing runs but on nodes that are silent for long: nobody here can say what became of it."""


class Nodes:
    """Says, once each, which nodes have fallen silent, and which are heard of again."""

    def __init__(self) -> None:
        self._silent: set[str] = set()

    def look(self, connection: Connection) -> None:
        """Say what has changed; NodeLostError if all that is left is on nodes that are silent."""
        rows = connection.ask("runners")["runners"]
        live = {row["host"]: row for row in rows if row["state"] in ("SERVING", "DRAINING", "MISSING")}
        silent = {host for host, row in live.items() if row["state"] == "MISSING"}
        for host in sorted(silent - self._silent):
            jobs = jobs_word(live[host]["jobs"])
            print(
                f"rota: {host} has not been heard of for {live[host]['silent_s']:.0f} s ({jobs} there); "
                "the other nodes go on",
                file=sys.stderr,
            )
        for host in sorted(self._silent - silent):
            if host in live:
                print(f"rota: {host} is heard of again", file=sys.stderr)
        self._silent = silent
        if not silent or min(live[host]["silent_s"] for host in silent) < LOST_S:
            return
        missing = connection.ask("count", sel=[":missing"])["jobs"]
        if missing and not connection.ask("count", sel=[":pending", ":starting", ":running", ":killing"])["jobs"]:
            names = ", ".join(sorted(silent))
            raise NodeLostError(f"{jobs_word(missing)} ran on {names}, which is silent; nothing else can run")


def _batches(connection: Connection, *selectors: str) -> "list[dict[str, Any]]":
    rows: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        answer = connection.ask("status", sel=list(selectors), after=after)
        rows += answer["batches"]
        after = answer.get("next")
    return rows


def _follower(args: argparse.Namespace, batch: int, spec: "Any", nodes: Nodes) -> "Any":
    from rota.cli.following import Follower

    class PilotFollower(Follower):
        """Gives up once nothing can be started any more: the rest of the allocation would be wasted."""

        def _why(self, connection: Connection, counts: "Mapping[str, int]") -> str:
            nodes.look(connection)
            why = super()._why(connection, counts)
            if why and _is_out_of_time(connection):
                raise OutOfTimeError
            return why

    return PilotFollower(args, args.home, batch, spec)


def _is_out_of_time(connection: Connection) -> bool:
    """Whether nothing runs, and all that waits asks for more time than is left: what else could run would do so."""
    if connection.ask("count", sel=[":waiting", ":active"])["jobs"]:
        return False
    rows = _batches(connection, ":pending")
    for row in rows[:LOOKED_AT]:
        (job,) = connection.ask("jobs", sel=[str(row["id"]), ":pending"], limit=1)["jobs"] or [None]
        verdicts = [] if job is None else connection.ask("explain", job=job["id"])["verdicts"]
        nodes = [each["code"] for each in verdicts if each.get("level") == "node"]
        if not nodes or len(nodes) < len(verdicts) or not set(nodes) <= {"too-short", "ended"}:
            return False
    return bool(rows)

"""`rota doctor`: is this installation sound? Every check says what it saw and what to do."""

import os
import re
import shutil
import sys
import tempfile
import time

from rota.cli.link import take_down
from rota.cli.parser import Parser
from rota.cli.show import clean, colours, print_json, seconds, size, tint
from rota.manager.paths import Paths, prepare
from rota.model.errors import RotaError, UsageError
from rota.wire.client import Connection, NoManagerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any

JOB_S = 60.0
"""How long the trial job may take."""
REFUSED_S = 86_400.0
"""Who was turned away longer ago is not told."""
SPACE_WARN = 1 << 30
SPACE_FAIL = 64 << 20


def configure(parser: Parser, command: str) -> None:
    """The options of `doctor`."""
    parser.add_argument("site", nargs="?", metavar="SITE", help="test this site with one tiny job of its batch system")
    parser.add_argument("--no-job", action="store_true", help="do not run a trial job")
    parser.add_argument("--repair", action="store_true", help="bring back a queue whose log cannot be understood")
    parser.add_argument("--timeout", metavar="TIME", default="5m", help="of SITE: the longest it may take (default 5m)")
    parser.json('{"ok": …, "checks": [{"name", "status", "text", "advice"}]}')
    parser.examples("rota doctor", "rota doctor --json", "rota doctor slurm --timeout 30m")


def execute(args: "argparse.Namespace") -> int:
    """Run all checks; exit status 1 if one fails, 5 for a site that cannot be used as it is configured."""
    if args.repair:
        return repair_queue(args)
    if args.site is not None:
        return examine_site(args)
    doctor = Doctor(args)
    for name, check in doctor.checks():
        begin = len(doctor.found)
        try:
            check()
        except (RotaError, OSError) as error:
            doctor.say(name, "fail", str(error))
        for row in doctor.found[begin:] if not args.json else ():
            show(row)
    well = not any(row["status"] == "fail" for row in doctor.found)
    if args.json:
        print_json({"ok": well, "checks": doctor.found})
    return 0 if well else 1


def repair_queue(args: "argparse.Namespace") -> int:
    """Bring back a queue whose log cannot be understood."""
    from rota.manager.offline.repairing import repair

    told = repair(args.home)
    if args.json:
        print_json(told)
    elif told["from"] is None:
        print("nothing to repair: the whole log can be understood")
    else:
        print(f"entries from {told['from']} on ({told['dropped']}) were taken out and are kept in {told['kept']}")
        print(f"the queue as it was is kept as {told['replaced']}")
        print("starts are paused: look at rota jobs, then rota resume --as restore")
    return 0


def examine_site(args: "argparse.Namespace") -> int:
    """Test one site from end to end."""
    from rota.manager.offline.probing import probe
    from rota.model.amounts import parse_duration

    if args.no_job:
        raise UsageError("--no-job is for `rota doctor` without a site: a site is tested by a job")
    found: list[dict[str, Any]] = []

    def say(name: str, status: str, text: str, advice: str) -> None:
        found.append({"name": name, "status": status, "text": text, "advice": advice})
        if not args.json:
            show(found[-1])

    verdict = probe(args.home, args.site, parse_duration(args.timeout), say)
    well = verdict.mode is not None and not any(row["status"] == "fail" for row in found)
    if args.json:
        fields = {name: getattr(verdict, name) for name in verdict.__struct_fields__}
        print_json({"ok": well, **fields, "checks": found})
    return 0 if well else 5


def show(row: "dict[str, Any]") -> None:
    """Print what a check found, and below it what to do."""
    word = f"{row['status']:<4}"
    if colours(sys.stdout):
        word = tint({"ok": "COMPLETED", "warn": "MISSING", "fail": "FAILED"}[row["status"]], word)
    print(f"{word}  {row['name']:<9} {row['text']}")
    if row["advice"]:
        print(f"                → {row['advice']}")
    sys.stdout.flush()


class Doctor:
    """The checks of an installation, and what they found."""

    def __init__(self, args: "argparse.Namespace") -> None:
        self.paths = Paths(args.home)
        self.found: list[dict[str, Any]] = []
        self._no_job = args.no_job
        self._up = False

    def checks(self) -> "list[tuple[str, Callable[[], None]]]":
        """All checks with their names, in order."""
        return [
            ("python", self.python), ("machine", self.machine), ("home", self.home), ("space", self.space),
            ("config", self.config), ("plugins", self.plugins),
            ("shell", self.shell), ("manager", self.manager), ("quarantine", self.quarantine),
            ("greetings", self.greetings), ("job", self.job),
        ]  # fmt: skip

    def say(self, name: str, status: str, text: str, advice: str = "") -> None:
        """Keep a finding."""
        self.found.append({"name": name, "status": status, "text": text, "advice": advice})

    def quarantine(self) -> None:
        """Check that nothing made the manager's core fail."""
        try:
            names = sorted(os.listdir(self.paths.quarantine))
        except FileNotFoundError:
            return
        if names:
            text = f"{len(names)} things were refused because the manager failed at them: {', '.join(names[-3:])}"
            advice = f"this is a bug, please report it with {self.paths.quarantine}/{names[-1]}; then remove them"
            self.say("quarantine", "warn", text, advice)

    def greetings(self) -> None:
        """Check whether anybody was turned away of late: without a right token, or too often."""
        from rota.cli.token import records

        since, refused, locked, last = time.time() - REFUSED_S, 0, 0, None
        addresses: set[str] = set()
        for row in records(self.paths):
            if row["action"] not in ("greet", "lock-out") or row["outcome"] == "ok" or row["at"] < since:
                continue
            more = re.fullmatch(r"(\d+) more", row["target"])
            locked += row["action"] == "lock-out"
            refused += int(more[1]) if more else row["action"] == "greet"
            addresses |= {clean(row["address"])} - {""}
            last = row["at"]
        if last is None:
            return
        shown = ", ".join(sorted(addresses)[:3]) + (f" and {len(addresses) - 3} others" if len(addresses) > 3 else "")
        text = f"{refused} greetings refused and {locked} lock-outs in the last day, from {shown}; the last at "
        text += time.strftime("%H:%M:%S", time.localtime(last))
        advice = "rota audit --refused shows them; a runner or client of yours that is among them has no right token"
        self.say("greetings", "warn", text, advice)

    def python(self) -> None:
        """Check the interpreter and rota's own version."""
        from rota import __version__

        text = f"Python {sys.version.split()[0]} ({sys.executable}), rota {__version__}"
        self.say("python", "ok", text)

    def machine(self) -> None:
        """Check what the machine has."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.say("machine", "ok", f"{os.uname().nodename}: {cores} cores for this process, {size(memory)} memory")
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files < 256:
            self.say("machine", "warn", f"only {files} open files are allowed", "ulimit -n 1024")

    def home(self) -> None:
        """Check the home: owner, mode, kind of file system."""
        from rota.manager.filesystem import kind_of, warning_for

        home = self.paths.home
        if not os.path.lexists(home):
            parent = os.path.dirname(home)
            while not os.path.isdir(parent):
                parent = os.path.dirname(parent)
            writable = os.access(parent, os.W_OK | os.X_OK)
            advice = "" if writable else f"{parent} cannot be written by you: set ROTA_HOME to another place"
            self.say("home", "ok" if writable else "fail", f"{home} does not exist yet; it is made when needed", advice)
            return
        prepare(home)
        kind = kind_of(home) or "file system unknown"
        self.say("home", "ok", f"{home}: yours, closed to others, can be written ({kind})")
        warning = warning_for(home)
        if warning is not None:
            text, _, advice = warning.partition("; ")
            self.say("home", "warn", text, advice)

    def space(self) -> None:
        """Check the room on the disk."""
        place = self.paths.home
        while not os.path.isdir(place):
            place = os.path.dirname(place)
        free = shutil.disk_usage(place).free
        status = "fail" if free < SPACE_FAIL else "warn" if free < SPACE_WARN else "ok"
        advice = "" if status == "ok" else "make room, or set ROTA_HOME to another place: a full disk stops new work"
        self.say("space", status, f"{size(free)} free", advice)

    def config(self) -> None:
        """Check that the settings can be read."""
        from rota.manager.config import load_config

        config = load_config(self.paths.home)
        there = "config.toml" if os.path.exists(self.paths.config) else "no config.toml: all defaults"
        self.say("config", "ok", f"{there}; sites: {', '.join(config.site)}")

    def plugins(self) -> None:
        """Check that what other packages bring can be loaded."""
        from rota.plugins import load_plugins

        foreign = [plugin for plugin in load_plugins() if plugin.source != "rota"]
        for plugin in foreign:
            if plugin.problem is not None:
                text = (
                    f"the {plugin.kind} {plugin.name} of {plugin.source} {plugin.version} is left out: {plugin.problem}"
                )
                self.say("plugins", "warn", text, f"repair {plugin.value}, or remove {plugin.source}")
        well = [f"{plugin.kind} {plugin.name} ({plugin.source})" for plugin in foreign if plugin.problem is None]
        if well:
            self.say("plugins", "ok", ", ".join(well))

    def shell(self) -> None:
        """Check that there is a bash: it runs lines that need a shell."""
        bash = shutil.which("bash")
        if bash is None:
            self.say("shell", "warn", "bash was not found", "command lines with pipes or quotes need it: install bash")
        else:
            self.say("shell", "ok", bash)

    def manager(self) -> None:
        """Check whether a manager is up, and of the same version."""
        from rota import __version__

        try:
            with Connection.connect(self.paths.home, 10.0) as connection:
                begin = time.perf_counter()
                answer = connection.ask("ping")
                took = (time.perf_counter() - begin) * 1000
        except NoManagerError:
            self.say("manager", "ok", "none is up; rota add starts one")
            return
        self._up = True
        text = f"{answer['state']} on {answer['host']} (pid {answer['pid']}), answers in {took:.1f} ms"
        self.say("manager", "ok", text)
        if answer["version"] != __version__:
            text = f"the manager is version {answer['version']}, this is {__version__}"
            self.say("manager", "warn", text, "rota down, then rota up: running jobs go on meanwhile")
        if answer.get("store", "ok") != "ok":
            self.say("manager", "fail", f"the store: {answer['store']}", f"see {self.paths.log}")
        if answer["state"] != "serving":
            self.say("manager", "warn", f"it is {answer['state']} and starts no jobs", "rota resume")
            self._no_job = True

    def job(self) -> None:
        """Add, await, read and remove a job: with the manager that is up, or with our own in a temporary home."""
        if self._no_job:
            return
        if self._up:
            with Connection.connect(self.paths.home) as connection:
                self._trial(connection, "")
            return
        from rota.manager.daemon import start

        with tempfile.TemporaryDirectory(prefix="rota-doctor-") as home:
            begin = time.perf_counter()
            start(home, ["--embedded"])
            took = time.perf_counter() - begin
            with Connection.connect(home) as connection:
                try:
                    self._trial(connection, f"; a manager in a temporary home was up in {seconds(took)}")
                finally:
                    take_down(connection, kill=True)

    def _trial(self, connection: Connection, note: str) -> None:
        from rota.cli.log import Output
        from rota.submission import build, send

        begin = time.perf_counter()
        trial = build("echo rota-doctor", {"name": "rota-doctor", "cwd": "/", "priority": 255})
        batch = str(send(connection, trial)["batch"])
        answer = connection.ask("wait", sel=[batch], timeout_s=JOB_S)
        took = time.perf_counter() - begin
        if not answer["settled"]:
            advice = f"rota explain {batch}.1; rota kill {batch}; look at {self.paths.log}"
            self.say("job", "fail", f"the trial job {batch}.1 has not ended after {JOB_S:g} s", advice)
            return
        output = b"".join(Output(connection, f"{batch}.1", "stdout").pieces())
        if answer["counts"].get("COMPLETED") != 1 or output != b"rota-doctor\n":
            text = f"the trial job {batch}.1 went wrong: {answer['counts']}, it printed {output[:100]!r}"
            self.say("job", "fail", text, f"rota explain {batch}.1; look at {self.paths.log}")
            return
        connection.ask("remove", sel=[batch], all=False, dry_run=False)
        self.say("job", "ok", f"a trial job was added, run, read and removed in {took * 1000:.0f} ms{note}")

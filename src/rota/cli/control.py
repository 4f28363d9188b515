"""`rota up`, `down`, `drain`, `pause`, `resume`, `ping`: the manager itself."""

import sys
import time

from rota.cli.link import STOP_S, connect, take_down
from rota.cli.show import jobs_word, print_json, seconds
from rota.wire.client import Connection, NoManagerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from rota.cli.parser import Parser

_EXAMPLES = {
    "up": ("rota up", "rota up --foreground", "rota up --once        # for cron"),
    "down": ("rota down             # running jobs go on", "rota down --kill      # and end them too"),
    "drain": ("rota drain",),
    "pause": ("rota pause",),
    "resume": ("rota resume",),
    "ping": ("rota ping", "rota ping --json"),
}
_SAID = {
    "paused": "paused: it starts no more jobs",
    "draining": "draining: it starts no more jobs, and stops when none runs",
}


def configure(parser: "Parser", command: str) -> None:
    """The options of one of them."""
    if command == "up":
        parser.add_argument(
            "--once", action="store_true", help="do what is due, then end: returns when that is done (for cron)"
        )
        parser.add_argument("--foreground", action="store_true", help="stay here, until Ctrl-C or rota down")
    if command == "down":
        parser.add_argument("--kill", action="store_true", help="end running jobs too")
    parser.json()
    parser.examples(*_EXAMPLES[command])


def execute(args: "argparse.Namespace") -> int:
    """Run one of them."""
    handler = {"up": up, "down": down, "ping": ping}.get(args.command_name, change_state)
    return handler(args)


def ping(args: "argparse.Namespace") -> int:
    """Is it there, and how is it?"""
    begin = time.perf_counter()
    with connect(args) as connection:
        answer = connection.ask("ping")
    if args.json:
        print_json(answer)
        return 0
    state = _SAID.get(answer["state"], answer["state"])
    where = f"{answer['host']} (pid {answer['pid']})"
    print(f"manager {answer['version']} on {where}, up {seconds(answer['uptime_s'])}, {state}")
    if answer.get("store", "ok") != "ok":
        print(f"rota: the store: {answer['store']}", file=sys.stderr)
    if sys.stdout.isatty():
        print(f"it answered in {(time.perf_counter() - begin) * 1000:.1f} ms")
    return 0


def change_state(args: "argparse.Namespace") -> int:
    """`pause`, `resume`, `drain`."""
    with connect(args) as connection:
        answer = connection.ask(args.command_name)
    if args.json:
        print_json(answer)
    else:
        print(f"the manager is {_SAID.get(answer['state'], answer['state'])}")
    return 0


def up(args: "argparse.Namespace") -> int:
    """Start a manager, unless one is up."""
    try:
        with Connection.connect(args.home) as connection:
            told(args, connection, started=False)
        return 0
    except NoManagerError:
        pass
    extra = ["--once"] if args.once else []
    if args.foreground or args.once:
        return foreground(args, extra)
    from rota.manager.daemon import start

    start(args.home, extra)
    with Connection.connect(args.home) as connection:
        told(args, connection, started=True)
    return 0


def told(args: "argparse.Namespace", connection: Connection, started: bool) -> None:
    """Say where the manager is."""
    there = connection.manager
    if args.json:
        print_json({"started": started, **{name: there.get(name) for name in ("pid", "host", "version", "home")}})
    else:
        verb = "started a manager" if started else "a manager is already up"
        print(f"{verb} on {there.get('host')} (pid {there.get('pid')}), home {there.get('home')}")


def foreground(args: "argparse.Namespace", extra: "list[str]") -> int:
    """Become the manager."""
    import os

    from rota.manager.paths import prepare

    paths = prepare(args.home)
    command = [sys.executable, "-m", "rota.manager", "--home", paths.home, *extra]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def down(args: "argparse.Namespace") -> int:
    """Stop the manager and wait until it is gone."""
    with connect(args) as connection:
        pid = connection.manager.get("pid")
        answer, gone = take_down(connection, args.kill)
    if args.json:
        print_json({**answer, "pid": pid, "stopped": gone})
    elif not gone:
        print(f"rota: the manager (pid {pid}) has not ended after {STOP_S:g} s", file=sys.stderr)
    else:
        running = answer.get("running") or 0
        was = "was" if running == 1 else "were"
        then = f"and {was} ended" if args.kill else "and will go on without it"
        print("the manager has stopped" + (f" ({jobs_word(running)} {was} running, {then})" if running else ""))
    return 0 if gone else 5

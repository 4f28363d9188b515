"""`rota up`, `down`, `drain`, `pause`, `resume`, `ping`, `reload`: the manager itself."""

import os
import sys
import time

from rota.cli.link import STOP_S, connect, greeted, take_down
from rota.cli.show import clean, jobs_word, print_json, seconds, when
from rota.model.errors import UsageError
from rota.wire.client import Connection, NoManagerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any, NoReturn

    from rota.cli.parser import Parser

_EXAMPLES = {
    "up": (
        "rota up",
        "rota up --foreground",
        "rota up --once        # for cron",
        "rota up --at-boot     # now, and after every start of this machine",
        "rota up --on slurm    # as a cluster job, where login nodes allow no daemons",
    ),
    "down": ("rota down             # running jobs go on", "rota down --kill      # and end them too"),
    "drain": ("rota drain",),
    "pause": ("rota pause", "rota pause --as nightly-copy --reason 'the file server is being copied'"),
    "resume": ("rota resume", "rota resume --as nightly-copy", "rota resume --all"),
    "ping": ("rota ping", "rota ping --json"),
    "reload": ("rota reload", "rota sites detect --write --force && rota reload"),
}
_STATE_WORDS = {
    "paused": "paused: it starts no more jobs",
    "draining": "draining: it starts no more jobs, and stops when none runs",
}


def configure(parser: "Parser", command: str) -> None:
    """The options of one command about the manager."""
    if command == "up":
        parser.add_argument(
            "--once", action="store_true", help="do what is due, then end: returns when that is done (for cron)"
        )
        parser.add_argument("--foreground", action="store_true", help="stay here, until Ctrl-C or rota down")
        parser.add_argument("--at-boot", action="store_true", help="also whenever this machine starts (systemd, yours)")
        parser.add_argument("--on", metavar="SITE", help="run it as a job of this site, which hands over to the next")
        parser.add_argument("--time", metavar="TIME", help="--on: how long each job asks for (default 1d, or less)")
        parser.add_argument(
            "--hand-over", metavar="TIME", help="--on: when the next is submitted, before its end (default 1h at most)"
        )
        parser.add_argument("--wait", metavar="TIME", default="1m", help="--on: how long to wait for it (default 1m)")
    if command == "down":
        parser.add_argument("--kill", action="store_true", help="end running jobs too")
    if command in ("pause", "resume"):
        parser.add_argument(
            "--as", dest="holder", default="user", metavar="NAME", help="whose pause it is (default: user)"
        )
    if command == "pause":
        parser.add_argument("--reason", default="", metavar="TEXT", help="why, for those who wonder")
        parser.description = f"{parser.description} Until every NAME that paused it has resumed it."
    if command == "resume":
        parser.add_argument("--all", action="store_true", help="end everybody's pauses")
    parser.json()
    parser.examples(*_EXAMPLES[command])


def execute(args: "argparse.Namespace") -> int:
    """Run one command about the manager."""
    for option, most in (("holder", 64), ("reason", 255)):
        text = getattr(args, option, None)
        if text is not None and (not text.isprintable() or len(text) > most or (option == "holder" and not text)):
            word = "--as" if option == "holder" else "--reason"
            given = f"{word} '{clean(text[:40])}'"
            raise UsageError(f"{given}: give 1 to {most} characters, none of them control characters")
    handler = {"up": up, "down": down, "ping": ping, "reload": reload}.get(args.command_name, change_state)
    return handler(args)


def ping(args: "argparse.Namespace") -> int:
    """Print whether a manager is up, and how it is."""
    begin = time.perf_counter()
    with connect(args) as connection:
        answer = connection.ask("ping")
    if args.json:
        print_json(answer)
        return 0
    state = _STATE_WORDS.get(answer["state"], answer["state"])
    where = f"{answer['host']} (pid {answer['pid']})"
    print(f"manager {answer['version']} on {where}, up {seconds(answer['uptime_s'])}, {state}")
    for row in answer.get("pauses") or ():
        print(pause_words(row))
    if answer.get("config"):
        print(f"rota: {clean(answer['config'])}", file=sys.stderr)
    if answer.get("store", "ok") != "ok":
        print(f"rota: the store: {answer['store']}", file=sys.stderr)
    if sys.stdout.isatty():
        print(f"it answered in {(time.perf_counter() - begin) * 1000:.1f} ms")
    return 0


def reload(args: "argparse.Namespace") -> int:
    """Let the manager read its configuration again, and print what that changed."""
    with connect(args) as connection:
        answer = connection.ask("reload")
    if args.json:
        print_json(answer)
        return 0
    said = [f"{what} {', '.join(map(clean, answer[what]))}" for what in ("added", "changed", "removed") if answer[what]]
    print(f"sites: {'; '.join(said) or 'nothing is different'}")
    if answer.get("broker"):
        print("brokerage: taken over")
    if answer["restart"]:
        print(f"rota: after a restart only (rota down; rota up): {', '.join(answer['restart'])}", file=sys.stderr)
    return 0


def change_state(args: "argparse.Namespace") -> int:
    """Run pause, resume or drain."""
    op = args.command_name
    given: dict[str, object] = {"as": args.holder} if op != "drain" else {}
    if op == "pause":
        given["reason"] = args.reason
    elif op == "resume":
        given["all"] = args.all
    with connect(args) as connection:
        answer = connection.ask(op, **given)
    if args.json:
        print_json(answer)
        return 0
    pauses = answer.get("pauses") or ()
    still = "still " if op == "resume" and pauses else ""
    print(f"the manager is {still}{_STATE_WORDS.get(answer['state'], answer['state'])}")
    if op == "resume" or len(pauses) > 1:
        for row in pauses:
            print(pause_words(row))
    return 0


def pause_words(row: "dict[str, Any]") -> str:
    """Who paused the manager, since when and why."""
    since = f" since {when(row['since'])}" if row.get("since") else ""
    why = f": {clean(row['reason'])}" if row.get("reason") else ""
    return f"  paused by {clean(row['as'])}{since}{why} (rota resume --as {clean(row['as'])})"


def up(args: "argparse.Namespace") -> int:
    """Start a manager, unless one is up."""
    if args.at_boot:
        from rota.cli.boot import at_boot

        at_boot(args.home, not args.json)
    try:
        with Connection.connect(args.home) as connection:
            print_manager(args, connection, started=False)
        return 0
    except NoManagerError:
        pass
    if args.on is not None:
        return up_on(args)
    if args.foreground or args.once:
        foreground(args)
    from rota.manager.daemon import start

    start(args.home)
    with Connection.connect(args.home) as connection:
        print_manager(args, connection, started=True)
    return 0


def up_on(args: "argparse.Namespace") -> int:
    """Start the manager as a cluster job."""
    from rota.manager.offline.relay import launch
    from rota.model.amounts import parse_duration

    if args.once or args.foreground:
        raise UsageError("--on runs the manager as a cluster job: --once and --foreground run it here")
    time_s = None if args.time is None else parse_duration(args.time)
    hand_over_s = None if args.hand_over is None else parse_duration(args.hand_over)
    row = launch(args.home, args.on, time_s, hand_over_s, parse_duration(args.wait))
    if row["serving"]:
        with Connection.connect(args.home) as connection:
            print_manager(args, connection, started=True, more=row)
    elif args.json:
        print_json({"started": False, **row})
    else:
        verb = "submitted" if row["submitted"] else "is queued already"
        print(f"a manager {verb} on {row['site']} as job {row['native_id']}; it serves once that runs")
    return 0


def print_manager(
    args: "argparse.Namespace", connection: Connection, started: bool, more: "dict[str, Any] | None" = None
) -> None:
    """Print where the manager is."""
    there = connection.manager
    if args.json:
        row = {"started": started, **{name: there.get(name) for name in ("pid", "host", "version", "home")}}
        print_json(row | (more or {}))
    else:
        verb = "started a manager" if started else "a manager is already up"
        job = f" as job {more['native_id']} of {more['site']}" if more else ""
        print(f"{verb} on {there.get('host')} (pid {there.get('pid')}){job}, home {there.get('home')}")


def foreground(args: "argparse.Namespace") -> "NoReturn":
    """Become the manager."""
    from rota.manager.paths import prepare

    command = [sys.executable, "-m", "rota.manager", "--home", prepare(args.home).home]
    command += ["--once"] if args.once else []
    sys.stdout.flush()
    os.execv(sys.executable, command)


def down(args: "argparse.Namespace") -> int:
    """Stop the manager and wait until it is gone; end one that is a cluster job and does not serve."""
    try:
        connection = greeted(args.home)
    except NoManagerError:
        from rota.manager.paths import Paths

        if not os.path.exists(Paths(args.home).relay):
            raise
        return end_cluster_job(args)
    with connection:
        pid = connection.manager.get("pid")
        answer, gone = take_down(connection, args.kill)
    left = still_live(args.home) if gone and args.kill else 0
    if args.json:
        print_json({**answer, "pid": pid, "stopped": gone, **({"left": left} if args.kill else {})})
    elif not gone:
        print(f"rota: the manager (pid {pid}) has not ended after {STOP_S:g} s", file=sys.stderr)
    else:
        running = answer.get("running") or 0
        was = "was" if running == 1 else "were"
        then = f"and {was} ended: the next manager runs {'it' if running == 1 else 'them'} again"
        then = then if args.kill else "and will go on without it"
        if left:
            then = f"and {jobs_word(left)} could not be ended: rota up, then rota explain :active says where"
        print("the manager has stopped" + (f" ({jobs_word(running)} {was} running, {then})" if running else ""))
    return 0 if gone and not left else 5


def still_live(home: "str | None") -> int:
    """How many jobs run, as far as the store knows, now that the manager is gone."""
    from rota.manager.offline.looking import Reader

    with Reader(home) as reader:
        return int(reader.ask("count", sel=[":active"])["jobs"])


def end_cluster_job(args: "argparse.Namespace") -> int:
    """End the cluster job of a manager that does not serve (yet)."""
    from rota.manager.offline.relay import cancel

    row = cancel(args.home)
    gone = row is not None and row["stopped"]
    if args.json:
        print_json({"running": 0, "pid": None, **(row or {"stopped": True})})
    elif row is not None:
        said = "is no longer queued" if gone else "may still be queued, and ends by itself when it starts"
        print(f"the manager job {row['native_id']} of {row['site']} {said}")
    return 0 if gone or row is None else 5

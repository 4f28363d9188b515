"""`python -m rota.testing.fake_cluster`: install a fake cluster, do something to it, let its time pass."""

import argparse
import json
import os
import sys
import time
from typing import Any

from rota.testing.fake_cluster.faults import KINDS
from rota.testing.fake_cluster.installed import VERBS, FakeCluster
from rota.testing.fake_cluster.personality import PERSONALITIES
from rota.testing.fake_cluster.world import DEFAULTS


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rota.testing.fake_cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    install = commands.add_parser("install", help="write the commands of a batch system to DIR/bin")
    install.add_argument("directory", metavar="DIR")
    install.add_argument("--personality", choices=PERSONALITIES, default="slurm")
    install.add_argument("--nodes", type=int, default=DEFAULTS["nodes"])
    install.add_argument("--slots", dest="cores", type=int, default=DEFAULTS["cores"], help="cores of each node")
    install.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"any of {', '.join(sorted(DEFAULTS))}; the value in JSON",
    )
    do = commands.add_parser("do", help="do something to a cluster")
    do.add_argument("directory", metavar="DIR")
    do.add_argument("verb", choices=VERBS)
    do.add_argument("words", nargs="*", metavar="ID | NODE | NAME=VALUE")
    faults = commands.add_parser("faults", help=f"a plan of faults, as JSON; kinds: {', '.join(KINDS)}")
    faults.add_argument("directory", metavar="DIR")
    faults.add_argument("plan", metavar="FILE", help="- for standard input")
    serve = commands.add_parser("serve", help="let its time pass until this process or its parent ends")
    serve.add_argument("directory", metavar="DIR")
    serve.add_argument("--every", type=float, default=0.2, metavar="S")
    close = commands.add_parser("close", help="end every process of its jobs")
    close.add_argument("directory", metavar="DIR")
    return parser


def _settings(words: list[str]) -> dict[str, Any]:
    """`NAME=VALUE …` as a dictionary."""
    return {name: _value(value) for name, _, value in (word.partition("=") for word in words)}


def main(words: list[str] | None = None) -> int:
    parser = _parser()
    given = parser.parse_args(words)
    if given.command == "install":
        settings = _settings(given.settings)
        try:
            made = FakeCluster(
                given.directory, personality=given.personality, nodes=given.nodes, cores=given.cores, **settings
            )
        except ValueError as error:
            parser.error(str(error))
        print(made.bin)
        return 0
    cluster = FakeCluster.at(given.directory)
    if not os.path.exists(os.path.join(cluster.directory, "world.json")):
        parser.error(f"no fake cluster in {cluster.directory}: install one first")
    if given.command == "faults":
        with sys.stdin if given.plan == "-" else open(given.plan) as file:
            cluster.faults(json.load(file))
    elif given.command == "serve":
        parent = os.getppid()
        while os.getppid() == parent and os.path.exists(os.path.join(cluster.directory, "world.json")):
            cluster.tick()
            time.sleep(given.every)
    elif given.command == "close":
        cluster.close()
    elif given.verb == "jobs":
        for job in cluster.jobs():
            print(json.dumps(job))
    elif given.verb == "set":
        cluster.set(**_settings(given.words))
    else:
        try:
            getattr(cluster, given.verb.replace("-", "_"))(*given.words)
        except (ValueError, KeyError, TypeError) as error:
            parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())

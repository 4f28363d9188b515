"""`rota cloud deploy`, `teardown`, `status`: the manager on a server in a cloud, used from here."""

import sys

from rota.cli.show import clean, print_json, when
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from rota.cli.parser import Parser
    from rota.manager.offline.deployed import Wanted


def configure(parser: "Parser", command: str) -> None:
    """The options of cloud."""
    parser.add_argument("action", choices=("deploy", "teardown", "status"), help="what to do")
    parser.add_argument("--provider", default="openstack", metavar="NAME", help="kind of cloud (default: openstack)")
    parser.add_argument("--cloud", metavar="NAME", help="deploy: which cloud of clouds.yaml (default: OS_CLOUD)")
    parser.add_argument("--image", metavar="NAME", help="deploy: the image of the head server; it needs Python")
    parser.add_argument("--flavor", metavar="NAME", help="deploy: its flavor")
    parser.add_argument(
        "--network", action="append", default=[], metavar="NAME", help="deploy: its network, or several"
    )
    parser.add_argument("--group", action="append", default=[], metavar="NAME", help="deploy: its security group(s)")
    parser.add_argument("--public", metavar="NETWORK", help="deploy: give it an address of this network")
    parser.add_argument("--user", metavar="NAME", help="deploy: who logs in there (default: debian)")
    parser.add_argument("--python", default="python3", metavar="PROGRAM", help="deploy: the Python there")
    parser.add_argument("--kill", action="store_true", help="teardown: end what runs; it is run again at home")
    parser.add_argument("--abandon", action="store_true", help="teardown: give up the queue that is on the server")
    parser.json()
    parser.description = (
        f"{parser.description} What breaks off is continued by the same command; teardown brings the queue home first."
    )
    parser.examples(
        "rota cloud deploy --cloud lab --image debian-12 --flavor m1.small --network inside",
        "rota add -- make                  # as ever: it goes to the manager there",
        "rota cloud deploy                 # connects again, after a restart of this machine",
        "rota cloud teardown",
    )


def execute(args: "argparse.Namespace") -> int:
    """Do it."""
    from rota.manager.offline.deploying import deploy, shown, teardown

    if args.action == "deploy":
        row = deploy(args.home, _wanted(args), _say)
    elif args.action == "teardown":
        row = teardown(args.home, _say, kill=args.kill, abandon=args.abandon)
    else:
        row = shown(args.home)
    if args.json:
        print_json(row)
    elif args.action == "teardown":
        print(f"the queue is in {clean(row['database'])} again")
        if row["replaced"]:
            print(f"what was here before the deployment is kept as {clean(row['replaced'])}")
    elif not row["deployed"]:
        print("nothing is deployed: the queue is here")
    else:
        where = {"away": "the queue is there", "home": "the queue is home, the server not gone yet"}
        print(f"head server {clean(row['server'] or 'none yet')} at {clean(row['address'] or 'no address yet')}")
        print(
            f"since {when(row['since'])}; {where.get(row['phase'], 'the queue is still here: deploy again to go on')}"
        )
        print("connected" if row["connected"] else "not connected: rota cloud deploy connects")
    return 0


def _wanted(args: "argparse.Namespace") -> "Wanted | None":
    """What the options say; None: nothing, so that there must be a deployment already."""
    from rota.manager.offline.deployed import Wanted

    if args.image is None and args.flavor is None:
        return None
    if args.image is None or args.flavor is None:
        raise UsageError("a new head server needs both --image and --flavor")
    user = args.user or "debian"
    return Wanted(
        args.provider, args.cloud, args.image, args.flavor, tuple(args.network), tuple(args.group), args.public, user,
        args.python,
    )  # fmt: skip


def _say(words: str) -> None:
    print(f"rota: {words}", file=sys.stderr)

"""`rota wait`: until jobs are settled."""

import sys

from rota.cli.link import connect
from rota.cli.show import count_words, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from rota.cli.parser import Parser


def configure(parser: "Parser", command: str) -> None:
    """The options of `wait`."""
    parser.selectors()
    parser.add_argument("--timeout", metavar="TIME", help="give up after 90 (seconds), 30s, 10m, 2h …: exit status 4")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing")
    parser.json('{"settled": …, "counts": …}')
    parser.examples("rota wait 7", "rota wait 7 8 --timeout 10m", "rota wait @align && echo all well")


def execute(args: "argparse.Namespace") -> int:
    """0: all COMPLETED. 1: all settled, some not COMPLETED. 4: the time was up."""
    with connect(args) as connection:
        answer = connection.ask("wait", sel=args.selector, timeout_s=timeout_of(args.timeout))
    if args.json:
        print_json(answer)
    elif not args.quiet:
        print(count_words(answer["counts"]), file=sys.stdout if answer["settled"] else sys.stderr)
    if not answer["settled"]:
        if not args.json and not args.quiet:
            print("rota: the time is up, not all are settled", file=sys.stderr)
        return 4
    return 0 if all_well(answer["counts"]) else 1


def timeout_of(text: "str | None") -> "float | None":
    """Seconds; here a bare number is seconds, since no scheduler has a say in it."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        from rota.model.amounts import parse_duration

        return float(parse_duration(text))
    if not 0 <= value <= 1e9:
        from rota.model.errors import UsageError

        raise UsageError(f"--timeout {text}: give 0 or more seconds")
    return value


def all_well(counts: "Mapping[str, int]") -> bool:
    """True if nothing but COMPLETED is counted."""
    return not any(count for state, count in counts.items() if state != "COMPLETED")

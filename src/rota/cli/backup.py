"""`rota backup`, `restore`, `prune`: copies of the queue, and what it may forget."""

import os
import sys

from rota.cli.link import connect
from rota.cli.show import jobs_word, print_json, seconds, size, when
from rota.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from rota.cli.parser import Parser


def configure(parser: "Parser", command: str) -> None:
    """The options of backup, restore or prune."""
    if command == "backup":
        parser.add_argument(
            "path", nargs="?", metavar="PATH", help="a file or a directory (default: $ROTA_HOME/backups/rota-TIME.db)"
        )
        parser.add_argument("--redact", action="store_true", help="for a bug report: without what looks like a secret")
        parser.json('{"path": …, "bytes": …}')
        parser.examples("rota backup", "rota backup /mnt/safe/queue.db", "rota backup /mnt/safe/ --json")
    elif command == "restore":
        parser.add_argument("path", metavar="PATH", help="a file that rota backup made")
        parser.add_argument("--no-pause", action="store_true", help="let jobs start at once when a manager is up")
        parser.json()
        parser.examples(
            "rota down; rota restore ~/.rota/backups/rota-20300131-223000.db; rota up", "rota resume --as restore"
        )
    else:
        parser.selectors()
        parser.add_argument("--all", action="store_true", help="every batch that is settled")
        parser.add_argument("--older-than", metavar="TIME", help="only what has been settled for so long: 30d, 12h")
        parser.add_argument("--keep", type=int, default=0, metavar="N", help="leave the newest N of them")
        parser.add_argument("--dry-run", action="store_true", help="only say which batches it would be")
        parser.json('{"batches": …, "jobs": …, "skipped": […], "sample": […]}')
        parser.description = (
            f"{parser.description} Their results, values and output are deleted; their numbers are not used again. "
            "A batch stays while a batch that stays depends on it."
        )
        parser.examples(
            "rota prune --older-than 30d --dry-run", "rota prune 7 8", "rota prune @nightly --keep 10",
            "rota prune :completed --older-than 2d",
        )  # fmt: skip


def execute(args: "argparse.Namespace") -> int:
    """Run backup, restore or prune."""
    return {"backup": backup, "restore": restore, "prune": prune}[args.command_name](args)


def backup(args: "argparse.Namespace") -> int:
    """Ask the manager for a copy."""
    path = None if args.path is None else os.path.abspath(args.path)
    with connect(args) as connection:
        answer = connection.ask("backup", path=path, redact=args.redact)
    if args.json:
        print_json(answer)
    else:
        print(answer["path"])
        took = f"{size(answer['bytes'])}, {jobs_word(answer['jobs'])}, took {seconds(answer['elapsed_s'])}"
        print(f"rota: backup made ({took})", file=sys.stderr)
    return 0


def restore(args: "argparse.Namespace") -> int:
    """Put a backup back; no manager may be up."""
    from rota.manager.offline.restoring import restore as put_back

    done = put_back(args.path, args.home, pause=not args.no_pause)
    if args.json:
        print_json(done)
        return 0
    made = f" of {when(done['made'])}" if done["made"] is not None else ""
    print(f"restored {done['restored']}{made}: {jobs_word(done['jobs'])} in {done['batches']} batches")
    if done["replaced"]:
        print(f"the queue that was there is kept as {done['replaced']}")
    if done["running"]:
        print(
            f"{jobs_word(done['running'])} ran when the backup was made: what became of them is asked of their runners"
        )
    print(f"new batches are numbered from {done['next_batch']}")
    if done["paused"]:
        print("no job starts until: rota up, a look at rota status, and rota resume --as restore")
    return 0


def prune(args: "argparse.Namespace") -> int:
    """Forget settled batches."""
    from rota.model.amounts import parse_duration

    older = parse_duration(args.older_than) if args.older_than is not None else 0
    if args.keep < 0:
        raise UsageError(f"--keep {args.keep}: give 0 or more")
    if not (args.selector or args.all or older or args.keep):
        raise UsageError(
            "prune which batches? Give some (7, @name), --older-than, --keep, or --all for all that are settled"
        )
    with connect(args) as connection:
        answer = connection.ask(
            "prune", sel=args.selector, all=args.all, older_than_s=older, keep=args.keep, dry_run=args.dry_run
        )
    if args.json:
        print_json(answer)
        return 0
    count = answer["batches"]
    what = f"{count:,} batch{'' if count == 1 else 'es'} with {jobs_word(answer['jobs'])}"
    if args.dry_run:
        sample = answer["sample"]
        more = f" ({', '.join(sample)}{', …' if count > len(sample) else ''})" if sample else ""
        print(f"{what} would be pruned{more}; nothing was changed")
    else:
        print(f"{what} pruned")
    for row in answer["skipped"]:
        print(f"rota: {row['batches']:,} left alone: {row['reason']}", file=sys.stderr)
    return 0

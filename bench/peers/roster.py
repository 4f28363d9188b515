"""Who is measured, how, and what each promises about the work that it has accepted."""

from typing import NamedTuple


class Entry(NamedTuple):
    """One peer, as it is set up here."""

    name: str
    program: str
    """MODULE.CLASS below `programs/`."""
    durable: str
    """What is left of accepted work when the machine loses power."""
    how: str
    """What its documentation calls best for many short commands, and what was done here."""
    kinds: frozenset[str] = frozenset()
    """What it can do: A direct, a through a shell, B submissions, C one at a time, D graphs."""
    environment: str = ""
    """Its environment from PyPI; none: it is here, or Debian's."""
    command: str = ""
    """The command of Debian's that it needs."""
    most: int = 10_000
    """Jobs of A, where it is too slow for ten thousand."""
    most_queued: int = 1_000_000
    """Jobs of B."""
    across: int = 100
    """Layers of D, and jobs of a layer."""
    codes: bool = True
    """Whether it keeps the exit code of each job."""
    daemon: bool = True
    """Whether something stays up between jobs, so that one can be asked for."""


ROSTER = (
    Entry("rota", "ours.Client", "all: fsync before every acknowledgement, of submissions and of results",
          "`rota.local()`, the launcher compiled", frozenset("AaBCD")),
    Entry("rota, plain Python", "ours.Plain", "as rota", "`launcher = \"none\"`", frozenset("AaC")),
    Entry("rota, its own shell", "ours.OwnShell", "as rota",
          "a command line as it is given: `bash -o pipefail`, so that a part of a pipe that fails is a failure. "
          "All others, and rota in its other rows, start `/bin/sh` (dash)", frozenset("a")),
    Entry("rota run", "ours.Command", "as rota", "the command line beside a manager that is up", frozenset("Aa")),
    Entry("GNU make", "commands.Make", "none", "`make -rRs -jN`, a target for each job, no files",
          frozenset("AaCD"), command="make", codes=False, daemon=False),
    Entry("xargs", "commands.Xargs", "none", "`xargs -P N -n 1`", frozenset("AaC"), command="xargs",
          codes=False, daemon=False),
    Entry("GNU parallel", "commands.Parallel", "a log of what has ended (not synced)",
          "`--joblog`, `PARALLEL_SHELL=/bin/sh`; it has no other way than a shell", frozenset("aC"), command="parallel",
          most=1_500, daemon=False),
    Entry("HyperQueue", "pilots.HyperQueue", "none in its wheel (its `hq` has a journal, flushed every 30 s)",
          "its wheel: server and worker are threads of the client's process, one task per command; asked every "
          "millisecond whether all have ended (its own wait asks once a second). "
          "Its command `hq`, with arrays and the journal, is on no package index and was not measured",
          frozenset("AaBCD"), environment="hyperqueue", most=5_000, across=50),
    Entry("QCG-PilotJob", "pilots.Qcg", "none", "`LocalManager`, one iterated job", frozenset("AaBCD"),
          environment="qcg-pilotjob", most=1_000, most_queued=10_000, across=20),
    Entry("Parsl", "futures.Parsl", "none (checkpoints of results, if asked for)",
          "HighThroughputExecutor with prefetch, no encryption, no logging, no cache", frozenset("AaBCD"),
          environment="parsl", most=3_000, most_queued=20_000, across=30),
    Entry("Parsl, threads", "futures.ParslThreads", "none (checkpoints of results, if asked for)",
          "ThreadPoolExecutor, no logging, no cache", frozenset("AaCD"), environment="parsl", most=5_000, across=30),
    Entry("Dask", "futures.Dask", "none", "LocalCluster, a process for each core, `Client.map`", frozenset("AaBCD"),
          environment="dask", most=3_000, most_queued=50_000, across=50),
    Entry("PSI/J", "pilots.PsiJ", "none", "its local executor, as many at once as cores: it has no queue",
          frozenset("AaC"), environment="psij", most=300),
    Entry("executorlib", "futures.ExecutorLib", "none",
          "SingleNodeExecutor, block allocation; it holds nothing back: in B jobs run meanwhile",
          frozenset("AaBCD"), environment="executorlib", most=2_000, most_queued=10_000, across=20),
    Entry("Snakemake", "commands.Snakemake", "a file for each job that is done (not synced)",
          "`--scheduler greedy`, a `touch`ed file for each job", frozenset("aD"), environment="snakemake", most=200,
          across=10, daemon=False),
    Entry("huey", "queues.Huey", "queued calls and results: SQLite, synced; what a worker has taken is lost",
          "SqliteHuey, threads, polled every millisecond", frozenset("AaBC"), environment="huey", most=2_000,
          most_queued=10_000),
    Entry("Celery", "queues.Celery", "none (redis without a file; with one: after each second)",
          "redis by a socket, prefork, 64 taken ahead, a group for many", frozenset("AaBC"), environment="celery",
          command="redis-server", most=2_000, most_queued=20_000),
)  # fmt: skip


def named(words: str) -> list[Entry]:
    """The peers of a list of names (parts of names, without regard for case); all if it is empty."""
    wanted = [word.strip().lower() for word in words.split(",") if word.strip()]
    found = [one for one in ROSTER if not wanted or any(_is_named(one, word) for word in wanted)]
    for word in wanted:
        if not any(_is_named(one, word) for one in ROSTER):
            raise SystemExit(f"no peer is named {word!r}: {', '.join(one.name for one in ROSTER)}")
    return found


def _is_named(entry: Entry, word: str) -> bool:
    """Whether its name, or a word of it, begins so."""
    name = entry.name.lower()
    return name.startswith(word) or any(part.startswith(word) for part in name.split())

"""A batch system as a pure dialect: which commands to run, how to read what they print, what its states mean.

A dialect does no I/O and has no state: `CommandDriver` runs it over a transport. So every row of every table, and every
recorded output of a real system, is a plain unit test. Its commands are run with TZ=UTC and LC_ALL=C, so readers take
times as UTC.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from rota.drivers.api import Ask, Outcome

__all__ = ["Answer", "Class", "Command", "Dialect", "Listing", "Options", "Seen", "Submitted"]

Class = Literal["ok", "partial", "transient", "fatal", "ambiguous", "not-found"]
"""What an answer is worth.

ok: all of it holds. partial: what it says holds, what it leaves out means nothing. transient: nothing happened, try
again. fatal: trying again cannot help. ambiguous: it may or may not have happened: look before repeating.
not-found: the thing asked for is not known (any more).
"""
Kind = Literal["pending", "held", "running", "suspended", "exited", "completed", "failed", "aborted", "unsure"]
"""What a native state means. exited: over, the exit status decides. unsure: tells nothing; counted.

held: it does not run, and the provider will not start it until somebody releases it. suspended: it ran, and is stopped.

A listing may say `exited` without an outcome (a light listing has no exit status): then the history has it.
"""


class Command(NamedTuple):
    """What to run: a program name and its arguments, never a shell line."""

    argv: tuple[str, ...]
    stdin: str | None = None


class Answer(NamedTuple):
    """What a command printed, and how it ended."""

    code: int | None
    """Exit status; None: it was ended because it took too long."""
    stdout: str
    stderr: str
    cut: bool = False
    """There was more output than is kept: what is not in it may still be so."""

    @property
    def words(self) -> str:
        """What the command said, complaints first, on one short line."""
        words = " ".join((self.stderr.strip() or self.stdout.strip()).split())
        words = "".join(c if c.isprintable() else "?" for c in words[:301])
        words = words if len(words) <= 300 else words[:297] + "..."
        return words or ("it took too long" if self.code is None else "nothing at all")


class Options(Struct, frozen=True):
    """What a site wants of every submission; a job's own options are stronger."""

    account: str | None = None
    partition: str | None = None
    """The queue or partition."""
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    memory_as: Literal["node", "per-cpu", "none"] = "node"
    requeue: bool = False
    """Whether the cluster may start a job again by itself."""
    parallel_environment: str | None = None
    """Grid Engine's name for asking for several slots on one host."""
    raw: tuple[tuple[str, str], ...] = ()
    """Native options as (`--key`, value), checked against `allowed` of the dialect."""
    signal_s: int = 120
    """A job is warned (USR1) so long before its time limit; 0: not at all."""
    state_map: tuple[tuple[str, str], ...] = ()
    """Native state → kind, for a site that wants it otherwise."""
    strict: bool = False
    """Use the dialect's `strict` table where it differs."""


class Submitted(NamedTuple):
    """What became of a submission."""

    native_id: str | None
    result: Class
    detail: str
    others: tuple[str, ...] = ()
    """Of a look-up: later submissions with the same tag, which must not be; they are ended."""


class Seen(NamedTuple):
    """One native job, or element of an array, in a listing or in the history."""

    native_id: str
    """As `Dialect.element_id` writes it."""
    native_state: str
    kind: Kind
    tag: str | None = None
    """From its name, if the listing shows names."""
    reason: str | None = None
    """The provider's own words."""
    outcome: Outcome | None = None
    requeued: int = 0
    """How often the cluster has started it again."""
    held: bool = False
    """It is over for us, but the cluster keeps it in its queue: it is to be killed."""


class Listing(NamedTuple):
    """A listing or a piece of history, read."""

    seen: tuple[Seen, ...]
    result: Class
    detail: str = ""
    """Why it is not `ok`, with the command's own words."""


class Dialect(Protocol):
    """A batch system. Command builders return what to run; readers never raise, whatever is in the answer."""

    name: str
    programs: tuple[str, ...]
    """What must be installed where the commands run."""
    history_lag_s: float
    """How long after its end a job may be missing from both listing and history."""
    array_most: int
    """Elements in one submission, unless the site says less."""
    chunk: int
    """Native ids in one history or kill command."""
    states: Mapping[str, Kind]
    """Every documented native state."""
    strict: Mapping[str, Kind]
    """What some would rather have; used with `Options.strict`."""
    allowed: frozenset[str]
    """Raw options that a user may give; those that rota itself sets are not among them."""

    def version(self) -> Command:
        """The command that asks the programs who they are."""
        ...

    def is_mine(self, answer: Answer) -> bool:
        """Whether the answer to `version` is from this batch system (qsub and qstat have three owners)."""
        ...

    def submit(self, ask: Ask, options: Options) -> Command:
        """Submits an array, or one job. Everything on the command line; the script on stdin (or as the manual wants).

        Raises UsageError for an option that is not allowed or a need that this system cannot say.
        """
        ...

    def read_submit(self, ask: Ask, answer: Answer) -> Submitted:
        """The native id of the whole submission."""
        ...

    def element_id(self, native_id: str, element: int, count: int) -> str:
        """The native id of one element, as listings show it."""
        ...

    def listing(self, user: str) -> Command:
        """The command that lists all jobs of a user, finished ones included where they can be."""
        ...

    def read_listing(self, answer: Answer, options: Options) -> Listing:
        """The jobs of a listing."""
        ...

    def history(self, native_ids: Sequence[str]) -> Sequence[Command]:
        """Asks for the end of jobs that the listing shows no more, at most `chunk` of them; empty: there is none."""
        ...

    def read_history(self, answer: Answer, options: Options) -> Listing:
        """The jobs in the answer to one command of `history`."""
        ...

    def find(self, tag: str, user: str) -> Sequence[Command]:
        """Looks for what was submitted with a tag: first among live jobs, then among finished ones.

        Each answer is read by `read_find`. The first that is ok is the answer; it was not submitted only if every one
        of them says not-found.
        """
        ...

    def read_find(self, tag: str, answer: Answer) -> Submitted:
        """ok with the native id of the whole submission; not-found; or another class if that says nothing."""
        ...

    def kill(self, native_ids: Sequence[str], force: int) -> Command:
        """Ends jobs: force 0 gently where there is such a thing, 1 natively, 2 by the last means there is."""
        ...

    def read_kill(self, answer: Answer) -> tuple[Class, str]:
        """What the answer to a kill is worth: ok also if all jobs were gone already."""
        ...

    def queues(self) -> Command | None:
        """Asks which queues or partitions there are, with their limits and nodes; None: it cannot be asked."""
        ...

    def read_queues(self, answer: Answer) -> "tuple[Queue, ...]":
        """The queues in the answer; empty if it says nothing."""
        ...

    # A dialect may also have
    # `array_limit()`, a command that asks how many elements an array may have at this site, and
    # `read_array_limit(answer)`, which returns that number or None;
    # `queue_details(queues)`, commands that ask what the answer to `queues()` does not have, and
    # `read_queue_details(queues, answers, options)`, which returns the queues with that; an answer may be useless;
    # `why_waiting(user, native_ids)`, a command that asks why these jobs wait, where the listing does not say it, and
    # `read_why_waiting(answer)`, which returns native id (or that of the whole array) → the system's own words;
    # `kill_apart(native_ids, force)`, which returns them in lists, each of which one command of `kill` can end;
    # `deletes_by_kill`, true where a deletion is a KILL at once, of which no record says who sent it;
    # `hopeless`, with what the reasons for waiting begin of a job that can never run;
    # `spread`, how a job starts a program on each of its nodes: a name in `SPREADS` of `rota.drivers.script`.


class Queue(NamedTuple):
    """A queue or partition, as far as the system tells."""

    name: str
    is_default: bool
    nodes: int | None
    cores: int | None
    """Millicores of its largest node."""
    memory: int | None
    """Bytes of its largest node."""
    gpus: int | None
    """Of the node that has most; None: the system does not say."""
    time_s: int | None
    """The longest time that a job may ask for."""
    up: bool
    nodes_most: int | None = None
    """The most nodes of one job."""
    users: tuple[str, ...] | None = None
    """The only users that it is for; None: all, as far as is told."""
    hosts: tuple[str, ...] | None = None
    """The only hosts that it has; None: all, or not told."""
    hidden: bool = False
    """Whether it is for those only who name it."""
    usual_s: int | None = None
    """The time of a job that asks for none; None: the longest, or not told."""

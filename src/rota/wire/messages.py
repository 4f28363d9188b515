"""What clients and runners say to the manager, as types. The same contract as docs/protocol.md.

Decoding a request takes two steps: `decode_client` reads only its number and its op, `decode_ask` its arguments, so
that a wrong argument is answered with the request's number. Whatever the bytes, nothing but ProtocolError comes out.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct, field

from rota.model.batch import Dependency
from rota.model.errors import ProtocolError

__all__ = [
    "OPS", "VERSION", "Ask", "Bye", "Greet", "Held", "Hello", "Prove", "Released", "Report", "RunnerMessage", "Tail",
    "Touch", "decode_ask", "decode_client", "decode_greeting", "decode_runner", "encode",
]  # fmt: skip

VERSION = 1

# The bounds stop a hostile or broken runner from planting absurd figures; they are far beyond any real machine.
_LONG = 1 << 53
_MEMORY = 1 << 50
_DISK = 1 << 60
_ROWS = 10_000
"""Rows of one message of a runner; ours report 512 at most, and hold a few jobs for each of their cores."""

Count = Annotated[int, Meta(ge=0, le=_LONG)]
Number = Annotated[int, Meta(ge=0, le=1 << 31)]
Link = Annotated[int, Meta(ge=0, lt=1 << 32)]
Bytes = Annotated[int, Meta(ge=0, le=_MEMORY)]
Disk = Annotated[int, Meta(ge=0, le=_DISK)]
Wall = Annotated[float, Meta(ge=0.0, le=1e11)]
Cpu = Annotated[float, Meta(ge=0.0, le=1e10)]
Clock = Annotated[float, Meta(ge=-1e15, le=1e15)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]

Word = Annotated[str, Meta(max_length=4096)]
Line = Annotated[str, Meta(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
Holder = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
Path = Annotated[str, Meta(max_length=4096, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
Name = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*\Z")]
RunnerName = Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*\Z")]
"""TAG.ELEMENT.NODE.NONCE, and a node may be called by a host name of 63 letters."""
Hex = Annotated[str, Meta(max_length=128, pattern=r"^[0-9A-Za-z_-]+\Z")]
Reason = Annotated[str, Meta(max_length=64, pattern=r"^[a-z-]+\Z")]
Note = Annotated[str, Meta(max_length=10_000)]
File = Annotated[str, Meta(max_length=255, pattern=r"(?a)^(?:[\w:=+,-][\w.:=+,-]*(?:/[\w:=+,-][\w.:=+,-]*)*)?\Z")]
"""A file below the runner's output directory. No component begins with a dot, so none leads out of it."""

Ref = tuple[Count, Count, Number]
"""batch, index, attempt"""
StartedRow = tuple[Count, Count, Number, Wall, Count, File | None]
"""batch, index, attempt, wall clock, pid, scratch file"""
Output = tuple[File | None, Count, Count, Count, File | None, Count, Count, Count]
"""file, offset, length, dropped: of stdout, then of stderr"""
ExitCode = Annotated[int, Meta(ge=0, le=255)]
Signal = Annotated[int, Meta(ge=1, le=127)]


class EndedRow(NamedTuple):
    """How an attempt ended."""

    batch: Count
    number: Count
    attempt: Number
    exit_code: ExitCode | None
    signal: Signal | None
    reason: Reason | None
    started: Wall
    ended: Wall
    cpu_s: Cpu
    peak_memory: Bytes
    output: Output | None
    note: Note | None
    peak_disk: Disk | None = None


class LeftRow(NamedTuple):
    """What an attempt whose command is over left running, and is waited for; of many only the first are named."""

    batch: Count
    number: Count
    attempt: Number
    ended: Wall
    many: Count
    processes: Annotated[list[tuple[Count, Annotated[str, Meta(max_length=64)]]], Meta(max_length=10)]


HoldRow = tuple[Count, Count, Number, Line]
"""batch, index, attempt, and HOST:PORT where ranks are started"""
DisclaimedRow = tuple[Count, Count, Number, Note]
"""batch, index, attempt, why"""


class LiveRow(NamedTuple):
    """What a running attempt uses now."""

    batch: Count
    number: Count
    attempt: Number
    cpu_s: Cpu
    memory: Bytes
    pid: Count
    scratch: File | None
    disk: Disk | None = None
    started: Wall | None = None


# Greetings


class Hello(Struct, tag_field="t", tag="hello"):
    """The greeting of a client. `proof` over TLS only; `name` is that of its token."""

    version: int
    proof: Hex | None = None
    name: Name | None = None


class Greet(Struct, tag_field="t", tag="greet"):
    """The greeting of a runner. `held` has no default: to leave it out would give all its jobs to others."""

    version: int
    runner: RunnerName
    connect: Count
    clock: Clock
    host: Line
    pid: Count
    cores: Annotated[int, Meta(ge=0, le=1_000_000_000)]
    memory: Bytes
    output: Path
    held: Annotated[list[Ref], Meta(max_length=100_000)]
    allocation: Name | None = None
    disk: Annotated[int, Meta(ge=0, le=_DISK)] = 0
    gpus: Annotated[int, Meta(ge=0, le=100_000)] = 0
    tags: Annotated[list[Line], Meta(max_length=1_000)] = []
    until_s: Seconds | None = None
    proof: Hex | None = None
    holds: Annotated[list[HoldRow], Meta(max_length=100_000)] = []
    gangs: bool = False
    """Whether it can hold parts of gangs."""
    replaces: RunnerName | None = None
    """The runner whose end, with that of all it had started on this node, the supervisor of the node has seen to."""


class Prove(Struct, tag_field="t", tag="prove"):
    """The proof alone, before a greeting that is too long for somebody unknown."""

    version: int
    allocation: Name
    proof: Hex


# What a runner says after its greeting


class Report(Struct, tag_field="t", tag="report"):
    """What happened to attempts. Repeated until acknowledged."""

    session: Count
    seq: Count
    got: Count
    clock: Clock
    started: Annotated[list[StartedRow], Meta(max_length=_ROWS)] = []
    ended: Annotated[list[EndedRow], Meta(max_length=_ROWS)] = []
    disclaimed: Annotated[list[DisclaimedRow], Meta(max_length=_ROWS)] = []


class Touch(Struct, tag_field="t", tag="touch"):
    """A sign of life of a runner."""

    session: Count
    got: Count
    clock: Clock
    held: Annotated[list[Ref], Meta(max_length=_ROWS)]
    live: Annotated[list[LiveRow], Meta(max_length=_ROWS)] = []
    left: Annotated[list[LeftRow], Meta(max_length=_ROWS)] = []
    holds: Annotated[list[HoldRow], Meta(max_length=_ROWS)] = []


class Held(Struct, tag_field="t", tag="held"):
    """The parts of gangs that a runner holds: all of them."""

    session: Count
    holds: Annotated[list[HoldRow], Meta(max_length=_ROWS)]


class Released(Struct, tag_field="t", tag="released"):
    """Attempts of which nothing is left on this runner's node, and which it will not hold again."""

    session: Count
    jobs: Annotated[list[Ref], Meta(max_length=_ROWS)]


class Tail(Struct, tag_field="t", tag="tail"):
    """What a running job has written; None: it does not run there."""

    session: Count
    ask: Count
    data: Annotated[bytes, Meta(max_length=1 << 17)] | None = None
    next: Count | None = None
    """Where that ends; more than its length if some was left out."""


class Bye(Struct, tag_field="t", tag="bye"):
    """The runner holds nothing, everything is acknowledged, and it exits."""

    session: Count
    reason: Note = ""


# What a client says after its greeting


class Ask(Struct, tag_field="t", tag="ask"):
    """The head of any request."""

    id: Count
    op: Annotated[str, Meta(max_length=32)]


Selector = Annotated[list[Word], Meta(max_length=10_000)]
Cursor = Annotated[str, Meta(max_length=200)] | int | None
_NULL = Raw(b"null")


class Nothing(Struct):
    """Arguments of ops that have none."""


class Select(Struct):
    """Arguments of `count`."""

    sel: Selector = []


class Status(Struct):
    """Arguments of `status`."""

    sel: Selector = []
    brief: bool = False
    after: int = 0


class GraphHead(Struct):
    """The nodes of a graph that are not jobs of its batch: names that some of these have, and what is outside."""

    names: list[Word] = field(default_factory=list)
    after: list[Dependency] = field(default_factory=list)


class Stage(Struct):
    """Arguments of `stage`. `values` is decoded by the manager, when it wants to."""

    stage: Hex
    first: Count
    values: Raw
    templates: list[Number] | None = None
    links: list[list[Link]] | None = None
    """What each of `values` waits for and belongs to, as `Graph.links` has it."""


class Submit(Struct):
    """Arguments of `submit`. `batch` is a BatchSpec, `values` a list or null, `env` an object of texts or null: decoded
    by the manager."""

    key: Hex
    batch: Raw
    values: Raw = _NULL
    stage: Hex | None = None
    env: Raw = _NULL
    limits: dict[Word, Count | Word] | None = None
    """Named limits to set: a count, or what is written after the colon (`--limit irods:10`, `api:100/min`)."""
    templates: list[Number] | None = None
    """Which template each of `values` has."""
    end: Raw = _NULL
    """A BatchSpec of one job to run when all of the batch is settled, or null."""
    once: Literal["cwd", "command"] | None = None
    """Leave out jobs whose command (and working directory) is queued or done already."""
    rerun: bool = False
    """With `once`: count them, and add them nevertheless."""
    links: list[list[Link]] | None = None
    """What each of `values` waits for and belongs to."""
    graph: GraphHead | None = None
    """What links of `values`, or of what was staged, name besides jobs of the batch."""


class Filtered(Select):
    """What `jobs` and `history` can be searched by."""

    after: Cursor = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000
    command: Word | None = None
    """A part of the command."""
    host: Line | None = None
    exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None
    reason: Line | None = None
    since: Wall | None = None
    until: Wall | None = None

    @property
    def searches(self) -> bool:
        """Whether any field restricts the search."""
        given = (self.command, self.host, self.exit_code, self.reason, self.since, self.until)
        return any(field is not None for field in given)


class Jobs(Filtered):
    """Arguments of `jobs`."""

    newest: bool = False


class History(Filtered):
    """Arguments of `history`."""

    states: Annotated[list[Line], Meta(max_length=20)] = []
    """Of attempts."""


class Live(Select):
    """Arguments of `live`."""

    limit: Annotated[int, Meta(ge=1, le=1_000)] = 200


class Pause(Struct, rename={"holder": "as"}):
    """Arguments of `pause`."""

    holder: Holder = "user"
    reason: Line = ""


class Resume(Struct, rename={"holder": "as"}):
    """Arguments of `resume`."""

    holder: Holder = "user"
    all: bool = False


class Backup(Struct):
    """Arguments of `backup`."""

    path: Path | None = None
    redact: bool = False
    """Without what looks like a secret."""


class Explain(Select):
    """Arguments of `explain`: one job, or a selector, page by page or in groups."""

    job: Word = ""
    after: Cursor = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    groups: bool = False


class Show(Struct):
    """Arguments of `show`."""

    job: Word


class Log(Struct):
    """Arguments of `log`."""

    job: Word
    attempt: Number | None = None
    stream: Literal["stdout", "stderr"] = "stdout"
    offset: Count = 0
    limit: Annotated[int, Meta(ge=1, le=1 << 20)] = 1 << 20


class Follow(Select):
    """Arguments of `follow`."""

    held: bool = False
    """What is held need not be waited for."""


class Wait(Follow):
    """Arguments of `wait`."""

    timeout_s: Seconds | None = None


class Summary(Struct):
    """Arguments of `summary`."""

    batch: Count
    failures: Annotated[int, Meta(ge=0, le=1_000)] = 10
    slowest: Annotated[int, Meta(ge=0, le=1_000)] = 0


class Change(Struct):
    """Arguments of `release` and `remove`."""

    sel: Selector = []
    all: bool = False
    dry_run: bool = False


class Kill(Change):
    """Arguments of `kill`."""

    confirm_dead: bool = False


class Modify(Change):
    """Arguments of `modify` and `retry`: a Patch."""

    changes: msgspec.Raw = msgspec.Raw(b"{}")


class Hold(Change):
    """Arguments of `hold`."""

    stop: bool = False


class Prune(Change):
    """Arguments of `prune`."""

    older_than_s: Seconds = 0.0
    keep: Count = 0


class Limits(Struct):
    """Arguments of `limit`: a count, or what is written after the colon; None takes a limit away."""

    set: Annotated[dict[Line, Count | Word | None], Meta(max_length=1_000)] = {}


class Token(Struct):
    """Arguments of `token`: what is done with the tokens of clients."""

    action: Literal["new", "list", "revoke", "rotate"]
    name: Name | None = None
    scope: Literal["read", "submit", "admin"] = "read"
    lifetime_s: Seconds | None = None


class Down(Struct):
    """Arguments of `down`."""

    kill: bool = False


class Usage(Struct):
    """Arguments of `usage`."""

    after: Count = 0


class Clean(Struct):
    """Arguments of `clean`: the clouds whose servers are looked at; none: all."""

    sites: list[str] = []


class End(Struct):
    """Arguments of `end`: allocations that are to end."""

    ids: list[str] = []


class Data(Struct):
    """Arguments of `data`: what to do with replicas of these paths (none: of all), at a place or a site."""

    action: Literal["list", "add", "drop", "verify"] = "list"
    paths: list[str] = []
    location: str | None = None
    checksum: bool = False
    """Of `add`: whether their digests are worked out."""
    files: bool = False
    """Of `drop`: whether the files that rota brought are removed too."""


OPS: dict[str, type[Struct]] = {
    "data": Data,
    "ping": Nothing,
    "stage": Stage,
    "submit": Submit,
    "status": Status,
    "jobs": Jobs,
    "count": Select,
    "explain": Explain,
    "history": History,
    "failures": Select,
    "totals": Select,
    "usage": Usage,
    "show": Show,
    "log": Log,
    "wait": Wait,
    "follow": Follow,
    "summary": Summary,
    "kill": Kill,
    "hold": Hold,
    "release": Change,
    "remove": Change,
    "retry": Modify,
    "modify": Modify,
    "pause": Pause,
    "resume": Resume,
    "drain": Nothing,
    "reload": Nothing,
    "clean": Clean,
    "end": End,
    "down": Down,
    "limit": Limits,
    "sites": Nothing,
    "costs": Nothing,
    "runners": Nothing,
    "allocations": Nothing,
    "learning": Nothing,
    "plugins": Nothing,
    "live": Live,
    "backup": Backup,
    "prune": Prune,
    "token": Token,
}
"""Every op and the type of its arguments."""


Greeting = Hello | Greet | Prove
_GREETING: msgspec.json.Decoder[Greeting] = msgspec.json.Decoder(Greeting)
RunnerMessage = Report | Touch | Tail | Held | Released | Bye
_RUNNER: msgspec.json.Decoder[RunnerMessage] = msgspec.json.Decoder(RunnerMessage)
_ASK: msgspec.json.Decoder[Ask] = msgspec.json.Decoder(Ask)
_ARGUMENTS: dict[str, msgspec.json.Decoder[Any]] = {op: msgspec.json.Decoder(kind) for op, kind in OPS.items()}


def _refusal(what: str, error: Exception) -> ProtocolError:
    return ProtocolError(f"{what}: {str(error) or type(error).__name__}")


# msgspec raises DecodeError (ValidationError is one), RecursionError for deep text, UnicodeDecodeError for bad UTF-8.
_BAD = (msgspec.MsgspecError, RecursionError, ValueError)


def decode_greeting(payload: bytes) -> Greeting:
    """The first message on a connection."""
    try:
        return _GREETING.decode(payload)
    except _BAD as error:
        raise _refusal("not a greeting", error) from error


def decode_client(payload: bytes) -> Ask:
    """The head of a request."""
    try:
        return _ASK.decode(payload)
    except _BAD as error:
        raise _refusal("not a request", error) from error


def decode_ask(op: str, payload: bytes) -> Any:
    """The arguments of a request: the Struct that OPS names for this op."""
    decoder = _ARGUMENTS.get(op)
    if decoder is None:
        raise ProtocolError(f"unknown op {op[:32]!r}")
    try:
        return decoder.decode(payload)
    except _BAD as error:
        raise _refusal(f"arguments of {op!r}", error) from error


def decode_runner(payload: bytes) -> RunnerMessage:
    """A message of a runner after its greeting."""
    try:
        return _RUNNER.decode(payload)
    except _BAD as error:
        raise _refusal("not a runner's message", error) from error


encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
"""Any message (a dict, or one of the Structs here) as JSON."""

"""A lease: one attempt of one job in the hands of a runner, until its end is acknowledged."""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, which is not worth its load time before the greeting is out
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

    Key = Tuple[int, int, int]
    Order = Tuple[Any, ...]
    Outcome = Tuple[Optional[int], Optional[int], Optional[str], Optional[str]]  # exit code, signal, reason, note
    Used = Tuple[float, int, Optional[int]]  # CPU seconds, and at most: bytes of memory, of a directory of its own
    Left = Tuple[float, int, List[Tuple[int, str]]]  # when its command ended; how many it left, pids and names

__all__ = [
    "ENDED", "QUEUED", "RUNNING", "STAGING", "Hold", "Lease", "ProtocolError", "number", "read_gangs", "read_holds",
    "read_keys", "read_leases", "read_links",
]  # fmt: skip

QUEUED = "queued"
RUNNING = "running"
ENDED = "ended"
STAGING = "staging"  # what it reads is being brought


class ProtocolError(ValueError):
    """The manager said something that docs/protocol.md does not allow."""


class Lease:
    """One attempt that the manager gave to this runner."""

    __slots__ = (
        "attempt",
        "batch",
        "command",
        "env",
        "extra",
        "gang",
        "grace_s",
        "index",
        "key",
        "kill_asked",
        "left",
        "links",
        "live",
        "pid",
        "scratch",
        "since",
        "slot",
        "spec",
        "start_by",
        "state",
        "told",
        "wall",
    )

    def __init__(  # seven, as in a lease message: one is made for each job
        self,
        slot: str,
        spec: Dict[str, Any],
        key: Key,
        command: Union[str, List[str]],
        extra: Optional[Dict[str, Any]],
        start_by: float,
        env: Optional[Dict[str, str]] = None,
    ) -> None:
        self.slot = slot
        self.spec = spec
        self.key = key
        self.batch, self.index, self.attempt = key
        self.command = command
        self.extra = extra
        self.start_by = start_by
        self.env = env
        self.gang: Optional[Dict[str, Any]] = None  # of a job on several nodes: its secret and its nodes, ours first
        self.links: Tuple[Tuple[str, str], ...] = ()  # (name, path) of what it reads, for a directory of its own
        self.state = QUEUED
        self.kill_asked = False
        self.grace_s = 0.0
        self.since = 0.0  # runner clock when it was handed out to be started
        self.wall = 0.0
        self.pid = 0
        self.scratch: Optional[str] = None  # its scratch files, without .out and .err: what it wrote so far
        self.told = False  # a `started` row was made for it
        self.live: Optional[Tuple[Any, ...]] = None  # CPU seconds, memory, and the disk of a directory of its own
        self.left: Optional[Left] = None  # its command is over, and these are waited for

    def __deepcopy__(self, memo: Dict[int, Any]) -> Lease:
        """Copy the mutable part; specs, commands and environments are never changed, so they are shared."""
        new: Optional[Lease] = memo.get(id(self))
        if new is None:
            new = memo[id(self)] = Lease.__new__(Lease)
            for name in Lease.__slots__:
                setattr(new, name, getattr(self, name))
        return new

    def __repr__(self) -> str:
        return "Lease(%d.%d/%d %s %s)" % (self.batch, self.index, self.attempt, self.slot, self.state)


class Hold:
    """One node's part of an attempt whose command runs on another node. Never changed."""

    __slots__ = ("key", "secret", "slot", "spec")

    def __init__(self, key: Key, slot: str, secret: str, spec: Dict[str, Any]) -> None:
        self.key = key
        self.slot = slot
        self.secret = secret
        self.spec = spec


def _key(batch: Any, index: Any, attempt: Any) -> Key:
    if type(batch) is int and type(index) is int and type(attempt) is int:
        return (batch, index, attempt)
    raise ProtocolError("not an attempt: %.100r" % ([batch, index, attempt],))


def read_keys(rows: Any) -> List[Key]:
    """Read the `jobs` of an order."""
    try:
        return [_key(batch, index, attempt) for batch, index, attempt in rows]
    except (TypeError, ValueError) as problem:
        raise ProtocolError("not a list of attempts: %s" % problem) from None


def read_links(rows: Any) -> Dict[Key, Tuple[Tuple[str, str], ...]]:
    """Read the `links` of a message about what is here."""
    try:
        return {_key(*key): tuple([(_name(name), str(path)) for name, path in links]) for key, links in rows}
    except (TypeError, ValueError) as problem:
        raise ProtocolError("not a list of links: %s" % problem) from None


def _name(name: Any) -> str:
    if type(name) is not str or not name or "/" in name or "\0" in name or name in (".", ".."):
        raise ProtocolError("not the name of a file: %.100r" % (name,))
    return name


def read_leases(rows: Any, specs: Mapping[str, Any], envs: Mapping[str, Any], start_by: float) -> List[Lease]:
    """Read the `jobs` of a lease message, all or nothing."""
    leases = []
    try:
        for slot, name, batch, index, attempt, command, extra in rows:
            spec = specs[name]
            hashed = spec.get("env")
            if extra and isinstance(extra.get("env"), str):
                hashed = extra["env"]
            env = None if hashed is None else envs[hashed]
            if type(slot) is not str or type(command) not in (str, list):
                raise ProtocolError("job %.50r.%.50r has a bad slot or command" % (batch, index))
            leases.append(Lease(slot, spec, _key(batch, index, attempt), command, extra, start_by, env))
    except (TypeError, ValueError, AttributeError) as problem:
        raise ProtocolError("not a list of jobs: %s" % problem) from None
    except KeyError as problem:
        raise ProtocolError("a lease names %s, which was not sent in this session" % problem) from None
    return leases


def read_holds(rows: Any) -> List[Hold]:
    """Read the `jobs` of a hold message, all or nothing."""
    holds = []
    try:
        for row in rows:
            secret, slot, spec = row["secret"], row["slot"], row.get("spec") or {}
            if type(secret) is not str or len(secret) < 16 or type(slot) is not str or type(spec) is not dict:
                raise ProtocolError("the hold of %.50r has a bad secret, slot or spec" % (row.get("job"),))
            holds.append(Hold(_key(*row["job"]), slot, secret, spec))
    except (TypeError, ValueError, AttributeError, KeyError) as problem:
        raise ProtocolError("not a list of holds: %s" % problem) from None
    return holds


def read_gangs(given: Any, leases: List[Lease]) -> None:
    """Read the `gangs` of a lease message into its leases."""
    try:
        for lease in leases:
            gang = given.get("%d.%d.%d" % lease.key)
            if gang is None:
                continue
            nodes = [(node["host"], node["address"]) for node in gang["nodes"]]
            if type(gang["secret"]) is not str or not nodes:
                raise ProtocolError("the gang of job %d.%d has no secret or no nodes" % lease.key[:2])
            lease.gang = gang
    except (TypeError, ValueError, AttributeError, KeyError) as problem:
        raise ProtocolError("gangs cannot be read: %s" % problem) from None


def number(message: Dict[str, Any], name: str) -> float:
    """A number of a message."""
    value = message.get(name)
    if type(value) is int or (type(value) is float and value == value):
        return value
    raise ProtocolError("%s: %s is not a number: %.50r" % (message.get("t"), name, value))

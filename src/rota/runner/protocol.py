"""The runner's side of docs/protocol.md without clock, file or socket.

The real agent, the simulator and the model checker drive the same class, so that what is proven is what runs.
Nothing here may start an attempt twice or forget one, whatever is lost, repeated, delayed or reordered on the way:

* a lease counts only in the session it was made for, in the order of `n`, and for an attempt not seen before;
* one report is under way at a time. An `ack` covers every `seq` up to its own, so a second report sent before the
  first is acknowledged could, if the first were lost, make the runner forget ends that the manager never saw;
* a released attempt is neither held nor started again, and `released` is said only when nothing of it is left here.
"""

from __future__ import annotations

from collections import ChainMap

from rota.runner.holds import Holds
from rota.runner.lease import (
    ENDED,
    QUEUED,
    RUNNING,
    STAGING,
    Hold,
    Lease,
    ProtocolError,
    number,
    read_gangs,
    read_keys,
    read_leases,
    read_links,
)

TYPE_CHECKING = False  # as in `typing`, which is not worth its load time before the greeting is out
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from rota.runner.lease import Key, Left, Order

    Message = Dict[str, Any]

__all__ = ["Hold", "Lease", "ProtocolError", "Runner"]

VERSION = 1
NEVER = float("inf")
BATCHING_S = 0.1  # an end waits at most this long for company, while there is more to start
BATCH_ROWS = 256
REPORT_ROWS = 512  # most rows in one report, far below the frame limit
TELL_START_S = 0.05  # shorter jobs travel as `ended` only
RESEND_S = 5.0
TELL_GOT_S = 1.0  # the manager should not repeat a lease only because we had nothing else to say
REMEMBERED = 4096  # attempts over and acknowledged that a repeated lease must not start again (twice this many at most)


class Runner(Holds):
    """All that a runner knows and decides about its sessions, leases and reports."""

    def __init__(self, runner_id: str, facts: Dict[str, Any]) -> None:
        super().__init__()
        self.runner_id = runner_id
        self.facts = facts
        self.address = "%s:0" % facts.get("host", "")
        self.connect = 0
        self.got = 0
        self.seq = 0
        self.touch_s = 15.0
        self.start_by_s = 120.0
        self.linger_s = 60.0
        self.refused: Optional[str] = None
        self._last_session = 0
        self._awaits_welcome = False  # greeted on a connection that still stands, and not answered
        self.job_secret: Optional[bytes] = None  # from which the tokens of jobs are made
        self._specs: Dict[str, Any] = {}
        self._envs: Dict[str, Any] = {}
        self._flight: Optional[Message] = None  # the report under way
        self._flight_sent: Optional[float] = None  # None: to be sent at once
        self._waiting_since: Optional[float] = None  # when outgoing() first saw the rows that wait
        self._sent_at = 0.0
        self._owes_got = False
        self._doomed: Dict[Key, str] = {}  # killed or recalled before their lease arrived

    # -- connections ---------------------------------------------------------------------------------------------

    def greet(self, clock: float, until_s: Optional[float] = None) -> Message:
        """Begin a new connection and return its greeting; everything of older sessions is void from now on."""
        self.lost_connection()
        self._awaits_welcome = True
        self.connect += 1
        self._sent_at = clock
        message: Message = {"t": "greet", "version": VERSION, "runner": self.runner_id}
        message.update(self.facts)
        message.update(connect=self.connect, clock=clock, until_s=until_s, held=self.held(), gangs=True)
        if self._holds:
            message["holds"] = self.holds()
        return message

    @property
    def welcomed(self) -> bool:
        """Whether a manager has ever answered."""
        return self._last_session > 0

    def lost_connection(self) -> None:
        """Forget the session: nothing more can be sent in it, and what still arrives from it is void."""
        self.session = None
        self._awaits_welcome = False
        self._doomed = {}
        self._flight_sent = None

    @property
    def finished(self) -> bool:
        """Nothing held, all acknowledged and told to leave: the process may exit."""
        if self.leaving is None and self.refused is None:
            return False
        return not self.occupied and (self._said_bye or self.session is None or self.expired)

    # -- what the manager says -----------------------------------------------------------------------------------

    def receive(self, message: Message, clock: float) -> List[Order]:
        """Take one message; return orders for the agent.

        ("kill", lease, grace_s), ("tail", message), ("exit", why), and of gangs: ("hold", hold): let its ranks be
        started, at `address`; ("release", key, grace_s): end all of it on this node, then say so by released(key).
        """
        if not isinstance(message, dict):
            raise ProtocolError("not an object")
        kind = message.get("t")
        if kind == "ack":
            self._ack(number(message, "seq"))
        elif kind == "lease":
            self._lease(message, clock)
        elif kind == "welcome":
            self._welcome(message, clock)
        elif kind == "kill":
            return self._kill(message)
        elif kind == "recall":
            self._recall(message)
        elif kind == "hold":
            return self._hold(message)
        elif kind == "staged":
            self._hear_staged(message, clock)
        elif kind == "release":
            return self._release(message)
        elif kind == "tail":
            return [("tail", message)] if self.session is not None and message.get("session") == self.session else []
        elif kind in ("drain", "close"):
            if self.session is not None and self.leaving is None:
                self.leaving = "drained" if kind == "drain" else "closed"
        elif kind == "expired":
            return self._expire(message)
        elif kind == "error":
            return self._error(message)
        elif not isinstance(kind, str):
            raise ProtocolError("a message without a kind")
        return []

    def _welcome(self, message: Message, clock: float) -> None:
        if message.get("connect") != self.connect or not self._awaits_welcome or self.expired:
            return  # a late or repeated one: taking it would count the leases of a session from 1 again
        session = int(number(message, "session"))
        for name in ("touch_s", "start_by_s", "grace_s", "linger_s"):
            if message.get(name) is not None:
                setattr(self, name, number(message, name))
        if isinstance(message.get("jobs"), str):
            self.job_secret = bytes.fromhex(message["jobs"])
        self._awaits_welcome = False
        self.session = self._last_session = session
        self.got = 0
        self._specs = {}
        self._envs = {}
        self._sent_at = clock
        # A manager that was away knows nothing of what runs: tell it soon.
        self._owes_got = any((lease.live or lease.left) and lease.state == RUNNING for lease in self._held.values())

    def _lease(self, message: Message, clock: float) -> None:
        if self.session is None or message.get("session") != self.session or self.expired or self._said_bye:
            return
        n = number(message, "n")
        if n != self.got + 1:
            self._owes_got = True  # a repeat or a gap: the manager does not know how far we are
            return
        envs, specs, slots = message.get("envs") or {}, message.get("specs") or {}, message.get("slots") or []
        if not isinstance(envs, dict) or not isinstance(specs, dict):
            raise ProtocolError("envs and specs must be objects")
        if message.get("fresh"):  # what came before is not named any more
            known_specs: Dict[str, Any] = {}
            known_envs: Dict[str, Any] = {}
        else:
            known_specs, known_envs = self._specs, self._envs
        all_specs = ChainMap(specs, known_specs) if specs else known_specs
        all_envs = ChainMap(envs, known_envs) if envs else known_envs
        leases = read_leases(message.get("jobs", ()), all_specs, all_envs, number(message, "clock") + self.start_by_s)
        try:
            counts = {str(name): int(count) for name, count in slots}
        except (TypeError, ValueError):
            raise ProtocolError("slots must be pairs of a name and a number") from None
        if message.get("gangs"):
            read_gangs(message["gangs"], leases)
        if message.get("stage"):
            awaits = set(read_keys(message["stage"]))
            for lease in leases:
                lease.state = STAGING if lease.key in awaits else lease.state
        # Nothing can fail from here on: a message is taken whole or not at all.
        known_specs.update(specs)
        known_envs.update(envs)
        self._specs, self._envs = known_specs, known_envs
        self.slots.update(counts)
        self.got = int(n)
        self._owes_got = True
        for lease in leases:
            self._take(lease)

    def _hear_staged(self, message: Message, clock: float) -> None:
        """Take the word that what attempts read is here, or why it cannot be brought."""
        if self.session is None or message.get("session") != self.session or self.expired:
            return
        links = read_links(message.get("links") or ())
        said = number(message, "clock") if "clock" in message else clock  # it may have been on its way for long
        for key in read_keys(message.get("jobs") or ()):
            self.staged(key, said + self.start_by_s, links.get(key, ()))
        try:
            for batch, index, attempt, reason, note in message.get("failed") or ():
                self.unstaged((batch, index, attempt), str(reason), str(note), number(message, "at"))
        except (TypeError, ValueError) as problem:
            raise ProtocolError("not a list of what cannot be brought: %s" % problem) from None

    def _take(self, lease: Lease) -> None:
        key = lease.key
        if key in self._held or key in self._done or key in self._done_before:
            return  # never the same attempt twice, whoever asks
        self._held[key] = lease
        doom = self._doomed.pop(key, None) or self.leaving
        if doom is not None:
            self._disclaim(lease, doom)
        elif lease.state == STAGING:
            self._staging[key] = lease
        else:
            self._enqueue(lease)

    def _ack(self, seq: float) -> None:
        flight = self._flight
        if flight is None or seq < flight["seq"] or seq > self.seq:
            return
        self._flight = None
        for rows in (flight["ended"], flight["disclaimed"]):
            for row in rows:
                key = (row[0], row[1], row[2])
                self._held.pop(key, None)
                self._done[key] = None
                if self._releasing:
                    self._settle_release(key)
        if len(self._done) >= REMEMBERED:
            self._done_before, self._done = self._done, {}

    def _kill(self, message: Message) -> List[Order]:
        keys = read_keys(message.get("jobs"))
        given = message.get("grace_s")
        grace_s = self.grace_s if given is None else max(0.0, number(message, "grace_s"))
        orders: List[Order] = []
        if self.session is None or message.get("session") != self.session:
            return orders
        for key in keys:
            lease = self._held.get(key)
            if lease is None:
                self._doom(key, "killed")
            elif lease.state in (QUEUED, STAGING):
                lease.kill_asked = True
                self._withdraw(lease, "killed")
            elif lease.state == RUNNING and (not lease.kill_asked or grace_s < lease.grace_s):
                lease.kill_asked = True
                lease.grace_s = grace_s
                orders.append(("kill", lease, grace_s))
        return orders

    def _recall(self, message: Message) -> None:
        keys = read_keys(message.get("jobs"))
        if self.session is None or message.get("session") != self.session:
            return
        for key in keys:
            lease = self._held.get(key)
            if lease is None:
                self._doom(key, "recalled")
            elif lease.state in (QUEUED, STAGING):
                self._withdraw(lease, "recalled")

    def _doom(self, key: Key, why: str) -> None:
        """Remember an order that overtook its lease, so that it is not lost when the lease comes."""
        if key not in self._done and key not in self._done_before:
            if len(self._doomed) >= REMEMBERED:
                self._doomed.pop(next(iter(self._doomed)))
            if self._doomed.get(key) != "killed":
                self._doomed[key] = why

    def _expire(self, message: Message) -> List[Order]:
        if message.get("connect") != self.connect or self.expired:
            return []
        self.expired = True
        self.session = self._last_session  # the manager has no session for us, and still takes the report
        self._flight_sent = None
        orders: List[Order] = [("kill", lease, self.grace_s) for lease in self._held.values() if lease.state == RUNNING]
        self.stop("expired")
        for key in self._holds:
            self._fence(key)
            self._releasing.setdefault(key, False)
            orders.append(("release", key, self.grace_s))
        orders.append(("exit", "expired: %s" % message.get("reason")))
        return orders

    def _error(self, message: Message) -> List[Order]:
        """An error in answer to a greeting is final; one in a session ends the connection, which the agent sees."""
        if self.session is not None or message.get("code") == "busy":
            return []
        self.refused = "%s: %s" % (message.get("code"), message.get("message"))
        self.stop("refused")
        return [("exit", self.refused)]

    def waits_for(self, lease: Lease, left: Left) -> None:
        """Note what an attempt whose command is over left running; that is told soon."""
        self._owes_got = True
        lease.left = left

    # -- what we say ---------------------------------------------------------------------------------------------

    def outgoing(self, clock: float, flush: bool = False) -> List[Message]:
        """Return the messages to send now, on a connection that has been welcomed."""
        if self.session is None or self._said_bye:
            return []
        messages: List[Message] = []
        if self._flight is None and self._ripe(clock, flush):
            self._make_report(clock)
        if self._flight is not None and (self._flight_sent is None or clock >= self._flight_sent + RESEND_S):
            self._flight_sent = clock
            messages.append({"t": "report", "session": self.session, "got": self.got, "clock": clock, **self._flight})
        if not messages and not self.expired and clock >= self._touch_at():
            live = [
                [*lease.key, *lease.live[:2], lease.pid, lease.scratch, (*lease.live, None)[2], lease.wall]
                for lease in self._held.values()
                if lease.live and lease.state == RUNNING
            ]
            touch: Message = {
                "t": "touch",
                "session": self.session,
                "got": self.got,
                "clock": clock,
                "held": self.held(),
            }
            if live:
                touch["live"] = live
            left = [[*lease.key, *lease.left] for lease in self._held.values() if lease.left and lease.state == RUNNING]
            if left:
                touch["left"] = left
            if self._holds:
                touch["holds"] = self.holds()
                self._owes_holds = False
            messages.append(touch)
        if messages:
            self._sent_at = clock
            self._owes_got = False
        if self._owes_holds or self._released:
            self._speak_of_gangs(messages)
        if self.leaving is not None and not self.occupied:
            self._said_bye = True
            if not self.expired:
                messages.append({"t": "bye", "session": self.session, "reason": self.leaving})
        return messages

    def _ripe(self, clock: float, flush: bool) -> bool:
        """Is there something to report, and should it wait no longer?"""
        fresh = self._fresh
        while fresh and fresh[0].state != RUNNING:
            fresh.popleft()
        if fresh and fresh[0].since + TELL_START_S <= clock:
            if fresh[0].pid:
                return True
            fresh[0].since = clock  # handed to the launcher, not started yet: look again later
            fresh.rotate(-1)
        rows = len(self._ended) + len(self._disclaimed)
        if not rows:
            return False
        if flush or rows >= BATCH_ROWS or self.queued < sum(self.slots.values()):
            return True
        if self._waiting_since is None:
            self._waiting_since = clock
        return clock >= self._waiting_since + BATCHING_S

    def _make_report(self, clock: float) -> None:
        started: List[List[Any]] = []
        fresh = self._fresh
        while fresh and len(started) < REPORT_ROWS and fresh[0].since + TELL_START_S <= clock:
            lease = fresh[0]
            if lease.state == RUNNING and not lease.pid:
                break
            fresh.popleft()
            if lease.state == RUNNING and not lease.told:  # one that was handed out twice stands here twice
                lease.told = True
                started.append([*lease.key, lease.wall, lease.pid, lease.scratch])
        self.seq += 1
        ended, self._ended = self._ended[:REPORT_ROWS], self._ended[REPORT_ROWS:]
        room = REPORT_ROWS - len(ended)
        disclaimed, self._disclaimed = self._disclaimed[:room], self._disclaimed[room:]
        self._flight = {"seq": self.seq, "started": started, "ended": ended, "disclaimed": disclaimed}
        self._flight_sent = None
        self._waiting_since = None

    def _touch_at(self) -> float:
        return self._sent_at + (min(TELL_GOT_S, self.touch_s) if self._owes_got else self.touch_s)

    def deadline(self, clock: float) -> Optional[float]:
        """When outgoing() or startable() next want to be called, if nothing happens before."""
        best: Optional[float] = None
        for queue in self._queues.values():
            if best is None or queue[0].start_by < best:
                best = queue[0].start_by
        if self.session is None or self._said_bye:
            return best
        due = NEVER if self.expired else self._touch_at()  # an expired runner does not touch
        if self._owes_holds or self._released:
            due = clock
        if self._flight is not None:
            due = min(due, clock if self._flight_sent is None else self._flight_sent + RESEND_S)
        else:
            if self._fresh and self._fresh[0].since + TELL_START_S < due:
                due = self._fresh[0].since + TELL_START_S
            if self._ended or self._disclaimed:
                due = min(due, clock if self._waiting_since is None else self._waiting_since + BATCHING_S)
        if best is not None and best < due:
            return best
        return None if due == NEVER else due

    # -- what outlives the process, and copies -------------------------------------------------------------------

    def unsent(self) -> Dict[str, Any]:
        """What to spool to disk if the process must exit before the manager has acknowledged it."""
        flight = self._flight or {"ended": [], "disclaimed": []}
        return {
            "version": VERSION,
            "runner": self.runner_id,
            "connect": self.connect,
            "seq": self.seq,
            "ended": flight["ended"] + self._ended,
            "disclaimed": flight["disclaimed"] + self._disclaimed,
        }

    def restore(self, spooled: Dict[str, Any]) -> None:
        """Take over what an earlier process spooled: it is held, and reported again, until acknowledged."""
        if spooled.get("version") != VERSION:
            raise ProtocolError("unsent reports of version %.20r" % spooled.get("version"))
        ended, disclaimed = list(spooled["ended"]), list(spooled["disclaimed"])
        keys = read_keys([row[:3] for row in ended + disclaimed])
        if spooled.get("runner") == self.runner_id:
            self.connect = max(self.connect, int(number(spooled, "connect")))
            self.seq = max(self.seq, int(number(spooled, "seq")))
        for key in keys:
            lease = Lease("", {}, key, [], None, 0.0)
            lease.state = ENDED
            self._held[key] = lease
        self._ended.extend(ended)
        self._disclaimed.extend(disclaimed)

    def __deepcopy__(self, memo: Dict[int, Any]) -> Runner:
        """Copy what can change; the model checker does this very often."""
        new = Runner.__new__(Runner)
        new.__dict__.update(self.__dict__)
        self._copy_holdings(new, memo)
        new._doomed = dict(self._doomed)
        new._done = dict(self._done)
        new._done_before = dict(self._done_before)
        memo[id(self)] = new
        return new

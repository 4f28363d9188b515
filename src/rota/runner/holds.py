"""The parts of gangs in the protocol: what a runner holds for jobs whose command runs elsewhere, and gives up.

A released attempt is neither held nor started again, and `released` is said only when nothing of it is left here.
"""

from __future__ import annotations

from rota.runner.holdings import Holdings
from rota.runner.lease import QUEUED, RUNNING, number, read_holds, read_keys

TYPE_CHECKING = False  # as in `typing`, which is not worth its load time before the greeting is out
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from rota.runner.lease import Key, Order

    Message = Dict[str, Any]

__all__ = ["Holds"]


class Holds(Holdings):
    """The parts of a runner, and the attempts that it will not take again."""

    def __init__(self) -> None:
        super().__init__()
        self.session: Optional[int] = None
        self.grace_s = 10.0
        self.expired = False
        self._said_bye = False
        self._owes_holds = False
        self._done: Dict[Key, None] = {}
        self._done_before: Dict[Key, None] = {}

    def _hold(self, message: Message) -> List[Order]:
        holds = read_holds(message.get("jobs"))
        if self.session is None or message.get("session") != self.session or self._said_bye:
            return []
        orders: List[Order] = []
        for hold in holds:
            key = hold.key
            if key in self._holds or key in self._releasing or key in self._done or key in self._done_before:
                continue
            if self.leaving not in (None, "drained", "closed"):  # a drained runner finishes what has been decided
                self._fence(key)
                self._released[key] = None  # it will not hold this, and nothing of it is here
                continue
            self._holds[key] = hold
            orders.append(("hold", hold))
        self._owes_holds = True  # also after a repeat: the manager does not know
        return orders

    def _release(self, message: Message) -> List[Order]:
        keys = read_keys(message.get("jobs"))
        given = message.get("grace_s")
        grace_s = self.grace_s if given is None else max(0.0, number(message, "grace_s"))
        if self.session is None or message.get("session") != self.session:
            return []
        orders: List[Order] = []
        for key in keys:
            lease = self._held.get(key)
            if key not in self._holds and lease is None:
                if key not in self._releasing:
                    self._released[key] = None  # over long ago, or never heard of
                self._fence(key)
                continue
            self._fence(key)
            if lease is not None and lease.state == QUEUED:
                self._withdraw(lease, "released")
            orders.append(("release", key, grace_s))
            if lease is not None and lease.state == RUNNING and (not lease.kill_asked or grace_s < lease.grace_s):
                lease.kill_asked = True
                lease.grace_s = grace_s
                orders.append(("kill", lease, grace_s))
            self._releasing.setdefault(key, False)
        return orders

    def released(self, key: Key) -> None:
        """Note that everything of an attempt on this node has ended, asked for or not: it is never taken again."""
        self._fence(key)
        super().released(key)

    def _fence(self, key: Key) -> None:
        if key not in self._done_before:
            self._done[key] = None

    def _speak_of_gangs(self, messages: List[Message]) -> None:
        if self._owes_holds and not self.expired:
            messages.append({"t": "held", "session": self.session, "holds": self.holds()})
        if self._released:
            messages.append({"t": "released", "session": self.session, "jobs": [list(key) for key in self._released]})
        self._owes_holds = False
        self._released = {}

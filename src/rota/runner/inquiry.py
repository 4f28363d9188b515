"""What the runners of a gang ask and tell each other, by threads: the loop of a runner must never wait."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List

from rota.runner.channel import LIMIT, USAGE, ChannelError
from rota.runner.rsh import ask

if TYPE_CHECKING:
    from rota.runner.lease import Key, Outcome
    from rota.runner.running import Running

__all__ = ["Alarm", "Inquiry"]

ASK_S = 2.0  # for what all other nodes say about what they used
ASKERS = 8
TELL_S = 5.0


class Inquiry:
    """A question to all other nodes of a gang about what the attempt used there, asked by threads."""

    def __init__(self, running: Running, outcome: Outcome, nodes: List[Dict[str, Any]], secret: str) -> None:
        self.running = running
        self.outcome = outcome
        self.until = time.monotonic() + ASK_S
        self.cpu_s = 0.0
        self.peak = 0
        self._key = running.lease.key
        self._secret = secret
        self._lock = threading.Lock()
        self._addresses = [str(node["address"]) for node in nodes]
        self._open = len(self._addresses)
        for _ in range(min(ASKERS, self._open)):
            threading.Thread(target=self._ask, daemon=True).start()

    @property
    def over(self) -> bool:
        """Whether all have answered, or the time is up."""
        return self._open == 0 or time.monotonic() >= self.until

    def _ask(self) -> None:
        while True:
            with self._lock:
                if not self._addresses:
                    return
                address = self._addresses.pop()
            try:
                left_s = max(0.01, self.until - time.monotonic())
                cpu_s, peak = json.loads(ask(address, (self._key, self._secret), USAGE, b"", left_s).decode("ascii"))
                cpu_s, peak = float(cpu_s), int(peak)
            except (OSError, ValueError, TypeError, ChannelError):
                cpu_s, peak = 0.0, 0  # that node cannot say: what is known counts
            with self._lock:
                self.cpu_s += cpu_s
                self.peak = max(self.peak, peak)
                self._open -= 1


class Alarm:
    """The word to the root of a gang that its attempt has exceeded a limit on this node."""

    def __init__(self, address: str, key: Key, secret: str, note: str) -> None:
        self.over = False  # the root knows it, or cannot be told
        threading.Thread(target=self._tell, args=(address, (key, secret), note), daemon=True).start()

    def _tell(self, address: str, gang: Any, note: str) -> None:
        try:
            ask(address, gang, LIMIT, note.encode("utf-8", "replace"), TELL_S)
        except (OSError, ValueError, ChannelError):
            pass  # what runs here is ended in any case
        finally:
            self.over = True

"""Doors: the ways by which runners reach the manager."""

import os
from collections.abc import Sequence

from rota.manager.paths import Paths
from rota.model.errors import RefusedError
from rota.wire import auth

__all__ = ["TlsDoor", "UnixDoor"]


class UnixDoor:
    """Runners on this host come by the Unix socket; the kernel says who they are."""

    def __init__(self, paths: Paths) -> None:
        self._socket = paths.socket

    def open(self, allocation: str) -> Sequence[str]:
        """The words that name the socket."""
        return ["--connect", f"unix:{self._socket}"]

    def shut(self, allocation: str) -> None:
        """There is nothing to take back."""


class TlsDoor:
    """Runners elsewhere come by TLS, each allocation with a token of its own, in a file that only we can read."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self.address: str | None = None
        """`host:port`, once the manager listens."""

    def words(self, allocation: str) -> Sequence[str]:
        """The words that name the address, our CA, and the allocation's token file."""
        token = os.path.join(self._paths.tokens, allocation)
        found = ["--connect", f"tls:{self.address}", "--notice", self._paths.notice]
        return [*found, "--ca", self._paths.ca, "--token-file", token]

    def open(self, allocation: str) -> Sequence[str]:
        """Make a token for the allocation; the words that lead its runners to us."""
        if self.address is None:
            raise RefusedError(
                f"{self._paths.config}: runners are to come by TLS, but the manager does not listen: set listen"
            )
        auth.write_token(self._paths.home, allocation)
        return self.words(allocation)

    def shut(self, allocation: str) -> None:
        """The token is gone with the allocation."""
        auth.remove_token(self._paths.home, allocation)

"""Doors: the ways by which runners reach the manager."""

import logging
import os
from collections.abc import Sequence

from rota.manager.paths import Paths
from rota.model.errors import RefusedError, RotaError
from rota.wire import auth
from rota.wire.home import CA, NOTICE, TLS, TOKENS, private_directory, read_own, write_private

__all__ = ["TlsDoor", "UnixDoor"]

log = logging.getLogger("rota")


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
    """Runners elsewhere come by TLS, each allocation with a token of its own, in a file that only we can read.

    What they need (our CA, their token, where we are) is in the home or, for a site with a directory of its own, there:
    then its nodes need not see the home.
    """

    def __init__(self, paths: Paths, place: str | None = None) -> None:
        self._paths = paths
        self._place = place or paths.home
        self._others: list[TlsDoor] = []
        self.address: str | None = None
        """`host:port`, once the manager listens."""

    def at(self, place: str | None) -> "TlsDoor":
        """The door of a site with such a directory; without one, this."""
        if place is None:
            return self
        other = TlsDoor(self._paths, place)
        self._others.append(other)
        if self.address is not None:
            other.listens(self.address)
        return other

    def listens(self, address: str | None) -> None:
        """Take the manager's address, and put it where runners look for it, with our CA."""
        self.address = address
        if address is not None and self._place != self._paths.home:
            try:
                self._publish()
            except (OSError, RotaError) as error:
                log.warning("nodes cannot be told in %s where the manager is: %s", self._place, error)
        for other in self._others:
            other.listens(address)

    def _publish(self) -> None:
        """Copy to the site's own directory what its nodes would have to read in the home."""
        write_private(os.path.join(self._place, NOTICE), read_own(self._paths.notice))
        private_directory(os.path.join(self._place, TLS))
        write_private(os.path.join(self._place, TLS, CA), read_own(self._paths.ca))

    def words(self, allocation: str) -> Sequence[str]:
        """The words that name the address, our CA, and the allocation's token file."""
        notice, ca = os.path.join(self._place, NOTICE), os.path.join(self._place, TLS, CA)
        token = os.path.join(self._place, TOKENS, allocation)
        return ["--connect", f"tls:{self.address}", "--notice", notice, "--ca", ca, "--token-file", token]

    def open(self, allocation: str) -> Sequence[str]:
        """Make a token for the allocation; the words that lead its runners to us."""
        if self.address is None:
            raise RefusedError(
                f"{self._paths.config}: runners are to come by TLS, but the manager does not listen: set listen"
            )
        token = auth.write_token(self._paths.home, allocation)
        if self._place != self._paths.home:
            auth.write_token(self._place, allocation, token)
        return self.words(allocation)

    def shut(self, allocation: str) -> None:
        """The token is gone with the allocation."""
        auth.remove_token(self._paths.home, allocation)
        auth.remove_token(self._place, allocation)

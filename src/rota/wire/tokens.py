"""The tokens of clients: named, with a scope and perhaps an end. What is kept of them cannot be used to get in.

A token is `NAME.SECRET`. The manager keeps a verifier of the secret, from which no proof can be made, so a stolen copy
of the register opens nothing. The register is one small file, read once and written whole.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from rota.model.errors import NotFoundError, RefusedError, StoreError, UsageError
from rota.wire.auth import CLIENT, Access, new_token, read_client_token, verifier
from rota.wire.home import private_directory, private_place, read_private, write_private

__all__ = ["JOB", "SCOPES", "Tokens", "allows"]

SCOPES = ("read", "submit", "admin")
"""Each includes those before it."""
REGISTER = "tokens.json"
JOB = "job-"
"""How the names of the tokens begin that jobs have, of which nothing is registered."""
USED_EVERY_S = 60.0
"""How often it is written down that a token was used."""
MOST = 10_000

READ = frozenset(
    {
        "ping", "status", "jobs", "count", "explain", "history", "log", "wait", "follow", "summary", "sites", "runners",
        "allocations", "learning", "plugins", "live", "failures", "totals", "usage", "show", "costs",
    }
)  # fmt: skip
SUBMIT = READ | {"stage", "submit"}


def allows(scope: str, op: str) -> bool:
    """Whether a scope is enough for an op. What nobody has thought of needs all."""
    return scope == "admin" or op in (SUBMIT if scope == "submit" else READ if scope == "read" else ())


class Entry(msgspec.Struct):
    """What is kept of a token."""

    scope: str
    verifier: str
    created: float
    expires: float | None = None
    last_used: float | None = None


class Tokens:
    """The register of one home."""

    def __init__(self, home: str, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._path = os.path.join(private_place(home), REGISTER)
        self._own = os.path.join(private_place(home), CLIENT)
        """The token file of this user's own clients."""
        self._entries = self._read()
        self._written = 0.0

    def _read(self) -> dict[str, Entry]:
        try:
            return msgspec.json.decode(read_private(self._path, 16 << 20), type=dict[str, Entry])
        except FileNotFoundError:
            return {}
        except (ValueError, msgspec.MsgspecError) as error:
            raise StoreError(f"{self._path} cannot be read ({error}): remove it, and make its tokens anew") from None

    def _write(self) -> None:
        private_directory(os.path.dirname(self._path))
        write_private(self._path, msgspec.json.encode(self._entries) + b"\n")
        self._written = self._clock()

    def prepare(self) -> None:
        """Make the token by which this user's own clients come from other hosts, if there is none that works."""
        known = self._entries.get(CLIENT)
        try:
            name, secret = read_client_token(self._own)
        except (OSError, NotFoundError, UsageError):
            name, secret = "", ""
        if known is None or name != CLIENT or verifier(secret) != known.verifier:
            self._entries.pop(CLIENT, None)
            self._keep_own(self.new(CLIENT, "admin")["token"])

    def _keep_own(self, token: str) -> None:
        write_private(self._own, token.encode() + b"\n")

    def new(self, name: str, scope: str, lifetime_s: float | None = None) -> dict[str, Any]:
        """Make a token; it is told once, here."""
        if name in self._entries and not self._is_over(self._entries[name]):
            raise RefusedError(f"there is a token '{name}' already: rotate or revoke it, or choose another name")
        if name.startswith(JOB):
            raise UsageError(f"token '{name}': names that begin with {JOB} are those of jobs")
        if scope not in SCOPES:
            raise UsageError(f"scope '{scope}': give one of {', '.join(SCOPES)}")
        if len(self._entries) >= MOST:
            self._entries = {key: entry for key, entry in self._entries.items() if not self._is_over(entry)}
        if len(self._entries) >= MOST:
            raise RefusedError(f"there are {MOST} tokens already: revoke some")
        return self._issue(name, scope, lifetime_s)

    def _issue(self, name: str, scope: str, lifetime_s: float | None) -> dict[str, Any]:
        secret, now = new_token(), self._clock()
        expires = None if lifetime_s is None else now + lifetime_s
        self._entries[name] = Entry(scope, verifier(secret), now, expires)
        self._write()
        return {"name": name, "scope": scope, "created": now, "expires": expires, "token": f"{name}.{secret}"}

    def rotate(self, name: str, lifetime_s: float | None = None) -> dict[str, Any]:
        """Replace the secret of a token; its lifetime begins anew."""
        entry = self._known(name)
        if lifetime_s is None and entry.expires is not None:
            lifetime_s = entry.expires - entry.created
        made = self._issue(name, entry.scope, lifetime_s)
        if name == CLIENT:
            self._keep_own(made["token"])
        return made

    def revoke(self, name: str) -> None:
        """Forget a token: it opens nothing any more."""
        self._known(name)
        del self._entries[name]
        self._write()

    def _known(self, name: str) -> Entry:
        if name not in self._entries:
            raise NotFoundError(f"there is no token '{name}'; rota token list shows them")
        return self._entries[name]

    def rows(self) -> list[dict[str, Any]]:
        """All of them, without their secrets, which nobody has."""
        return [
            {
                "name": name,
                "scope": entry.scope,
                "created": entry.created,
                "expires": entry.expires,
                "last_used": entry.last_used,
            }
            for name, entry in sorted(self._entries.items())
        ]

    def access(self, name: str) -> Access | None:
        """What a token opens; None: nothing."""
        entry = self._entries.get(name)
        if entry is None or self._is_over(entry):
            return None
        return Access(entry.scope, entry.verifier, entry.expires)

    def used(self, name: str) -> None:
        """Note that a token was proven."""
        entry = self._entries.get(name)
        if entry is not None:
            entry.last_used = self._clock()
            if entry.last_used - self._written > USED_EVERY_S:
                self._write()

    def _is_over(self, entry: Entry) -> bool:
        return entry.expires is not None and self._clock() >= entry.expires

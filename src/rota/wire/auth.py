"""Who may speak over TLS: tokens that are proven and never sent, and a limit on guessing.

Imported by clients that use TLS, so only the standard library; certificates are made in `certificates`.
"""

import hashlib
import hmac
import os
import re
import secrets
import ssl
from collections import deque
from collections.abc import Container
from typing import NamedTuple

from rota.model.errors import DeniedError, NotFoundError, RotaError, UsageError
from rota.wire.home import CLIENT, TOKENS, private_directory, private_place, read_private, write_private

__all__ = [
    "CLIENT", "Access", "RateLimiter", "client_context", "client_proof", "client_proof_fits", "find_token",
    "fingerprint", "kept_secret", "new_nonce", "new_token", "proof", "proof_fits", "read_client_token", "read_token",
    "remove_token", "server_context", "sweep_tokens", "verifier", "write_token",
]  # fmt: skip

ALLOCATION = re.compile(r"a[0-9]+")
"""How the token file of an allocation is named, unlike those of clients."""


class Access(NamedTuple):
    """What a client's token opens."""

    scope: str
    """`read`, `submit` or `admin`."""
    verifier: str
    """By which a proof is checked; no proof can be made from it."""
    expires: float | None = None
    """On the wall clock."""


def new_token() -> str:
    """A secret for one allocation, or for the clients."""
    return secrets.token_hex(32)


def new_nonce() -> str:
    """The nonce of a challenge: never the same twice, so that a proof is good once."""
    return secrets.token_hex(32)


def proof(token: str, nonce: str, fingerprint: str) -> str:
    """Shows knowledge of the token, for this challenge and this certificate only."""
    return hmac.new(token.encode(), f"{nonce}:{fingerprint}".encode(), hashlib.sha256).hexdigest()


def proof_fits(given: str | None, token: str | None, nonce: str, fingerprint: str) -> bool:
    """Whether a proof is right, in a time that does not tell how nearly, nor whether the token exists."""
    expected = proof(token or new_token(), nonce, fingerprint)
    same = hmac.compare_digest(expected.encode(), (given or "").encode())
    return same and bool(token)


def _client_key(secret: str) -> bytes:
    return hmac.new(secret.encode(), b"rota client", hashlib.sha256).digest()


def verifier(secret: str) -> str:
    """What the manager keeps of a client's secret."""
    return hashlib.sha256(_client_key(secret)).hexdigest()


def _mask(verifier: str, nonce: str, fingerprint: str) -> bytes:
    return hmac.new(verifier.encode(), f"{nonce}:{fingerprint}".encode(), hashlib.sha256).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def client_proof(secret: str, nonce: str, fingerprint: str) -> str:
    """Shows knowledge of a client's secret to who has only its verifier, for this challenge and certificate only."""
    return _xor(_client_key(secret), _mask(verifier(secret), nonce, fingerprint)).hex()


def client_proof_fits(given: str | None, verifier: str | None, nonce: str, fingerprint: str) -> bool:
    """Whether a client's proof is right; None as verifier: there is no such token, which takes as long to find."""
    expected = verifier or new_token()
    try:
        key = _xor(bytes.fromhex(given or ""), _mask(expected, nonce, fingerprint))
    except ValueError:
        key = b""
    same = hmac.compare_digest(hashlib.sha256(key).hexdigest(), expected)
    return same and bool(verifier)


def read_client_token(path: str) -> tuple[str, str]:
    """The name and the secret in a client's token file. Refuses a file that others can read."""
    try:
        text = read_private(path).decode("ascii", "replace").strip()
    except FileNotFoundError:
        raise NotFoundError(f"no token file {path}") from None
    name, dot, secret = text.rpartition(".")
    if not (name and dot and len(secret) == 64):
        raise UsageError(f"{path} holds no token: it is NAME.SECRET in one line, as rota token new prints it")
    return name, secret


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in DER, in hex."""
    return hashlib.sha256(certificate).hexdigest()


def _token_path(home: str, name: str) -> str:
    plain = name.replace("-", "").replace("_", "").replace(".", "").replace(":", "")
    if not name or name.startswith(".") or len(name) > 64 or (plain and not (plain.isascii() and plain.isalnum())):
        raise DeniedError(f"not a name for a token: {name[:64]!r}")
    return os.path.join(home, TOKENS, name)


def write_token(home: str, name: str, token: str | None = None) -> str:
    """Write (or replace) the token file of an allocation, or of the clients; returns the token."""
    token = token or new_token()
    path = _token_path(home, name)
    private_directory(os.path.dirname(path))
    write_private(path, token.encode() + b"\n")
    return token


def read_token(home: str, name: str) -> str:
    """The token in that file. Refuses a file that others can read."""
    path = _token_path(home, name)
    try:
        return read_private(path).decode("ascii", "replace").strip()
    except FileNotFoundError:
        raise NotFoundError(f"no token file {path}") from None


def find_token(home: str, name: str) -> str | None:
    """The token in that file; None: it opens nothing."""
    try:
        return read_token(home, name)
    except (OSError, RotaError):
        return None


def kept_secret(home: str, name: str) -> str:
    """A secret that the manager keeps for itself, made when it is first wanted."""
    path = os.path.join(private_place(home), name)
    old = os.path.join(home, TOKENS, name)
    for place in (path, old):
        try:
            secret = read_private(place).decode("ascii", "replace").strip()
            break
        except FileNotFoundError:
            continue
    else:
        secret, place = new_token(), ""
    if place != path:
        private_directory(os.path.dirname(path))
        write_private(path, secret.encode() + b"\n")
    if place == old:  # earlier releases kept it among what nodes see
        os.unlink(old)
    return secret


def remove_token(home: str, name: str) -> None:
    """Remove a token file, if it is there."""
    try:
        os.unlink(_token_path(home, name))
    except FileNotFoundError:
        pass


def sweep_tokens(home: str, live: Container[str]) -> int:
    """Remove the token files of allocations that are not among these; how many those were."""
    found = [name for name in os.listdir(os.path.join(home, TOKENS)) if ALLOCATION.fullmatch(name) and name not in live]
    for name in found:
        remove_token(home, name)
    return len(found)


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.3 and nothing older, with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.load_cert_chain(certificate, key)
    return context


def client_context(ca: str) -> ssl.SSLContext:
    """TLS 1.3 that trusts this CA file, which must be ours and no link, and no other.

    Host names are not compared: nodes reach a manager by many names, the CA signs for nobody else, and the
    certificate's fingerprint is part of the proof.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=read_private(ca).decode("ascii", "replace"))
    return context


class RateLimiter:
    """Counts failed greetings by a name, such as an address; time comes in as an argument."""

    __slots__ = ("_failures", "limit", "most", "window_s")

    def __init__(self, limit: int = 10, window_s: float = 60.0, most: int = 10_000) -> None:
        self.limit = limit
        self.window_s = window_s
        self.most = most
        """Addresses remembered. Beyond that the one that has been quiet longest is forgotten."""
        self._failures: dict[str, deque[float]] = {}

    def failed(self, address: str, now: float) -> None:
        """Note one failed greeting."""
        times = self._failures.pop(address, None) or deque(maxlen=self.limit)
        times.append(now)
        self._failures[address] = times
        while len(self._failures) > self.most:
            del self._failures[next(iter(self._failures))]

    def blocked(self, address: str, now: float) -> bool:
        """Whether this address has used up its failures of the last minute."""
        times = self._failures.get(address)
        if times is None:
            return False
        while times and now - times[0] >= self.window_s:
            times.popleft()
        if not times:
            del self._failures[address]
        return len(times) >= self.limit

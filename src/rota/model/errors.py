"""The one small tree of errors that rota raises on purpose.

Every message says what happened, to what, and what to do about it. `code` is what the wire protocol calls it, so that a
client can rebuild the same class from an answer.
"""


class RotaError(Exception):
    """Anything rota refuses or cannot do."""

    code = "internal"


class UsageError(RotaError):
    """The request itself is wrong: fix it and ask again."""

    code = "usage"


class NotFoundError(RotaError):
    """What was named does not exist."""

    code = "not-found"


class RefusedError(RotaError):
    """A sound request that cannot be met in the present state."""

    code = "refused"


class BusyError(RotaError):
    """A sound request that cannot be met just now: try again later."""

    code = "busy"


class NoSpaceError(RotaError):
    """The store cannot be written, so no new work is taken."""

    code = "no-space"


class ProtocolError(RotaError):
    """The other side said something that is not in the protocol."""

    code = "protocol"


class VersionError(RotaError):
    """The other side, or the database, speaks a version that this rota does not."""

    code = "version"


class DeniedError(RotaError):
    """Not allowed: wrong user, wrong token."""

    code = "denied"


class StoreError(RotaError):
    """The store failed; nothing more may be acknowledged."""

    code = "no-space"


_ERRORS: tuple[type[RotaError], ...] = (
    RotaError, UsageError, NotFoundError, RefusedError, BusyError, NoSpaceError, ProtocolError, VersionError,
    DeniedError,
)  # fmt: skip
BY_CODE = {error.code: error for error in _ERRORS}

"""Sending a Submission over a connection."""

from collections.abc import Callable
from typing import Any

from rota.submission.build import Submission
from rota.wire.client import Connection

__all__ = ["IN_FLIGHT", "send"]

IN_FLIGHT = 8
"""Requests sent ahead of their answers."""


def send(
    connection: Connection, submission: Submission, before_submit: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Send all requests, the values without waiting for each answer; the answer to the `submit`, which is the last."""
    flying: list[int] = []
    encoded = submission.encoded()
    if encoded is not None:
        before_submit()
        return connection.submit(submission.key, encoded)
    for request in submission.requests():
        op = request.pop("op")
        if op == "submit":
            for number in flying:
                connection.collect(number)
            before_submit()
            return connection.ask(op, **request)
        flying.append(connection.post(op, **request))
        if len(flying) > IN_FLIGHT:
            connection.collect(flying.pop(0))
    raise AssertionError("a submission ends with a submit")

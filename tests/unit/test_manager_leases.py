"""Leases of jobs that cannot be put into words: they fail alone, and keep nobody else from running."""

from types import SimpleNamespace
from typing import Any

from rota.core import effects as ef
from rota.manager.outbound import NO_COMMAND, lease_message


class Book:
    """Knows the command of every job but the first."""

    def lease_row(self, batch: Any, pos: int, attempt: int, slot: str, cores: int) -> list[Any]:
        if pos == 0:
            raise IndexError("list index out of range")
        return [slot, f"{batch.id}.0.{cores}", batch.id, pos + 1, attempt, ["true"], None]

    def spec(self, *_: Any) -> dict[str, Any]:
        return {"env": None}


def test_a_job_without_a_command_fails_alone() -> None:
    spec = SimpleNamespace(ends=None)
    batch: Any = SimpleNamespace(id=7, spec=spec, template_of=lambda pos: 0, index=lambda pos: pos + 1)
    slot: Any = SimpleNamespace(text="3:1000", amounts=SimpleNamespace(cores=1000))
    lease = ef.Lease("r1", 1, 1, 0.0, [(7, 0, 1, slot), (7, 1, 1, slot)], {})
    state: Any = SimpleNamespace(batches={7: batch})
    book: Any = Book()
    message = lease_message(book, state, lease, "local", set())
    assert [row[5] for row in message["jobs"]] == [[NO_COMMAND], ["true"]]
    assert {row[1] for row in message["jobs"]} == set(message["specs"])

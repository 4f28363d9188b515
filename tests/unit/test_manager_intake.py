"""Submissions as they come in: an environment is decoded when it is another than that of the one before."""

import asyncio

import pytest
from msgspec import Raw

from rota.manager.intake import Intake
from rota.manager.writer import Writer
from rota.model.errors import UsageError
from rota.store.memory import MemoryStore
from rota.wire.messages import Submit

BATCH = Raw(b'{"count":1,"templates":[{"argv":["true"],"cwd":"/"}]}')


def submit(env: bytes) -> Submit:
    return Submit("k", BATCH, env=Raw(env))


def taken(*environments: bytes) -> list[tuple[bool, str | None]]:
    """(whether nothing had to be kept before, the environment's name) of submissions one after the other."""

    async def main() -> list[tuple[bool, str | None]]:
        store = MemoryStore()
        store.load()
        writer = Writer(asyncio.get_running_loop())
        intake, out = Intake(store, writer), list[tuple[bool, str | None]]()
        try:
            for env in environments:
                plain = intake.plain(submit(env))
                out.append((True, plain[1]) if plain is not None else (False, (await intake.prepare(submit(env)))[2]))
        finally:
            writer.close()
        return out

    return asyncio.run(main())


def test_the_same_environment_again_is_known() -> None:
    first, again, other, ordered, none = taken(b'{"A":"1"}', b'{"A":"1"}', b'{"A":"2"}', b'{ "A" : "1" }', b"null")
    assert first[0] is False and again == (True, first[1])
    assert other[0] is False and other[1] not in (None, first[1])
    assert ordered == (False, first[1]), "written in another way it is the same"
    assert none == (True, None)


@pytest.mark.parametrize("env", [b'{"A":1}', b"[]", b'"x"', b'{"A":"\xff"}', b'{"":"x"}', b'{"A=":"x"}'])
def test_what_is_no_environment_is_refused(env: bytes) -> None:
    with pytest.raises(UsageError, match="environment"):
        taken(env)

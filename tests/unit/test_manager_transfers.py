"""Transfers between places: how many at once, what is left behind, and who may remove it."""

import asyncio
import itertools
import random
import sys
from typing import Any

import pytest

from rota.manager.data import objects
from rota.manager.data.transfers import PER_LINK, PER_PLACE, Journal, TransferError, Transfers
from rota.model.errors import BusyError
from rota.runner.staging import StagingError


class FakePlace:
    """A place that notes what it is asked."""

    cache = "/cache"

    def __init__(self, name: str) -> None:
        self.name = name
        self.why_not: str | None = None
        self.discarded: list[Any] = []

    async def ask(self, what: str, **more: Any) -> dict[str, Any]:
        if self.why_not is not None:
            raise BusyError(self.why_not)
        if what == "discard":
            self.discarded += more["parts"]
        return {}

    async def argv(self, request: dict[str, Any]) -> tuple[str, ...]:
        return ("true",)


class Counting(Transfers):
    """Moves nothing, and counts how many do so at once."""

    def __init__(self, journal: Journal, seed: int = 0) -> None:
        super().__init__(lambda *_: None, journal)
        self.chance = random.Random(seed)
        self.now: dict[Any, int] = {}
        self.most: dict[Any, int] = {}
        self.fails: Exception | None = None

    async def _with_tries(self, transfer, ident, source, source_path, target, target_path):  # type: ignore[no-untyped-def]
        keys = ((source.name, target.name), source.name, target.name)
        for key in keys:
            self.now[key] = self.now.get(key, 0) + 1
            self.most[key] = max(self.most.get(key, 0), self.now[key])
        for _ in range(self.chance.randint(0, 6)):
            await asyncio.sleep(0)
        for key in keys:
            self.now[key] -= 1
        if self.fails is not None:
            raise self.fails
        return {"size": 1}


@pytest.fixture
def journal(tmp_path):
    return Journal(str(tmp_path / "transfers.json"))


@pytest.mark.parametrize("seed", range(20))
def test_many_in_all_directions_are_bounded_and_none_waits_for_ever(journal, seed):
    async def run() -> Counting:
        transfers, places = Counting(journal, seed), [FakePlace(name) for name in "abcde"[: 3 + seed % 3]]
        pairs = list(itertools.permutations(places, 2)) * 8
        transfers.chance.shuffle(pairs)
        work = [transfers.bring((f"/{n}", 1, 1), one, f"/{n}", two, f"/{n}") for n, (one, two) in enumerate(pairs)]
        await asyncio.wait_for(asyncio.gather(*work), 60)
        return transfers

    transfers = asyncio.run(run())
    assert max(count for key, count in transfers.most.items() if isinstance(key, tuple)) == PER_LINK
    assert max(count for key, count in transfers.most.items() if isinstance(key, str)) == PER_PLACE
    assert not transfers.live and not journal.load()


def test_what_is_given_up_is_removed_once_its_place_is_back(journal):
    async def run() -> None:
        transfers, source, target = Counting(journal), FakePlace("a"), FakePlace("b")
        transfers.fails, target.why_not = TransferError("cut", "it was cut", "b"), "it is away"
        with pytest.raises(TransferError):
            await transfers.bring(("/x", 1, 1), source, "/x", target, "/x")
        ((path, ident),) = transfers.leftovers["b"]
        assert path == "/x" and journal.load() == {"b": [("/x", ident)]}
        await transfers.clean(target)
        assert not target.discarded
        target.why_not = None
        await transfers.clean(target)
        assert target.discarded == [("/x", ident)] and not transfers.leftovers and not journal.load()

    asyncio.run(run())


def test_what_another_manager_left_is_gone_on_with_or_removed(journal):
    async def run() -> None:
        first, source, target = Counting(journal), FakePlace("a"), FakePlace("b")
        first.fails, first.closing = asyncio.CancelledError(), True
        for path in ("/x", "/y"):
            with pytest.raises(asyncio.CancelledError):
                await first.bring((path, 1, 1), source, path, target, path)
        assert not target.discarded
        second, left = Counting(journal), journal.load()
        await second.bring(("/x", 1, 1), source, "/x", target, "/x")
        second.inherit(left)
        await second.clean(target)
        assert [path for path, _ in target.discarded] == ["/y"] and not journal.load()

    asyncio.run(run())


def test_without_the_library_for_objects_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    for what in ("files", "send", "receive"):
        with pytest.raises(StagingError, match=r"s3:// addresses need boto3: pip install 'rota\[s3\]'") as error:
            objects.answer({"what": what, "paths": ["s3://b/k"], "path": "s3://b/k", "offset": 0})
        assert error.value.code == "bad"

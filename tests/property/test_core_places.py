"""Whatever is asked for, and whatever goes wrong: nothing is given twice, what can run ends, all of it is returned."""

from typing import Any

import pytest

from place_world import PlaceWorld
from rota.core import invariants
from rota.model.needs import Amounts
from rota.schedule.ledger import Ledger
from sim import mutations


@pytest.mark.parametrize("seed", range(40))
def test_all_that_is_given_is_given_once_and_returned(seed: int) -> None:
    world = PlaceWorld(seed)
    for _ in range(120):
        world.happen()
        world.check_books()
        invariants.check(world.state)
    world.check_restart()
    world.settle()
    world.check_returned()
    invariants.check(world.state)
    world.checkpoint()
    world.check_restart()


def test_parts_that_are_never_freed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    mutations.frees_no_parts(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(10):
            test_all_that_is_given_is_given_once_and_returned(seed)


def test_gpus_that_are_not_given_back_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    charge = Ledger._charge_gpus

    def kept(self: Ledger, location: str, amounts: Amounts, count: int, *more: Any, **flags: Any) -> None:
        if count > 0:
            charge(self, location, amounts, count, *more, **flags)

    monkeypatch.setattr(Ledger, "_charge_gpus", kept)
    with pytest.raises(AssertionError):
        for seed in range(10):
            test_all_that_is_given_is_given_once_and_returned(seed)

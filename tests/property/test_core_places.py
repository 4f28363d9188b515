"""Whatever is asked for, and whatever goes wrong: nothing is given twice, what can run ends, all of it is returned."""

import pytest

from place_world import PlaceWorld
from rota.core import invariants


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

"""Batches that are put away change nothing: the same happens, and the same is told, as where none ever is."""

import copy
from typing import Any

from hypothesis import settings

from core_world import World
from property.test_core_machine import Machine
from rota.core.effects import Effect
from rota.core.explain import batch_reasons
from rota.core.settled import Settled, put_all_away
from rota.core.snapshot import durable_view
from rota.core.state import State
from rota.core.step import Core, Step
from rota.core.stimuli import At, Stimulus
from rota.core.turn import Turn
from rota.manager.answers.jobs import find_jobs
from rota.manager.answers.status import count_jobs, status
from rota.wire.messages import Status


def told(state: State, at: At) -> list[Any]:
    """What clients are told."""
    found = find_jobs(state, [], None, 10_000, False)
    return [
        status(state, Status(), at),
        status(state, Status(brief=True), at),
        *(count_jobs(state, words) for words in ([":failed"], [":completed", ":aborted"], [])),
        [(batch.id, pos, batch.index(pos), batch.attempts[pos], batch.template(pos)) for batch, pos in found],
        dict(batch_reasons(state, list(state.batches.values()), at)),
    ]


class TwinWorld(World):
    """What is settled is put away after every turn; beside it the same happens to a core where nothing ever is."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **{**more, "site": False})
        self.plain = Core(self.settings, self.seed)
        self.beside: Turn | None = None
        self.turns = 0
        self.rested = 0
        """How many batches were put away, at most."""
        if more.get("site", True):
            self.site()

    def step(self, stimulus: Stimulus) -> Step:
        self.beside = Turn(self.plain)
        self.beside.take([(copy.deepcopy(stimulus), lambda _: None)])
        return super().step(stimulus)

    def schedule(self) -> Step:
        self.beside = Turn(self.plain)
        self.beside.schedule(self.at)
        return super().schedule()

    def _commit(self, turn: Turn) -> None:
        beside = self.beside
        assert beside is not None
        assert turn.entries == beside.entries
        assert turn.results == beside.results
        assert repr(turn.effects) == repr(beside.effects)
        assert [str(answer) for _, answer in turn.answers] == [str(answer) for _, answer in beside.answers]
        super()._commit(turn)
        self.turns += 1
        put_all_away(self.state.batches)
        if self.turns % 3 == 0:  # what was put away before that is kept by it as well
            self.checkpoint()
        away = sum(isinstance(batch, Settled) for batch in self.state.batches.rows())
        self.rested = max(self.rested, away)
        assert durable_view(self.state) == durable_view(self.plain.state)
        assert told(self.state, self.at) == told(self.plain.state, self.at)
        assert sum(isinstance(batch, Settled) for batch in self.state.batches.rows()) == away, "a question changed it"

    def restart(self, from_start: bool = False) -> list[Effect]:
        self.plain = Core(self.settings, self.seed, self.rebuilt(True))
        self.plain.restart(self.at)
        return super().restart(from_start)


class Twins(Machine):
    """The random machine, with both."""

    make = TwinWorld


Twins.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
test_settled = Twins.TestCase


def test_they_are_put_away() -> None:
    world = TwinWorld()
    for _ in range(5):
        world.change("kill", str(world.submit()))
    assert world.rested == 5
    world.restart()
    world.change("retry", "3")
    assert [type(batch) is Settled for batch in world.state.batches.rows()] == [True, True, False, True, True]

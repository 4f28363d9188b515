"""The core: step by step from stimuli to events and effects.

Pure: no clock, no file, no socket, no chance but its own.
"""

from typing import Any

from msgspec import Struct, field

from rota.core.decide import decide
from rota.core.decide.allocations import end_direct
from rota.core.decide.deadlines import next_deadline, tick, was_set_back
from rota.core.decide.decision import Decision
from rota.core.decide.runners import back, greeted
from rota.core.dependencies import consequences, woken
from rota.core.effects import Effect
from rota.core.evolve import evolve
from rota.core.plan import plan
from rota.core.react import react, restart_effects
from rota.core.state import Settings, State
from rota.core.stimuli import At, Greet, Report, Stimulus, Tick, Touch
from rota.model.events import Event, Moved
from rota.model.job import Result
from rota.model.tables import HOLDING, WAITING

__all__ = ["Core", "Step"]


class Step(Struct):
    """What one stimulus led to.

    The shell makes `events` and `results` durable, then performs `effects` and gives `reply`.
    """

    events: list[Event] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    reply: dict[str, Any] = field(default_factory=dict)


class Core:
    """The only place that decides."""

    def __init__(self, settings: Settings, seed: int = 1, state: State | None = None) -> None:
        self.state = state if state is not None else State(settings, seed)
        self.last_tick: At | None = None
        self._seen: At | None = None
        self._set_back = False
        """The wall clock was set back since the last Tick."""

    def step(self, stimulus: Stimulus) -> Step:
        """Decide, apply, react. Raises a RotaError for a refusal; then nothing has changed."""
        state = self.state
        events: list[Event] = []
        results: list[Result] = []
        if self._seen is not None and was_set_back(self._seen, stimulus.at):
            self._set_back = True
        self._seen = stimulus.at
        if isinstance(stimulus, Tick):
            last, self.last_tick = self.last_tick, stimulus.at
            set_back, self._set_back = self._set_back, False
            decision = tick(state, stimulus, last, set_back)
        else:
            if isinstance(stimulus, Report | Touch):
                self._apply(back(state, stimulus.runner, stimulus.session), events)
            decision = decide(state, stimulus)
        self._apply(decision, events)
        if isinstance(stimulus, Greet):
            greeted(state, stimulus)
        results += decision.results
        self._follow(decision.reconsider, stimulus.at, events)
        effects = [*react(state, events, stimulus.at), *decision.effects]
        return Step(events, results, effects, decision.reply)

    def schedule(self, at: At) -> Step:
        """The scheduling pass, if anything has changed since the last."""
        if not self.state.replan:
            return Step()
        events = plan(self.state, at)
        return Step(events, [], react(self.state, events, at))

    def restart(self, at: At) -> list[Effect]:
        """Call once after loading: every deadline gets its full grace again."""
        self.state.restarted()
        return restart_effects(self.state, at)

    def next_deadline(self, at: At) -> float:
        """Monotonic time at which a Tick is due."""
        return next_deadline(self.state, at, self.last_tick)

    def _apply(self, decision: Decision, events: list[Event]) -> None:
        for event in decision.events:
            self._happen(event, events)
            for more in end_direct(self.state, event):
                self._happen(more, events)

    def _follow(self, reconsider: set[int], at: At, events: list[Event]) -> None:
        """What follows for batches that wait: iterative, so that a chain of any length settles without recursion."""
        state = self.state
        state.freed.extend((number, 0, state.batches[number].count) for number in sorted(reconsider))
        while state.again or state.settled or state.freed:
            if state.again:
                again, state.again = state.again, []
                for number, pos, why in again:
                    self._happen(Moved(number, "reopen", [pos, pos + 1], why), events)
            settled, state.settled = state.settled, []
            for number, low, high in settled:
                state.freed.extend(woken(state, number, low, high))
            freed, state.freed = state.freed, []
            for number, low, high in freed:
                batch = state.batches[number]
                if batch.counts[WAITING] or batch.counts[HOLDING]:
                    for event in consequences(state, batch, low, high, at.wall):
                        self._happen(event, events)

    def _happen(self, event: Event, events: list[Event]) -> None:
        evolve(self.state, event)
        events.append(event)

"""The core: step by step from stimuli to events and effects.

Pure: no clock, no file, no socket, no chance but its own.
"""

from collections import deque
from typing import Any

from msgspec import Struct, field

from rota.core.allocating import end_direct
from rota.core.deadlines import next_deadline, tick, was_set_back
from rota.core.decide import decide
from rota.core.decision import Decision
from rota.core.dependencies import consequences, watching
from rota.core.effects import Effect
from rota.core.evolve import evolve
from rota.core.planning import plan
from rota.core.react import react, restart_effects
from rota.core.reports import back, greeted
from rota.core.state import Settings, State
from rota.core.stimuli import At, Greet, Report, Stimulus, Tick, Touch
from rota.core.tables import HOLDING, WAITING
from rota.model.events import Event
from rota.model.job import Result

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
            evolve(self.state, event)
            events.append(event)
            for more in end_direct(self.state, event):
                evolve(self.state, more)
                events.append(more)

    def _follow(self, reconsider: set[int], at: At, events: list[Event]) -> None:
        """What follows for batches that wait: iterative, so that a chain of any length settles without recursion."""
        state = self.state
        fresh = set(reconsider)
        queue = deque(sorted(reconsider))
        while queue:
            batch = state.batches[queue.popleft()]
            changed = batch.id in fresh
            fresh.discard(batch.id)
            if batch.counts[WAITING] or batch.counts[HOLDING]:
                for event in consequences(state, batch, at.wall):
                    evolve(state, event)
                    events.append(event)
                    changed = True
            if changed:  # some wait for one job of it, so it need not be settled as a whole
                queue.extend(number for number in sorted(watching(state, batch)) if _waits(state, number))


def _waits(state: State, number: int) -> bool:
    counts = state.batches[number].counts
    return counts[WAITING] > 0 or counts[HOLDING] > 0

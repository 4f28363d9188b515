"""The core: step by step from stimuli to events and effects.

Pure: no clock, no file, no socket, no chance but its own.
"""

from typing import Any

from msgspec import Struct, field

from rota.core.decide import decide, preludes
from rota.core.decide.allocations import end_direct
from rota.core.decide.deadlines import next_deadline, tick, was_set_back
from rota.core.decide.decision import Decision
from rota.core.decide.gangs import root_leases, settle_unsent
from rota.core.dependencies.following import follow_up
from rota.core.dependencies.telling import woken
from rota.core.effects import Effect
from rota.core.evolve import evolve
from rota.core.evolve.leasing import Grant, lease_jobs
from rota.core.notes import PluginDisabled, follow, performed, restarted, take_note
from rota.core.passing import enter_runners, pass_time
from rota.core.plan import plan
from rota.core.react import react, restart_effects
from rota.core.soft import Contact, chance_after
from rota.core.state import Settings, State
from rota.core.stimuli import At, Stimulus, Tick
from rota.model.events import Event, Moved
from rota.model.job import Result
from rota.schedule.policy import PluginError

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
        for runner in self.state.runners:
            self.state.soft.contacts.setdefault(runner, Contact())
        enter_runners(self.state)
        self.last_tick: At | None = None
        self._seen: At | None = None
        self._set_back = False
        """The wall clock was set back since the last Tick."""
        self.changed = False
        """Whether the last step, or the scheduling pass, has begun to change the state."""

    def step(self, stimulus: Stimulus) -> Step:
        """Decide, apply, react. Raises a RotaError for a refusal; then nothing has changed."""
        state, at = self.state, stimulus.at
        events: list[Event] = []
        self.changed = isinstance(stimulus, Tick)
        if self._seen is not None and was_set_back(self._seen, at):
            self._set_back = True
        self._seen = at
        if isinstance(stimulus, Tick):
            last, self.last_tick = self.last_tick, at
            set_back, self._set_back = self._set_back, False
            due = pass_time(state, at, last, set_back or (last is not None and was_set_back(last, at)))
            state.freed.extend(due.jobs)
            decision = tick(state, at, last, due)
        else:
            results: list[Result] = []
            for prelude in preludes(state, stimulus):
                self._apply(prelude, events, at)
                results += prelude.results
            decision = decide(state, stimulus)
            decision.results[:0] = results
        self._apply(decision, events, at)
        if state.soft.unsent:
            settled = settle_unsent(state)
            self._apply(settled, events, at)
            decision.results += settled.results
        self._follow(decision.reconsider, at, events)
        effects = react(state, events)
        if state.soft.unsent:
            effects += root_leases(state)
        performed(state, effects, at)
        return Step(events, decision.results, [*effects, *decision.effects], decision.reply)

    def schedule(self, at: At) -> Step:
        """Run the scheduling pass, if anything has changed since the last one."""
        state = self.state
        if not state.soft.planning.wanted:
            return Step()
        events: list[Event] = []
        while True:
            try:
                self._place(at, events)
                break
            except PluginError as error:  # what was placed before stands; without that part it goes on from there
                planning = state.soft.planning
                planning.changed.everything = True
                if (error.kind, error.name) in state.soft.disabled:
                    planning.queues = type(planning.queues)()  # what it remembers still asks for that part
                    break
                take_note(state, PluginDisabled(error.kind, error.name, error.why))
        effects = react(state, events)
        performed(state, effects, at)
        return Step(events, [], effects)

    @property
    def can_wait(self) -> bool:
        """Whether the next pass cannot give anybody a place, so that it may as well come after what is to be answered.

        Nobody waits for one, and nothing has become ready.
        """
        planning, shapes = self.state.soft.planning, self.state.shapes
        if planning.waiting.entries or planning.changed.everything:
            return False
        return not any(shapes[number].ready for number in planning.changed.shapes)

    def _place(self, at: At, events: list[Event]) -> None:
        state = self.state
        for made in plan(state, at):
            if isinstance(made, Grant):
                for event in lease_jobs(state, made):
                    follow(state, event, at)
                    events.append(event)
            else:
                self._happen(made, events, at)

    def restart(self, at: At) -> list[Effect]:
        """Begin after a restart: every deadline gets its full grace again. Call it once."""
        restarted(self.state, at)
        return restart_effects(self.state)

    def next_deadline(self, at: At) -> float:
        """Monotonic time at which a Tick is due."""
        return next_deadline(self.state, at, self.last_tick)

    def _apply(self, decision: Decision, events: list[Event], at: At) -> None:
        state = self.state
        for event in decision.events:
            self._happen(event, events, at)
            for kill in end_direct(state, event):
                self._happen(kill, events, at)
        for note in decision.notes:
            self.changed = True
            take_note(state, note)
        if decision.drawn:
            state.soft.chance = chance_after(state.soft.chance, decision.drawn)

    def _follow(self, reconsider: set[int], at: At, events: list[Event]) -> None:
        """Apply what follows for batches that wait. Iterative: a chain of any length settles without recursion."""
        state = self.state
        state.freed.extend((number, 0, state.batches[number].count) for number in sorted(reconsider))
        while state.again or state.settled or state.freed:
            if state.again:
                again, state.again = state.again, []
                for number, pos, why in again:
                    self._happen(Moved(number, "reopen", [pos, pos + 1], why), events, at)
            settled, state.settled = state.settled, []
            for number, low, high in settled:
                state.freed.extend(woken(state, number, low, high))
            freed, state.freed = state.freed, []
            for event in follow_up(state, freed, at.wall):
                self._happen(event, events, at)

    def _happen(self, event: Event, events: list[Event], at: At) -> None:
        self.changed = True
        evolve(self.state, event)
        follow(self.state, event, at)
        events.append(event)

"""A turn of the loop around the core: everything that waits is stepped, and one scheduling pass follows.

A shell adds the time, and what comes after, in this order: commit the entries and results, perform the effects, answer.
"""

from collections.abc import Callable, Sequence

from rota.core.effects import Effect
from rota.core.step import Core, Step
from rota.core.stimuli import At, Stimulus
from rota.model.errors import RotaError
from rota.model.events import Entry
from rota.model.job import Result

__all__ = ["PUT_OFF_S", "Done", "Turn"]

Done = Callable[[Step | RotaError], None]
"""Called with the answer to a stimulus: what it led to, or why it was refused."""
PUT_OFF_S = 0.01
"""How long a pass that is put off waits for a turn to come with, before it gets one of its own."""
Quarantine = Callable[[Stimulus | str, Exception], RotaError]
"""Keeps a stimulus that made the core fail; the refusal that answers it."""


class Turn:
    """One turn: the entries and results to commit, and the effects and answers that wait for the commit."""

    __slots__ = ("_core", "_quarantine", "answers", "effects", "entries", "left", "results", "spoilt")

    def __init__(self, core: Core, quarantine: Quarantine | None = None) -> None:
        self._core = core
        self._quarantine = quarantine
        """Told of what makes the core fail, if the shell can go on without it; else that is raised."""
        self.spoilt = False
        """Whether the state cannot be trusted any more: once this turn is durable it must be folded anew."""
        self.left: list[tuple[Stimulus, Done | None]] = []
        """What came after that, and is for the next turn."""
        self.entries: list[Entry] = []
        self.results: list[Result] = []
        self.effects: list[Effect] = []
        self.answers: list[tuple[Done, Step | RotaError]] = []

    def take(self, inbox: Sequence[tuple[Stimulus, Done | None]]) -> None:
        """Step the core with each stimulus."""
        core, answers = self._core, self.answers
        for at, (stimulus, done) in enumerate(inbox):
            try:
                step = core.step(stimulus)
            except RotaError as refusal:
                if done is not None:
                    answers.append((done, refusal))
                continue
            except Exception as error:
                if self._quarantine is None:
                    raise
                failure = self._quarantine(stimulus, error)
                if done is not None:
                    answers.append((done, failure))
                if core.changed:
                    self.spoilt, self.left = True, list(inbox[at + 1 :])
                    return
                continue
            self._add(step, stimulus.at.wall, stimulus.by)
            if done is not None:
                answers.append((done, step))

    def puts_off(self, before: bool) -> bool:
        """Whether its pass comes in the next turn; not if the turn `before` has put off its own.

        So it comes after the answers; and where one job follows the other, it is the pass of the next job too.
        """
        return not before and bool(self.entries) and self._core.can_wait

    def schedule(self, at: At) -> None:
        """Run the scheduling pass."""
        try:
            step = self._core.schedule(at)
        except Exception as error:
            if self._quarantine is None:
                raise
            self._quarantine("the scheduling pass", error)
            self.spoilt = True
            return
        self._add(step, at.wall, "rota")

    def answer(self) -> None:
        """Give every client its answer, once the entries are durable."""
        for done, outcome in self.answers:
            done(outcome)

    def _add(self, step: Step, wall: float, by: str) -> None:
        seq = self._core.state.seq - len(step.events)
        self.entries += [Entry(seq + number, wall, by, event) for number, event in enumerate(step.events, 1)]
        self.results += step.results
        self.effects += step.effects

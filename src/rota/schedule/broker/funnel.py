"""The funnel of one brokerage: which check removed which queues, from the first candidates to the last."""

from collections.abc import Mapping, Sequence

from rota.schedule.broker.context import Check, Context
from rota.schedule.broker.decision import Candidate, Decision, Skip, Step
from rota.schedule.broker.fairshare import lint_policy
from rota.schedule.broker.queue import Queue

__all__ = ["Funnel"]


class Funnel:
    """Keeps the steps and the skips while a flow goes on."""

    def __init__(self, name: str, context: Context, pending_minutes: float) -> None:
        self.name = name
        self.context = context
        self.pending_minutes = pending_minutes
        self.initial = 0
        self.steps: list[Step] = []
        self.skipped: dict[str, Skip] = {}
        self.by: dict[str, str] = {}
        self.locality: bool | None = None
        self._unknown: dict[str, Skip] = {}

    def named(self, names: Sequence[str]) -> list[Queue]:
        """The queues of these names; one that there is none of is told, and left out."""
        queues = self.context.world.queues
        found = []
        for name in dict.fromkeys(names):
            if name in queues:
                found.append(queues[name])
            elif "/" in name and name.partition("/")[0] in queues:
                found.append(queues[name.partition("/")[0]])
            else:
                self._unknown[name] = Skip("-unknown", "there is no such queue")
        return found

    def begin(self, queues: Sequence[Queue]) -> list[Queue]:
        """Take the first candidates; those with a problem are left out at once."""
        problems = self.context.world.problems
        out = {
            queue.name: Skip("-malformed", queue.problem or problems[queue.unified])
            for queue in queues
            if queue.problem is not None or queue.unified in problems
        }
        self.initial = len(queues) + len(self._unknown)
        if self._unknown:
            self.steps.append(Step("known", self.initial, len(queues)))
            self.skipped.update(self._unknown)
        return self.step("description", queues, [queue for queue in queues if queue.name not in out], out)

    def apply(self, checks: Sequence[Check], queues: list[Queue]) -> list[Queue]:
        """Ask these checks, one after the other, of the queues that are left."""
        skipped = self.skipped
        for check in checks:
            if not queues:
                break
            asked = check.bind(self.context)
            if asked is None:
                continue
            kept = []
            for queue in queues:
                no = asked(queue)
                if no is None:
                    kept.append(queue)
                else:
                    skipped[queue.name] = no
                    self.by[queue.name] = check.name
            if len(kept) < len(queues):
                self.steps.append(Step(check.name, len(queues), len(kept)))
            queues = kept
        return queues

    def step(self, name: str, queues: Sequence[Queue], kept: list[Queue], out: Mapping[str, Skip]) -> list[Queue]:
        """Take what a check of all queues together left over."""
        if len(kept) < len(queues):
            self.steps.append(Step(name, len(queues), len(kept)))
        self.skipped.update(out)
        self.by.update(dict.fromkeys(out, name))
        return kept

    def failed(self, reason: str = "", throttled: bool = False) -> Decision:
        """The task waits."""
        if not reason:
            last = self.steps[-1] if self.steps else None
            reason = "there is no queue" if not self.initial else "no queue is left"
            if last is not None and not last.after:
                lasting = all(skip.lasting for skip in self.skipped.values())
                reason = f"no queue is left: the last {last.before} failed the check '{last.name}'"
                reason += "" if lasting else "; some may pass later"
        return self._decision("FAILED", reason, (), self.pending_minutes, throttled)

    def done(self, candidates: Sequence[Candidate]) -> Decision:
        """The task may use these."""
        if not candidates:
            return self.failed()
        return self._decision("SUCCEEDED", "", tuple(candidates), 0, False)

    def _decision(
        self, status: str, reason: str, candidates: tuple[Candidate, ...], minutes: float, throttled: bool
    ) -> Decision:
        context = self.context
        return Decision(
            self.name,
            context.profile,
            status,
            reason,
            self.initial,
            tuple(self.steps),
            self.skipped,
            candidates,
            minutes,
            throttled,
            self.locality,
            tuple(dict.fromkeys(context.warnings)),
            self.by,
        )


def lint_queues(queues: Mapping[str, Queue]) -> list[str]:
    """What is odd about the descriptions of queues."""
    found = []
    for name, queue in sorted(queues.items()):
        words = queue.problem or lint_policy(queue.fairshare_policy)
        if words is not None:
            found.append(f"{name}: {words}")
    return found

"""What the users of a simulated world do: random batches, and random commands while they run."""

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rota.core.step import Step
from rota.core.stimuli import At, ChangeJobs, SetLimits, SetMode, Stimulus, Submit
from rota.core.turn import Done
from rota.model.batch import BatchSpec, Dependency, Template, count_of
from rota.model.errors import RotaError
from rota.model.events import Respecified
from rota.model.graph import MEMBER, Graph, pack_links
from rota.model.needs import Needs
from rota.model.patch import BatchPatch, Patch
from rota.model.selector import parse_selector
from rota.sim.clock import EPOCH
from rota.sim.cluster import NODES_MOST
from rota.sim.witness import Execution

if TYPE_CHECKING:
    from rota.sim.world import World

__all__ = ["Plan", "Workload"]

_NOW = At(0.0, 0.0)
_SECONDS = (0.0004, 0.002, 0.02, 0.1, 0.5, 1.0, 3.0, 8.0, 20.0, 20.0, 30.0, 90.0)
_LIMITS = ("irods", "licence")
_RATES = ("2/s", "5/s", "40/min", "100/min", "3,2/s")
_DAY_S = 86_400
_NAMES = ("align", "call", "merge")
_COMMANDS = (
    "kill", "hold", "hold", "release", "retry", "retry", "remove", "pause", "limit", "confirm", "drain", "modify",
)  # fmt: skip
_CONDITIONS: tuple[Literal["success", "any", "failure"], ...] = ("success", "success", "any", "failure")


class Plan:
    """One submission, and how its jobs will behave."""

    def __init__(self, key: str, spec: BatchSpec, runs: list[int] | None, limits: dict[str, int | str] | None) -> None:
        self.key = key
        self.spec = spec
        self.runs = runs
        self.limits = limits
        self.number: int | None = None
        self.seconds: list[float] = []
        self.failing: list[float] = []
        """Chance of failure of an attempt, per template."""
        self.template_of_position: list[int] = []
        self.graph: Graph | None = None

    def indices(self) -> list[int]:
        """The numbers of its jobs, in order."""
        if self.spec.ranges is None:
            return list(range(1, self.spec.count + 1))
        return [n for first, last, step in self.spec.ranges for n in range(first, last + 1, step)]


class Workload:
    """The users."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.rng = world.rng
        self.plans: list[Plan] = []
        self.by_batch: dict[int, Plan] = {}
        self._indices: dict[tuple[int, int], int] = {}
        self.chance = Random(f"limits {world.seed}")
        self.batches = Random(f"batches {world.seed}")
        self.gangs = Random(f"gangs {world.seed}")
        self.graphs = Random(f"graphs {world.seed}")
        self.woven = self.graphs.choice((0.0, 0.0, 0.3))
        """How likely the jobs of a batch are to wait for each other."""
        self.has_gangs = any(site.kind == "nodes" for site in world.cluster.sites.values())
        first = self.chance.choice((0, 0, 3600, -18_000, 20_700))
        self.offsets = [(0.0, first)]
        """(true time, seconds that the manager's local time is ahead of UTC from then on)."""
        if self.chance.random() < 0.2:
            self.offsets.append((self.chance.uniform(0.0, 60.0), first + self.chance.choice((-60, 60, 3600))))
            # not an hour back: the world would be over before a date comes
        self.limit_history: dict[str, list[tuple[float, int | None]]] = {}
        self.open_questions = 0
        self.linked = 0.0
        """How likely a batch is to depend on a live name."""

    def begin(self, until: float) -> None:
        """Plan what the users do, and when."""
        rng = self.rng
        jobs_left = rng.randint(20, 100)
        number = 0
        self.linked = rng.choice((0.0, 0.0, 0.0, 0.4))
        while jobs_left > 0:
            count = min(jobs_left, rng.choice((1, 2, 5, 10, 20, 40) if not self.linked else (1, 2, 5)))
            jobs_left -= count
            number += 1
            self.world.when(rng.uniform(0.0, until * 0.6), self._submit_new, f"k{number}", count)
        for _ in range(rng.choice((0, 3, 8, 20))):
            self.world.when(rng.uniform(0.0, until), self._meddle)
        for _ in range(self.batches.choice((0, 0, 0, 12))):
            self.world.when(self.batches.uniform(0.0, until), self._change_batch)

    # -- submissions

    def _submit_new(self, key: str, count: int) -> None:
        plan = self._make(key, count)
        self.plans.append(plan)
        self._submit(plan)

    def _make(self, key: str, count: int) -> Plan:
        rng = self.rng
        name = rng.choice(("", "", *_NAMES) if not self.linked else _NAMES)
        twin = self._twin()
        if twin is not None:
            count = twin.spec.count
        templates, seconds, failing = [], [], []
        at_once = rng.choice((None, None, None, 1, 3))
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            templates.append(self._template())
            most = 60.0 / count if templates[-1].limits or at_once is not None else 300.0 / count
            seconds.append(min(rng.choice(_SECONDS), most))
            failing.append(rng.choice((0.0, 0.0, 0.0, 0.3, 0.7, 1.0)))
        if key[1:].isdigit() and int(key[1:]) % 5 == 4:  # no draw: the schedules of known seeds stay what they are
            remove_on: Any = ("success", "failure", "exit")[count % 3]
            templates = [msgspec.structs.replace(template, remove_on=remove_on) for template in templates]
        runs = None
        order = [0] * count
        if len(templates) > 1:
            order = [rng.randrange(len(templates)) for _ in range(count)]
            runs = [item for template in order for item in (template, 1)]
        ranges = None if twin is None else twin.spec.ranges
        if twin is None and rng.random() < 0.3:
            step = rng.choice((1, 2, 5))
            first = rng.randrange(4)
            ranges = ((first, first + (count - 1) * step, step),)
            assert count_of(ranges) == count
        spec = BatchSpec(
            count,
            tuple(templates),
            name=name,
            ranges=ranges,
            at_once=at_once,
            after=self._after() + self._each(twin) + self._named(name),
            not_before=EPOCH + self.world.now + rng.uniform(0.0, 30.0) if rng.random() < 0.15 else None,
            scouts=1 + count % 3 if key[1:].isdigit() and int(key[1:]) % 5 == 3 else 0,  # no draw, as above
        )
        limits: dict[str, int | str] = {
            name: rng.randint(1, 4) for template in templates for name in template.limits if name in _LIMITS
        }
        if self.chance.random() < 0.8:
            used = {name for template in templates for name in template.limits}
            limits |= {name: self._rule(name) for name in ("api", "hours") if name in used}
        plan = Plan(key, spec, runs, limits or None)
        plan.seconds, plan.failing, plan.template_of_position = seconds, failing, order
        if count > 1 and self.graphs.random() < self.woven:
            plan.graph = self._graph(count)
            plan.spec = msgspec.structs.replace(plan.spec, scouts=0)
        return plan

    def _graph(self, count: int) -> Graph:
        """Jobs that wait for some before them, for names that some have, and for what is elsewhere."""
        rng = self.graphs
        known = [str(plan.number) for plan in self.plans if plan.number is not None]
        targets = rng.sample(known, min(len(known), rng.choice((0, 0, 1, 2))))
        after = [Dependency(target) for target in targets]
        if rng.random() < 0.3:
            live = rng.random() < 0.5
            after.append(Dependency(f"@{rng.choice(_NAMES)}", live=live, rerun=live and rng.random() < 0.5))
        names = rng.sample(("left", "right", *_NAMES), min(count // 2, rng.choice((0, 1, 2))))
        after = [each for each in after if each.target[1:] not in names]
        rows: list[list[int]] = []
        order = list(range(count))
        rng.shuffle(order)
        for at in range(count):
            row = [
                parent << 2 | rng.choice((0, 0, 1, 2)) for parent in rng.sample(order[:at], min(at, rng.randint(0, 2)))
            ]
            if at < len(names):
                row.append(count + at << 2 | MEMBER)
            elif names and at < count // 2 and rng.random() < 0.5:
                row.append(count + rng.randrange(len(names)) << 2 | MEMBER)
            elif names and at >= count // 2 and rng.random() < 0.3:
                row.append(count + rng.randrange(len(names)) << 2 | rng.choice((0, 1)))
            if after and rng.random() < 0.2:
                row.append(count + len(names) + rng.randrange(len(after)) << 2 | rng.choice((0, 0, 1, 2)))
            rows.append(row)
        placed = [rows[order.index(pos)] for pos in range(count)]
        return Graph(*pack_links(placed), tuple(names), tuple(after))

    def _rule(self, name: str) -> str:
        """The rule of a limit: a rate, or a window that is closed for a while, or opens soon."""
        if name == "api":
            return self.chance.choice(_RATES)
        if self.chance.random() < 0.3:
            return self._window("{0}..")
        return self.chance.choice(("", "4,")) + self._window("{1}-{2}")

    def _window(self, form: str) -> str:
        now = EPOCH + self.world.now + self.world.clock.utc_offset_s
        begin = int(now + self.chance.uniform(-20.0, 40.0))
        end = begin + self.chance.randint(1, 60)
        date = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%d %H:%M:%S")
        return form.format(date, _clock(end), _clock(begin))

    def _timed_limits(self) -> tuple[str, ...]:
        out = [name for name in ("api", "hours") if self.chance.random() < 0.12]
        if self.chance.random() < 0.08:
            out.append(self._window(self.chance.choice(("{1}<time<{2}", "{0}<datetime"))))
        return tuple(out)

    def _template(self) -> Template:
        rng = self.rng
        cores = rng.choice((100, 1000, 1000, 1000, 2000))
        needs = Needs(
            cores,
            cores_most=cores + 2000 if rng.random() < 0.15 else 0,
            memory=rng.choice((None, None, 1 << 28, 1 << 31)),
        )
        if self.has_gangs and self.gangs.random() < 0.4:
            needs = msgspec.structs.replace(needs, nodes=self.gangs.choice((2, 2, NODES_MOST)))
        return Template(
            argv=("true",),
            needs=needs,
            priority=rng.choice((0, 0, 0, 10, 255)),
            retries=rng.choice((0, 0, 1, 3)),
            limits=tuple(sorted((*((rng.choice(_LIMITS),) if rng.random() < 0.2 else ()), *self._timed_limits()))),
            rerunnable=rng.random() < 0.2,
            group=rng.choice(("", "", "align", "aligner", "call")),
            override=rng.choice(("never", "never", "higher", "always")),
        )

    def _after(self) -> tuple[Dependency, ...]:
        rng = self.rng
        if rng.random() > 0.35 or not self.plans:
            return ()
        out = []
        for _ in range(rng.choice((1, 1, 2))):
            plan = rng.choice(self.plans)
            if plan.number is None:
                continue
            indices = plan.indices()
            target = str(plan.number)
            if plan.spec.name and rng.random() < 0.5:
                target = f"@{plan.spec.name}"
            elif rng.random() < 0.3:
                target += f".{rng.choice(indices)}"
            elif rng.random() < 0.2:
                low = rng.randrange(len(indices))
                target += f".{indices[low]}-{indices[rng.randrange(low, len(indices))]}"
            live = target.startswith("@") and rng.random() < 0.5
            out.append(Dependency(target, rng.choice(_CONDITIONS), live=live, rerun=live and rng.random() < 0.5))
        return tuple(out)

    def _named(self, name: str) -> tuple[Dependency, ...]:
        """A dependency on a name that perhaps nothing has yet; seldom one that closes a circle."""
        rng = self.rng
        names = _NAMES[: _NAMES.index(name)] if name and rng.random() < 0.8 else _NAMES
        if not names:
            return ()
        if rng.random() >= max(self.linked, 0.05):
            return ()
        live = rng.random() < max(self.linked * 2, 0.3)
        rerun = live and rng.random() < 0.7
        return (Dependency(f"@{rng.choice(names)}", rng.choice(_CONDITIONS), live=live, rerun=rerun),)

    def _twin(self) -> Plan | None:
        """A batch that the next batch is to depend on job by job."""
        known = [plan for plan in self.plans if plan.number is not None]
        return self.rng.choice(known) if known and self.rng.random() < 0.2 else None

    def _each(self, twin: Plan | None) -> tuple[Dependency, ...]:
        if twin is None or twin.number is None:
            return ()
        return (Dependency(str(twin.number), self.rng.choice(_CONDITIONS), each=True),)

    def _submit(self, plan: Plan) -> None:
        self.open_questions += 1

        def answered(outcome: Step | RotaError) -> None:
            self.open_questions -= 1
            if isinstance(outcome, RotaError):
                if outcome.code == "refused":  # draining: the user comes back
                    self.open_questions += 1
                    self.world.after(5.0, self._submit_again, plan)
                elif "wait for itself" not in str(outcome):
                    self.world.witness.problems.append(f"batch {plan.key} was refused: {outcome}")
                return
            batch = outcome.reply["batch"]
            known = self.world.witness.acked.setdefault(plan.key, batch)
            if known != batch or (plan.number is not None and plan.number != batch):
                self.world.witness.problems.append(f"key {plan.key} gave batch {known} and then {batch}")
            if self.rng.random() < 0.05:
                self._submit(plan)  # an anxious user

        def make() -> Stimulus:
            return Submit(
                at=_NOW,
                by="user",
                spec=plan.spec,
                key=plan.key,
                runs=plan.runs,
                limits=plan.limits,
                graph=plan.graph,
            )

        self._ask(make, answered, True)

    def _submit_again(self, plan: Plan) -> None:
        self.open_questions -= 1
        self._submit(plan)

    def committed(self, key: str, number: int) -> None:
        """A batch is durable."""
        for plan in self.plans:
            if plan.key == key:
                plan.number = number
                self.by_batch[number] = plan
                for pos, index in enumerate(plan.indices()):
                    self._indices[number, index] = pos

    def respecified(self, event: Respecified) -> None:
        """A batch has another name, or waits for something else."""
        plan = self.by_batch[event.batch]
        plan.spec = msgspec.structs.replace(plan.spec, name=event.name, after=event.after)

    def limit_set(self, name: str, count: int | None) -> None:
        """A limit is durable."""
        self.limit_history.setdefault(name, []).append((self.world.now, count))

    # -- commands

    def _ask(self, make: Callable[[], Stimulus], answered: Done, insist: bool) -> None:
        """Ask the manager until it answers. The answer may be lost on its way; with `insist` it is asked again."""
        done = False

        def reply(outcome: Step | RotaError) -> None:
            nonlocal done
            if not done and not (insist and self.world.faults.strikes("reply-lost")):
                done = True
                answered(outcome)

        def send() -> None:
            if not done:
                self.world.shell.post(make(), reply)
                if insist:
                    self.world.after(3.0, send)

        send()

    def _meddle(self) -> None:
        rng = self.rng
        known = [plan for plan in self.plans if plan.number is not None]
        what = rng.choice(_COMMANDS)
        if what in ("pause", "drain"):
            self._tell(lambda: SetMode(at=_NOW, by="user", mode="paused" if what == "pause" else "draining"))
            self.world.after(rng.uniform(0.5, 10.0), self._tell, lambda: SetMode(at=_NOW, by="user", mode="serving"))
            return
        if what == "limit":
            settings: dict[str, int | str | None] = {rng.choice(_LIMITS): rng.randint(1, 4)}
            for name in ("api", "hours"):
                if self.chance.random() < 0.4:
                    settings[name] = self._rule(name) if self.chance.random() < 0.8 else None
            self._tell(lambda: SetLimits(at=_NOW, by="user", counts=settings))
            return
        if not known:
            return
        plan = rng.choice(known)
        words = [str(plan.number)]
        if rng.random() < 0.4:
            words = [f"{plan.number}.{rng.choice(plan.indices())}"]
        if what == "retry" and rng.random() < 0.5:
            words.append(rng.choice((":completed", ":failed", ":settled")))
        if what == "confirm":
            words = []
        stop = rng.random() < 0.5
        patch = rng.choice(
            (Patch(memory=1 << 27), Patch(memory=1 << 30, priority=3), Patch(set={"A": "b"}), Patch(group="call"))
        )

        def make() -> Stimulus:
            return ChangeJobs(
                at=_NOW,
                by="user",
                what="kill" if what == "confirm" else what,
                selector=parse_selector(words),
                everything=not words,
                stop=stop,
                confirm_dead=what == "confirm",
                patch=patch if what == "modify" or (what == "retry" and stop) else None,
            )

        self._tell(make)

    def _change_batch(self) -> None:
        """Change something about a whole batch; some of it is refused."""
        known = [plan for plan in self.plans if plan.number is not None]
        if known:
            selector = parse_selector([str(self.batches.choice(known).number)])
            patch = Patch(batch=self._batch_patch(known))
            self._tell(lambda: ChangeJobs(at=_NOW, by="user", what="modify", selector=selector, patch=patch))

    def _batch_patch(self, known: list[Plan]) -> BatchPatch:
        rng = self.batches
        patch: dict[str, Any] = {}
        fields = ("name", "after", "after_none", "not_before", "at_once", "max_failures")
        for what in rng.sample(fields, rng.choice((1, 1, 2))):
            if what == "name":
                patch[what] = rng.choice(("", *_NAMES))
            elif what == "after":
                target = rng.choice([str(plan.number) for plan in known] + [f"@{name}" for name in _NAMES])
                live = target.startswith("@") and rng.random() < 0.4
                condition: Any = rng.choice(("success", "any", "failure"))
                dependency = Dependency(target, condition, live=live, rerun=live and rng.random() < 0.4)
                patch[what] = (dependency,)
            else:
                values = {
                    "after_none": True,
                    "not_before": rng.choice((None, EPOCH + self.world.now + rng.uniform(-5.0, 30.0))),
                    "at_once": rng.choice((None, 1, 3)),
                    "max_failures": rng.choice((None, "off", "50%")),
                }
                patch[what] = values[what]
        return BatchPatch(**patch)

    def _tell(self, make: Callable[[], Stimulus]) -> None:
        self._ask(make, lambda outcome: None, False)

    def settle_down(self) -> None:
        """The last phase: nobody holds anything any more, and nothing is waited for that never comes."""
        for name in _NAMES:
            known = [plan for plan in self.plans if plan.spec.name == name and plan.graph is None]
            if not any(not plan.spec.after for plan in known):
                plan = self._make(f"last-{name}", 1)
                plan.spec = msgspec.structs.replace(plan.spec, name=name, after=(), not_before=None)
                plan.graph = None
                self.plans.append(plan)
                self._submit(plan)
        self._tell(lambda: SetMode(at=_NOW, by="user", mode="serving"))
        self._tell(lambda: ChangeJobs(at=_NOW, by="user", what="release", selector=parse_selector([]), everything=True))
        self.world.after(7.0, self.settle_down)

    # -- what jobs do

    def peak_memory(self, execution: Execution) -> int:
        """What an execution used at most: sometimes more than it asked for, now and then absurdly much."""
        rng = self.rng
        if rng.random() < 0.01:
            return 1 << 50
        return int(rng.choice((1 << 20, 1 << 27, 1 << 28)) * rng.uniform(0.5, 2.0))

    def behaviour(self, execution: Execution) -> tuple[float, int | None, int | None]:
        """(seconds, exit code, signal) of an execution."""
        rng = self.rng
        plan = self.by_batch[execution.batch]
        template = plan.template_of_position[self._indices[execution.job]]
        seconds = plan.seconds[template] * rng.uniform(0.5, 1.5)
        if rng.random() >= plan.failing[template]:
            return seconds, 0, None
        return (seconds, None, 11) if rng.random() < 0.2 else (seconds, rng.choice((1, 1, 1, 2, 127)), None)


def _clock(local: int) -> str:
    second = local % _DAY_S
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"

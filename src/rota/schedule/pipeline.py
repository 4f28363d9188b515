"""The loop of the full pass over nodes: order → filter → score → pick → reserve.

It is a generator: each Placement is charged by the caller before the next is computed, so the ledger and the limits
that the filters read are always the present ones, and nothing can be given out twice.

Answers are kept in the memo from pass to pass. A filter is asked again only about a place that changed (its location,
its runner's state, what is free on its path), or when its answer has run out; so a pass in which little changed costs
little. The limits, which are the same everywhere, are asked once per shape and pass. What it yields is the same as
without a memo.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby

from msgspec import Struct

from rota.model.location import Location
from rota.model.needs import Amounts
from rota.model.shape import Shape
from rota.model.verdict import Verdict
from rota.schedule import filters, limits, picks, scorers
from rota.schedule.data import bytes_of
from rota.schedule.filters import Answer, Check, No
from rota.schedule.policy import DEFAULT, Policy, in_order
from rota.schedule.scorers import Scorer
from rota.schedule.view import NODE, Place, View, Want

__all__ = ["Memo", "Parked", "Placement", "place", "room_for", "width"]

Stamp = tuple[Location, str, int, tuple[Amounts, ...]]
"""All facts about a place that an answer may depend on."""


class Plan(Struct):
    """Which filters are left to ask about the places of a class, after its static filters have been asked once."""

    ask: list[str]
    end: str = ""
    """The static filter, after those in `ask`, that says no to all places of the class."""
    no: No | None = None


Bound = dict[str, Callable[[Place], Answer] | None]
"""Name → check of each filter that is not static, for one shape."""
Checks = list[tuple[str, Callable[[Place], Answer]]]
"""(name, check) of the filters that are asked about a class of places, in order."""


class Kept(Struct):
    """The answers for one shape with one set of filters; the lists go by the places of the last pass."""

    shape: Shape | None
    names: tuple[str, ...] = ()
    mode: str = ""
    wall: float = -math.inf
    places: list[str] = []
    stamps: list[Stamp | None] = []
    answers: list[Verdict | None] = []
    holds: list[float] = []
    """Wall-clock time up to which each answer stands."""
    until: float = math.inf
    """The least of these times."""
    verdicts: list[Verdict] = []
    """The answers that are no."""
    full: No | None = None
    at_limit: list[Verdict] = []
    """The verdicts while a limit says no (`full`)."""
    plans: dict[int, Plan] = {}


Memo = dict[tuple[int, int], Kept]
"""(shape, number of relaxed filters) → answers; (-1, 0) → the places of the last pass. Empty it at any time."""


class Placement(Struct):
    """Slots of a shape to reserve at a place, each with `cores` millicores."""

    want: Want
    place: Place
    count: int
    cores: int


class Parked(Struct):
    """A shape that has ready jobs left after its turn, and why."""

    want: Want
    left: int
    verdicts: list[Verdict]


_FOR_GOOD = math.inf

Policies = Policy | Mapping[str, Policy]
"""The policy of all wants, or the policies that their shapes name."""


def place(
    view: View,
    wants: Sequence[Want],
    policies: Policies,
    memo: Memo,
    changed: set[str],
    draw: Callable[[], float] = lambda: 0.0,
) -> Iterator[Placement | Parked]:
    """Go once through the shapes; yields what to reserve, and for each shape with jobs left over the reasons.

    `changed` is the ledger's: the locations where another amount is free; `draw` gives chance, in [0, 1).
    """
    known = {want.shape.policy: policies for want in wants} if isinstance(policies, Policy) else policies
    seen = _Places(view, memo, changed)
    for want, turn in _turns(in_order(wants, view, known), known, view):
        policy = known.get(want.shape.policy, DEFAULT)
        left = want.ready if want.most is None else min(want.ready, want.most)
        later = want.ready - left
        names = tuple([name for name in policy.filters if NODE in filters.BUILT_IN[name].levels])
        level = 0
        kept, said = seen.ask(want, names, level)
        while len(said) == len(view.places) and level < len(policy.relax):
            if view.elsewhere is not None and view.elsewhere(want.shape_id):
                break
            names = tuple(name for name in names if name != policy.relax[level])
            level += 1
            kept, said = seen.ask(want, names, level)
        if len(said) == len(view.places) or left <= 0:
            if left + later > 0 and turn is _LAST:
                yield Parked(want, left + later, said)
            continue
        verdicts = list(said)
        able = [at for at, no in enumerate(kept.answers) if no is None]
        if turn is not _LAST:
            able = seen.home(want.shape, policy, kept.answers) if turn is _HOME else able
            for item in _singly(seen, policy, want, able, left, draw):
                want.ready -= item.count
                want.most = None if want.most is None else want.most - item.count
                yield item
                seen.refresh()
            continue
        if picks.BUILT_IN[policy.pick].singly:
            for item in _singly(seen, policy, want, able, left, draw):
                yield item
                left -= item.count
                seen.refresh()
            able = able if left > 0 else []
        else:
            able = seen.ranked(want.shape, policy, able)
        bound: Bound | None = None
        for at in able:
            candidate = view.places[at]
            while left > 0:
                cores = width(want.shape, candidate, view)
                count = room_for(want.shape, candidate, view, left, cores)
                if count <= 0:
                    break
                yield Placement(want, candidate, count, cores)
                left -= count
                seen.refresh()
            if left <= 0:
                break
            plan = kept.plans[candidate.class_number]
            bound = seen.bound(want.shape, kept.names) if bound is None else bound
            no, _ = _first_no(candidate, plan, _checks(plan, bound))
            no = _with_limits(candidate.location.id, no, seen.full(want.shape, names), names)
            if no is not None:
                verdicts.append(no)
        if left + later > 0:
            yield Parked(want, left + later, verdicts)


_HOME, _SMALL, _LAST = "home", "small", "last"


def _turns(wants: list[Want], policies: Mapping[str, Policy], view: View) -> Iterator[tuple[Want, str]]:
    """Each shape once; those of a policy that goes by homes have other turns before that.

    First they are placed at home only. So what becomes free at a place goes to whoever has its files there, if anybody
    has; nothing is kept free for that. Then anywhere, those first of which least has to be moved. Nobody is passed by
    but others of the same policy and priority, whose turn comes at their own homes.
    """
    for (name, _), group in groupby(wants, lambda want: (want.shape.policy, want.priority)):
        together = list(group)
        if len(together) > 1 and policies.get(name, DEFAULT).home_first:
            reads = [want for want in together if want.shape.inputs and not want.shape.needs.together]
            yield from [(want, _HOME) for want in reads]
            if len(reads) == len(together):
                yield from [(want, _SMALL) for want in sorted(reads, key=lambda want: bytes_of(want.shape, view))]
        yield from [(want, _LAST) for want in together]


def _singly(
    seen: "_Places", policy: Policy, want: Want, able: list[int], left: int, draw: Callable[[], float]
) -> Iterator[Placement]:
    """Give out slots one by one, each where the policy's pick says, as long as there is room anywhere."""
    view, choose = seen.view, picks.BUILT_IN[policy.pick].choose
    scores = [seen.score(want.shape, policy, at) for at in able]
    able, given = list(able), [0] * len(able)
    while left > 0 and able:
        number = choose(scores, given, draw)
        candidate = view.places[able[number]]
        cores = width(want.shape, candidate, view)
        if room_for(want.shape, candidate, view, left, cores) <= 0:
            del able[number], scores[number], given[number]
            continue
        given[number] += 1
        left -= 1
        yield Placement(want, candidate, 1, cores)


class _Places:
    """The places of one pass, with what is remembered of them."""

    def __init__(self, view: View, memo: Memo, changed: set[str]) -> None:
        self.view = view
        self.changed = changed
        self.memo = memo
        self.scorers: dict[str, tuple[list[tuple[Scorer, float]], bool]] = {}
        """Policy → its scorers with their weights, and whether no shape matters to any."""
        ids = [candidate.location.id for candidate in view.places]
        last = memo.setdefault((-1, 0), Kept(None))
        if last.places != ids:
            known = dict(zip(last.places, last.stamps, strict=True))
            last.places, last.stamps = ids, [known.get(name) for name in ids]
        self.ids, self.stamps = last.places, last.stamps
        self.scores: list[dict[str, float]] = [{} for _ in ids]
        """Of each place its score by policy, where no shape matters."""
        self.by_class: dict[int, list[int]] = {}
        """Class → its places."""
        self.members: dict[str, list[int]] = {}
        for at, name in enumerate(ids):
            for counted in view.ledger.chain(name):
                self.members.setdefault(counted, []).append(at)
            self.by_class.setdefault(view.places[at].class_number, []).append(at)
            self._look(at)
        changed.clear()

    def _look(self, at: int) -> None:
        """Stamp a place with its facts; the stamp stays the same object while they do, so comparing is quick."""
        candidate = self.view.places[at]
        ledger = self.view.ledger
        free = tuple([ledger.free(name) for name in ledger.chain(candidate.location.id)])
        stamp = (candidate.location, candidate.status, candidate.class_number, free)
        if self.stamps[at] != stamp:
            self.stamps[at] = stamp
        self.scores[at] = {}

    def refresh(self) -> None:
        """Look again at the places whose paths have been charged."""
        changed = self.changed
        for name in changed:
            for at in self.members.get(name, ()):
                self._look(at)
        changed.clear()

    def full(self, shape: Shape, names: tuple[str, ...]) -> No | None:
        """The limits' no to a shape, which holds everywhere."""
        return filters.of_limits(shape, self.view) if shape.limits and "limits" in names else None

    def ask(self, want: Want, names: tuple[str, ...], level: int) -> tuple[Kept, list[Verdict]]:
        """(answers of these filters, but for the limits, to a shape at every place; every no, also of the limits)."""
        kept = self._ask(want, tuple([name for name in names if name != "limits"]), level)
        full = self.full(want.shape, names)
        if full is None:
            return kept, kept.verdicts
        if kept.full != full or not kept.at_limit:
            kept.full = full
            kept.at_limit = [
                no
                for name, answer in zip(self.ids, kept.answers, strict=True)
                if (no := _with_limits(name, answer, full, names)) is not None
            ]
        return kept, kept.at_limit

    def _ask(self, want: Want, names: tuple[str, ...], level: int) -> Kept:
        view, shape = self.view, want.shape
        kept = self.memo.get((want.shape_id, level))
        if kept is None or kept.names != names or kept.shape != shape:
            kept = self.memo[want.shape_id, level] = Kept(shape, names)
        if kept.mode != view.mode or kept.wall > view.wall:
            kept.mode = view.mode
            kept.places, kept.stamps, kept.answers, kept.holds = [], [], [], []
        kept.wall = view.wall
        if not kept.places:
            kept.places = self.ids
            kept.answers, kept.holds = [None] * len(self.ids), [math.inf] * len(self.ids)
            self._ask_at(kept, shape, self.by_class)
            return kept
        if kept.places is not self.ids:
            self._realign(kept)
        stamps = self.stamps
        todo = (
            []
            if kept.stamps == stamps
            else [at for at, (old, new) in enumerate(zip(kept.stamps, stamps, strict=True)) if old is not new]
        )
        if kept.until < view.wall and len(todo) < len(stamps):
            todo = sorted({*todo, *(at for at, holds in enumerate(kept.holds) if holds < view.wall)})
        if todo:
            classes: dict[int, list[int]] = {}
            for at in todo:
                classes.setdefault(view.places[at].class_number, []).append(at)
            self._ask_at(kept, shape, classes)
        return kept

    def _realign(self, kept: Kept) -> None:
        """Bring the answers into the order of the present places, which are not those of the last pass."""
        known = {name: at for at, name in enumerate(kept.places)}
        old = [known.get(name) for name in self.ids]
        kept.stamps = [None if at is None else kept.stamps[at] for at in old]
        kept.answers = [None if at is None else kept.answers[at] for at in old]
        kept.holds = [-math.inf if at is None else kept.holds[at] for at in old]
        kept.places = self.ids
        kept.until = min(kept.holds, default=math.inf)
        kept.verdicts = [no for no in kept.answers if no is not None]
        kept.at_limit = []

    def _ask_at(self, kept: Kept, shape: Shape, classes: Mapping[int, list[int]]) -> None:
        """Ask about these places: the class of each → where in the view they are."""
        places, answers, holds, plans = self.view.places, kept.answers, kept.holds, kept.plans
        bound = self.bound(shape, kept.names)
        for number, these in classes.items():
            plan = plans.get(number)
            if plan is None:
                plan = plans[number] = _plan(shape, places[these[0]], self.view, kept.names)
            checks = _checks(plan, bound)
            for at in these:
                answers[at], holds[at] = _first_no(places[at], plan, checks)
        kept.stamps = self.stamps.copy()
        kept.until = min(holds, default=math.inf)
        kept.verdicts = [no for no in answers if no is not None]
        kept.at_limit = []

    def bound(self, shape: Shape, names: Sequence[str]) -> Bound:
        """The filters that are not static, made ready for a shape."""
        out: Bound = {}
        for name in names:
            one = filters.BUILT_IN[name]
            if one.bind is not None:
                out[name] = one.bind(shape, self.view)
            elif not one.static:
                out[name] = partial(_ask, one.check, shape, self.view)
        return out

    def ranked(self, shape: Shape, policy: Policy, candidates: list[int]) -> list[int]:
        """The candidates, best first. Equal scores keep the order of the view: a pass is the same every time."""
        if len(candidates) < 2 or not policy.scorers:
            return candidates
        keys = {at: self.score(shape, policy, at) for at in candidates}
        return sorted(candidates, key=keys.__getitem__, reverse=True)

    def home(self, shape: Shape, policy: Policy, answers: Sequence[Verdict | None]) -> list[int]:
        """Those that are free of the places that are best for a shape, be they full or not."""
        scores = {
            at: self.score(shape, policy, at) for at, no in enumerate(answers) if no is None or no.filter == "room"
        }
        best = max(scores.values(), default=0.0)
        return [at for at, score in scores.items() if score == best and answers[at] is None]

    def score(self, shape: Shape, policy: Policy, at: int) -> float:
        """How good a place is for a shape."""
        known = self.scores[at].get(shape.policy)
        if known is not None:
            return known
        entry = self.scorers.get(shape.policy)
        if entry is None:
            found = scorers.at_level(policy.scorers, NODE)
            entry = self.scorers[shape.policy] = (found, all(scorer.place_only for scorer, _ in found))
        score = scorers.score_of(entry[0], shape, self.view.places[at], self.view)
        if entry[1]:
            self.scores[at][shape.policy] = score
        return score


def _with_limits(name: str, answer: Verdict | None, full: No | None, names: tuple[str, ...]) -> Verdict | None:
    """A place's answer, or the limits' no if that comes first."""
    if full is None or (answer is not None and names.index(answer.filter) < names.index("limits")):
        return answer
    return Verdict(name, "limits", full.code, full.detail, full.lasting, full.wake_on)


def _ask(check: Check, shape: Shape, view: View, candidate: Place) -> Answer:
    return check(shape, candidate, view)


def _plan(shape: Shape, candidate: Place, view: View, names: Sequence[str]) -> Plan:
    """Ask the static filters about a class of places."""
    plan = Plan([])
    for name in names:
        one = filters.BUILT_IN[name]
        if not one.static:
            plan.ask.append(name)
            continue
        no = one.check(shape, candidate, view)
        if isinstance(no, No):
            plan.end, plan.no = name, no
            break
    return plan


def _checks(plan: Plan, bound: Bound) -> Checks:
    return [(name, check) for name in plan.ask if (check := bound[name]) is not None]


def _first_no(candidate: Place, plan: Plan, checks: Checks) -> tuple[Verdict | None, float]:
    """(the first no of these checks, until when the answer stands)."""
    stands = _FOR_GOOD
    for name, check in checks:
        answer = check(candidate)
        if answer is None:
            continue
        if answer.__class__ is float:
            if answer < stands:
                stands = answer
            continue
        assert answer.__class__ is No
        no = Verdict(candidate.location.id, name, answer.code, answer.detail, answer.lasting, answer.wake_on)
        return no, stands if stands < answer.stands else answer.stands
    end = plan.no
    if end is None:
        return None, stands
    return Verdict(candidate.location.id, plan.end, end.code, end.detail, end.lasting, end.wake_on), stands


def width(shape: Shape, candidate: Place, view: View) -> int:
    """Millicores of one slot: as many of a range as are free now, in whole cores."""
    needs, ledger = shape.needs, view.ledger
    if needs.cores_most <= needs.cores:
        return needs.cores
    free = ledger.free_cores(candidate.location.id, needs.cores_most)
    return max(needs.cores, min(needs.cores_most, free // 1000 * 1000))


def room_for(shape: Shape, candidate: Place, view: View, left: int, cores: int) -> int:
    """How many slots may be reserved now. A range of cores, and gpus, are given out one by one:
    each gets what is left.
    """
    count = min(left, view.ledger.room(candidate.location.id, shape.needs.amounts(cores)))
    if shape.limits:
        count = limits.fits(shape, view.limits, count)
    needs = shape.needs
    return min(count, 1) if needs.cores_most > needs.cores or needs.gpus or needs.gpu_share else count

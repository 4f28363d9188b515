"""The queue level of the scheduling loop: for what found no node, which queue of which site is asked for allocations.

Order → filter → score → pick, over queues instead of nodes, and as incremental: static answers are kept per class of
queues; a shape is looked at again only when what is left over of it, an allocation that it counts on, or a fact that a
filter has looked up changes, or a site that it waits for has room. So thousands of shapes may wait for a queue.
"""

import heapq
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from rota.schedule import filters, orders, picks, scorers
from rota.schedule.broker.sites import allowance, fare_of, may_wait, stats_of
from rota.schedule.demand import ANY, Asked, allocation_time, asked_amounts
from rota.schedule.facts import Key, Watched
from rota.schedule.filters import Answer, No
from rota.schedule.picks import Pick
from rota.schedule.policy import DEFAULT, Policy
from rota.schedule.queue_memo import Looked, Plan, QueueMemo
from rota.schedule.queues import COUNTED, Claim, Sites, candidates, claim_of, own_queue
from rota.schedule.servers import most_servers, servers_within, use_of
from rota.schedule.view import QUEUE, Place, View, Want

__all__ = ["QueuePass"]

PLANS_MOST = 20_000
"""Shapes of which it is remembered what classes of queues say."""
RANKED_S = 5.0
"""How long places stay ranked as they are, whatever is learned of them."""


class QueuePass:
    """One pass at the queue level. The caller applies what is asked for; `view.rooms` is counted down here."""

    def __init__(
        self,
        memo: QueueMemo,
        view: View,
        sites: Sites,
        coming: Mapping[str, Mapping[tuple[str, int], int]],
        policies: Mapping[str, Policy],
        draw: Callable[[], float],
    ) -> None:
        self.memo = memo
        self.view = view
        self.sites = sites
        self.coming = coming
        self.rooms = dict(view.rooms)
        self.budgets = {site: list(left) for site, left in view.budgets.items()}
        self.policies = policies
        self.draw = draw
        self.todo: dict[int, set[str] | None] = {}
        """Shape → the places to look at; None: all."""
        self.walk: set[str] = set()
        """Sites where something is on its way that nobody counts on any more: who waits there is looked at once."""
        self._watched = Watched(view.facts)
        self._watching = replace(view, facts=self._watched)
        """The view for filters that read facts."""
        self.none_left = False
        """Whether a shape was found that no queue takes with all filters, and that may be relaxed."""
        self._stands = math.inf
        """How long the present shape's first no stands."""
        self._scores: dict[str, dict[str, float]] = {}

        for site in [*sites, *(site for site in memo.sites if site not in sites)]:
            if memo.sites.get(site) is not sites.get(site):
                self._told(site)

    # -- what changed

    def update(self, wants: Iterable[Want], gone: Iterable[int]) -> None:
        """Take what is left over now of shapes that changed; `gone`: nothing is left over of these."""
        shapes = self.memo.shapes
        for number in gone:
            if (looked := shapes.pop(number, None)) is not None:
                self._leave(number, looked)
        for want in wants:
            looked = shapes.get(want.shape_id)
            if looked is not None and _same(looked.want, want):
                continue
            key = self._key(want)
            if looked is None:
                shapes[want.shape_id] = Looked(want, key)
                self.todo[want.shape_id] = None
                continue
            same = looked.want.shape is want.shape
            if key != looked.key:
                self.memo.unwait(want.shape_id, looked)
                looked.key, same = key, False
            unmet, looked.want = looked.jobs < looked.want.ready, want
            if same and unmet and looked.jobs < want.ready:
                continue  # it wanted more than it got, and does so still
            self.todo[want.shape_id] = None

    def update_all(self, wants: Sequence[Want]) -> None:
        """Take what is left over of all shapes; only those that changed are looked at."""
        shapes = self.memo.shapes
        news = []
        for want in wants:
            looked = shapes.get(want.shape_id)
            if looked is None or not _same(looked.want, want):
                news.append(want)
        gone: Iterable[int] = ()
        if len(shapes) + len(news) > len(wants):
            left = {want.shape_id for want in wants}
            gone = [number for number in shapes if number not in left]
        self.update(news, gone)

    def wake(self, moved: Iterable[Claim], changed: Iterable[Key]) -> None:
        """Wake what depends on allocations that came or went, on facts, on the clock, and on what sites offer."""
        memo = self.memo
        if memo.wall == -math.inf:  # nothing is remembered
            moved = [(site, *key) for site, counts in self.coming.items() for key in counts]
        if self.view.wall < memo.wall:
            self.todo.update(dict.fromkeys(memo.shapes))
        memo.wall = self.view.wall
        for claim in moved:
            self._recount(claim)
        for key in changed:
            read = memo.readers.pop(key, None)
            if read is None:
                continue
            for number in read[0]:
                if (looked := memo.shapes.get(number)) is not None and looked.jobs < looked.want.ready:
                    self._wake(number, None if looked.relaxed else read[1])
        facts = {name for name, _ in changed}
        if facts:
            self._reorder(facts)
        while memo.times and memo.times[0][0] <= self.view.wall:
            number = heapq.heappop(memo.times)[1]
            if number in memo.shapes:
                self._wake(number, None)

    def _reorder(self, facts: set[str]) -> None:
        """Put shapes into order again whose order looks at facts that changed."""
        if not any(facts.intersection(orders.BUILT_IN[policy.order].reads) for policy in self.policies.values()):
            return
        for number, looked in self.memo.shapes.items():
            if (key := self._key(looked.want)) != looked.key:
                sites = list(looked.sites)
                self.memo.unwait(number, looked)
                looked.key = key
                for site in sites:
                    self.memo.wait(number, looked, site)

    def _wake(self, number: int, places: set[str] | None) -> None:
        have = self.todo.get(number, set())
        self.todo[number] = None if places is None or have is None else have | places

    def _told(self, site: str) -> None:
        """A site offers something else than when it was last looked at: every shape is looked at."""
        memo = self.memo
        memo.sites, memo.index = dict(self.sites), {}
        memo.ranked.clear()
        for name, places in self.sites.items():
            for place in places:
                queue = place.queue
                memo.index[name, "" if queue is None else queue.name] = place
            if (own := own_queue(places)) is not None:
                memo.index[name, ""] = own
        for number, looked in memo.shapes.items():
            if looked.want.shape.needs.site in (None, site):
                self.todo[number] = None

    def _recount(self, claim: Claim) -> None:
        """Bring claims into line with what is on its way; whoever counts on too many is looked at."""
        memo, (site, queue, key) = self.memo, claim
        have = self.coming.get(site, {}).get((queue, key), 0)
        shapes = memo.claimed.get(claim, {})
        over = sum(shapes.values()) - have
        for number in reversed(list(shapes)):
            if over <= 0:
                break
            less = min(over, shapes[number])
            self.memo.give_up(number, claim, less)
            self._wake(number, None)
            over -= less
        before = memo.spare.get(key, {}).get(claim, 0)
        if before < -over and memo.waiting.get(site):
            self.walk.add(site)
        self.memo.set_spare(claim, max(0, -over))

    def _leave(self, number: int, looked: Looked) -> None:
        """Nothing is left over of a shape: it waits for nothing, and counts on nothing."""
        self.memo.unwait(number, looked)
        self.todo.pop(number, None)
        for claim in list(looked.claims):
            shapes = self.memo.claimed[claim]
            del shapes[number]
            if not shapes:
                del self.memo.claimed[claim]
            self._recount(claim)

    # -- what to ask for

    def run(self) -> Iterator[Asked]:
        """Ask for allocations, in order: for what was woken, and for what waits where there is room.

        What that leaves over for others is shared out in another round.
        """
        memo = self.memo
        while True:
            todo, walk = self.todo, self.walk
            self.todo, self.walk = {}, set()
            work = [(memo.shapes[number].key, number) for number in todo if number in memo.shapes]
            for site in walk:
                work += memo.waiting.get(site, ())
            heapq.heapify(work)
            done: set[int] = set()
            for site in memo.waiting:
                self._next(site, work, done)
            while work:
                _, number = heapq.heappop(work)
                if number not in done:
                    done.add(number)
                    looked = memo.shapes[number]
                    waited = list(looked.sites)
                    yield from self._ask(number, looked, todo.get(number, set(waited)))
                    for site in waited:
                        self._next(site, work, done)
            if not self.todo and not self.walk:
                return

    def _next(self, site: str, work: list[tuple[tuple[Any, ...], int]], done: set[int]) -> None:
        """Put the first shape that waits for a site, and was not looked at, to the work, if there is room for it."""
        if self.rooms.get(site, 0) > 0:
            row = next((row for row in self.memo.waiting[site] if row[1] not in done), None)
            if row is not None:
                heapq.heappush(work, row)

    def _ask(self, number: int, looked: Looked, only: set[str] | None) -> Iterator[Asked]:
        """Look at one shape: count on what is on its way, then ask for more. `only`: of these sites or places."""
        memo, want = self.memo, looked.want
        if only is None:
            self._recheck(number, looked)
        over = looked.jobs - want.ready
        for claim in reversed(list(looked.claims)):
            less = min(looked.claims[claim], over // self.memo.jobs_in(want, claim)) if over > 0 else 0
            if less:
                self.memo.give_up(number, claim, less)
                over = looked.jobs - want.ready
                self._recount(claim)
        for claim, spare in list(memo.spare.get(number, {}).items()):  # what nobody else can use
            if looked.jobs < want.ready and self._place(want, claim) is not None:
                self.memo.count_on_spare(number, looked, claim, spare)
        if looked.jobs >= want.ready:
            self.memo.unwait(number, looked)
            return
        policy = self._policy(want)
        self.view.number = self._watching.number = number
        self.view.batch = self._watching.batch = want.first
        self._stands = math.inf
        names = self._names(want)
        self.memo.unwait(number, looked, only)
        if only is None:
            looked.relaxed, looked.could = 0, False
        while True:
            dropped = set(policy.relax[: looked.relaxed])
            asked = tuple([name for name in names if name not in dropped]) if dropped else names
            found = yield from self._give(number, looked, asked, policy, only)
            looked.could = looked.could or found
            if found or only is not None or looked.relaxed >= len(policy.relax):
                break
            looked.relaxed += 1
            self.none_left = True
        if self._stands < math.inf:
            heapq.heappush(memo.times, (self._stands, number))

    def _recheck(self, number: int, looked: Looked) -> None:
        """Give up what is counted on where the shape may not go any more, or not in that way."""
        for claim in list(looked.claims):
            if self._place(looked.want, claim) is None:
                self.memo.give_up(number, claim, looked.claims[claim])
                self._recount(claim)

    def _give(
        self, number: int, looked: Looked, names: tuple[str, ...], policy: Policy, only: set[str] | None
    ) -> Generator[Asked, None, bool]:
        """Count on spare allocations, then ask at the best of the places; returns whether there was any place.

        Places are worked out one by one, and no more of a site once it has no room and nothing to spare.
        """
        spare = self.memo.spare.get(ANY, {}).copy()
        at_once = not _pick(looked.want, policy).singly and not spare
        full: set[str] = set()
        places: list[Place] = []
        for place in self._able(looked.want, names, policy, only, full):
            site, claim = place.location.site, claim_of(looked.want, place)
            places.append(place)
            if claim in spare:
                self.memo.count_on_spare(number, looked, claim, spare[claim])
            elif at_once and self._room(place, looked.want) > 0:
                yield from self._ask_at(number, looked, place, looked.want.ready)
            if looked.jobs >= looked.want.ready:
                self.memo.unwait(number, looked)
                return True
            if self.rooms.get(site, 0) <= 0 and not spare:
                full.add(site)
        yield from self._choose(number, looked, places, policy)
        if self.memo.claimed and looked.jobs < looked.want.ready:
            for claim in [claim_of(looked.want, place) for place in places]:
                self._take_over(number, looked, claim)
        if looked.jobs < looked.want.ready:
            for place in places:
                self.memo.wait(number, looked, place.location.site)
        else:
            self.memo.unwait(number, looked)
        return bool(places)

    def _take_over(self, number: int, looked: Looked, claim: Claim) -> None:
        """Count on what shapes later in the order counted on, and look at these again."""
        memo = self.memo
        later = [other for other in memo.claimed.get(claim, ()) if memo.shapes[other].key > looked.key]
        for other in sorted(later, key=lambda other: memo.shapes[other].key, reverse=True):
            missing = -(-(looked.want.ready - looked.jobs) // memo.jobs_in(looked.want, claim))
            if missing <= 0:
                return
            count = min(missing, memo.claimed[claim][other])
            memo.give_up(other, claim, count)
            memo.count_on(number, looked, claim, count)
            self._wake(other, None)

    def _choose(self, number: int, looked: Looked, places: list[Place], policy: Policy) -> Iterator[Asked]:
        """Ask at these places, one by one or the best first, as the policy picks."""
        pick = _pick(looked.want, policy)
        if pick.waiting:
            yield from self._split(number, looked, places, policy)
            return
        given: dict[str, int] = {}
        while looked.jobs < looked.want.ready:
            places = [place for place in places if self._room(place, looked.want) > 0]
            if not places:
                return
            counts = [given.get(place.location.id, 0) for place in places]
            at = pick.choose([self._score(looked.want, place, policy) for place in places], counts, self.draw)
            place = places[at]
            jobs = self.memo.jobs_in(looked.want, claim_of(looked.want, place))
            given[place.location.id] = counts[at] + 1
            most = looked.jobs + jobs if pick.singly else looked.want.ready
            yield from self._ask_at(number, looked, place, min(most, looked.want.ready))

    def _split(self, number: int, looked: Looked, places: list[Place], policy: Policy) -> Iterator[Asked]:
        """Divide what is left over in proportion to the scores, then ask at each place for all of its part at once.

        As the pick `split` would choose one after the other, which takes long for many places.
        """
        want, rooms = looked.want, dict(self.rooms)
        stats = [stats_of(place, self.view) for place in places]
        counts = [0 if each is None else each.waiting for each in stats]
        left = [may_wait(each) if "flood" in policy.filters else rooms.get(place.location.site, 0)
                for each, place in zip(stats, places, strict=True)]  # fmt: skip
        if "probe" in policy.filters:
            left = [1 if fare_of(place, self.view).bad else more for place, more in zip(places, left, strict=True)]
        scores = [self._score(want, place, policy) for place in places]
        per = [self.memo.jobs_in(want, claim_of(want, place)) for place in places]
        part, missing = [0] * len(places), want.ready - looked.jobs
        if "throttle" in policy.filters and (more := allowance(want.shape, self.view)) is not None:
            missing = min(missing, more)
        line = [(-scores[at] / (counts[at] + 1), at) for at in range(len(places)) if left[at] > 0]
        heapq.heapify(line)
        while missing > 0 and line:
            at = line[0][1]
            site = places[at].location.site
            if left[at] <= 0 or rooms.get(site, 0) <= 0:
                heapq.heappop(line)
                continue
            part[at] += 1
            left[at] -= 1
            rooms[site] -= 1
            missing -= per[at]
            heapq.heapreplace(line, (-scores[at] / (counts[at] + part[at] + 1), at))
        for at, count in enumerate(part):
            if count:
                jobs = min(looked.jobs + count * per[at], looked.want.ready)
                yield from self._ask_at(number, looked, places[at], jobs)

    def _ask_at(self, number: int, looked: Looked, place: Place, jobs: int) -> Iterator[Asked]:
        """Ask for allocations at a place, up to so many jobs and to the room that its site has."""
        want, site = looked.want, place.location.site
        facts, needs, claim = place.site, want.shape.needs, claim_of(want, place)
        assert facts is not None
        per = self.memo.jobs_in(want, claim)
        time_s = _time(want, place)
        count = min(-(-(jobs - looked.jobs) // per), self._room(place, want))
        if count <= 0:
            return
        self.rooms[site] -= count
        if facts.cloud and place.queue is not None and site in self.budgets:
            left = self.budgets[site]
            for at, use in enumerate(use_of(facts, place.queue, time_s)):
                left[at] -= count * use
            if most_servers(facts, left) <= 0:
                self.rooms[site] = 0
        if place.location.id != site and place.location.id in self.rooms:
            self.rooms[place.location.id] -= count
        direct = facts.mode == "direct"
        if direct:  # the jobs are leased at once
            looked.want = replace(want, ready=want.ready - count)
        else:
            self.memo.count_on(number, looked, claim, count)
        yield Asked(
            site,
            claim[1] or None,
            claim[2] if not direct else want.shape_id,
            count,
            asked_amounts(needs, place),
            time_s,
            1 if direct else len(facts.given) or needs.nodes,
        )

    def _room(self, place: Place, want: Want) -> int:
        """How many more allocations a place may be asked for, for these jobs."""
        left = self.rooms.get(place.location.site, 0)
        budget = self.budgets.get(place.location.site)
        if budget is not None and place.site is not None and place.queue is not None:
            left = min(left, servers_within(place.site, place.queue, budget, _time(want, place)))
        return min(left, self.rooms.get(place.location.id, left))

    # -- which places may be asked, best first

    def _able(
        self, want: Want, names: tuple[str, ...], policy: Policy, only: set[str] | None, full: set[str]
    ) -> Iterator[Place]:
        """The places where no filter says no, best first, but for sites that are full: as far as somebody asks."""
        plans = self._plans(want, names)
        places = self._ranking(want, policy)
        if only is not None:
            places = [place for place in places if place.location.id in only or place.location.site in only]
        refused: dict[str, bool] = {}
        for place in places:
            plan = plans.get(place.class_number)
            if plan is None:
                plan = plans[place.class_number] = self._plan(want, place, names)
            site = place.location.site
            if plan.no or site in full:
                continue
            if plan.refused:  # the same for all queues of a site
                if site not in refused:
                    refused[site] = isinstance(self._answer(want, "refused", place), No)
                if refused[site]:
                    continue
            if not any(isinstance(self._answer(want, one, place), No) for one in plan.ask):
                yield place

    def _plans(self, want: Want, names: tuple[str, ...]) -> dict[int, Plan]:
        """What is known of classes of queues for a shape. One that names a queue goes by names, not by classes."""
        if want.shape.needs.queue is not None:
            return {}
        plans = self.memo.plans
        if len(plans) > PLANS_MOST:
            plans.clear()
        return plans.setdefault((want.shape, names), {})

    def _plan(self, want: Want, place: Place, names: tuple[str, ...]) -> Plan:
        """Ask the static filters about a class of queues; those that read facts are asked each time."""
        known = self.memo.steps.get(names)
        if known is None:
            known = self.memo.steps[names] = _steps(names)
        once, yes = known
        for name in once:
            answer = filters.BUILT_IN[name].check(want.shape, place, self.view)
            if isinstance(answer, No):
                self._stands = min(self._stands, answer.stands)
                return Plan(no=True)
        return yes

    def _answer(self, want: Want, name: str, place: Place) -> Answer:
        """A filter's answer; what it looked up, and how long it stands, is remembered if it is no."""
        one = filters.BUILT_IN[name]
        if not one.reads:
            answer = one.check(want.shape, place, self.view)
        else:
            seen = self._watched.seen
            seen.clear()
            answer = one.check(want.shape, place, self._watching)
            if answer.__class__ is No:
                for key in seen:
                    read = self.memo.readers.get(key)
                    if read is None:
                        read = self.memo.readers[key] = (set(), set())
                    read[0].add(want.shape_id)
                    read[1].add(place.location.site if name == "refused" else place.location.id)
        if isinstance(answer, No) and answer.stands < self._stands:
            self._stands = answer.stands
        return answer

    def _ranking(self, want: Want, policy: Policy) -> Sequence[Place]:
        """The places that come into question for a want, best first; of equal ones the first of the configuration."""
        needs, wall = want.shape.needs, self.view.wall
        common = needs.site is None and needs.queue is None
        common = common and all(scorers.BUILT_IN[name].place_only for name in policy.scorers)
        if common:
            known = self.memo.ranked.get(want.shape.policy)
            if known is not None and 0 <= wall - known[0] < RANKED_S:
                return known[1]
        found = [
            place
            for site, places in self.sites.items()
            if needs.site in (None, site)
            for place in candidates(needs, places)
        ]
        if len(found) > 1:
            found.sort(key=lambda place: self._score(want, place, policy), reverse=True)
        if common:
            self.memo.ranked[want.shape.policy] = (wall, found)
        return found

    def _score(self, want: Want, place: Place, policy: Policy) -> float:
        known = self._scores.setdefault(want.shape.policy, {})
        score = known.get(place.location.id)
        if score is not None:
            return score
        weighed = scorers.at_level(policy.scorers, QUEUE)
        score = scorers.score_of(weighed, want.shape, place, self.view)
        if all(scorer.place_only for scorer, _ in weighed):
            known[place.location.id] = score
        return score

    def _place(self, want: Want, claim: Claim) -> Place | None:
        """The place that a claim is of, if the shape may still go there and is counted there in that way."""
        place = self.memo.at(claim)
        if place is None or claim_of(want, place) != claim or want.shape.needs.site not in (None, claim[0]):
            return None
        return None if self._plan(want, place, self._names(want)).no else place

    def _names(self, want: Want) -> tuple[str, ...]:
        """The filters of a want's policy that are asked about queues."""
        names = self.memo.names.get(want.shape.policy)
        if names is None:
            asked = [name for name in self._policy(want).filters if QUEUE in filters.BUILT_IN[name].levels]
            names = self.memo.names[want.shape.policy] = tuple(asked)
        return names

    def _policy(self, want: Want) -> Policy:
        return self.policies.get(want.shape.policy, DEFAULT)

    def _key(self, want: Want) -> tuple[Any, ...]:
        return orders.BUILT_IN[self._policy(want).order].key(want, self.view)


def _pick(want: Want, policy: Policy) -> Pick:
    """How a want's places are chosen: who names a site has it, however many wait there, and nothing is divided."""
    divided = policy.split and want.shape.needs.site is None
    return picks.BUILT_IN[policy.split if divided else policy.pick]


def _time(want: Want, place: Place) -> int | None:
    """Seconds that an allocation at a place is asked for."""
    assert place.site is not None
    needs, usual = want.shape.needs, place.queue.time_usual_s if place.queue is not None else None
    return allocation_time(needs, place.site, filters.longest_s(needs, place), usual)


def _steps(names: tuple[str, ...]) -> tuple[tuple[str, ...], Plan]:
    """(the filters that are asked once for a class of queues, the plan of what is left to ask if none says no)."""
    asked = [name for name in names if name not in COUNTED and name != "refused"]
    one = filters.BUILT_IN
    once = tuple([name for name in asked if not one[name].reads and (one[name].static or name == "status")])
    return once, Plan(tuple([name for name in asked if name not in once]), "refused" in names)


def _same(one: Want, other: Want) -> bool:
    """Whether two wants are alike in what the queue level looks at."""
    return (
        one.ready == other.ready
        and one.shape is other.shape
        and one.priority == other.priority
        and one.first == other.first
        and one.by == other.by
    )

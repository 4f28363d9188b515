"""The flow `sites`: which of a few clusters gets the jobs of ordinary users, how many each, and when they go elsewhere.

A queue is judged by how long it let allocations of that size and time wait, by the bytes that it lacks, by what a
core costs there, and by how jobs of the same batch fared. A batch is split in proportion; what waits there already
counts. Nobody is flooded: as many wait as `FLOOD_LEAST`, or twice as many as run. A site where most jobs of a batch
fail gets one at a time, and one that gave jobs back is not asked for these at once again.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from rota.model.amounts import format_duration
from rota.model.shape import Shape
from rota.model.verdict import Wake
from rota.schedule import filters, picks, scorers
from rota.schedule.broker.shares import Generation, may_generate
from rota.schedule.data import transfer_s
from rota.schedule.facts import Stats
from rota.schedule.filters import Answer, Filter, No
from rota.schedule.picks import Pick
from rota.schedule.scorers import Scorer
from rota.schedule.view import QUEUE, Place, View

__all__ = [
    "BROKERED_AGAIN", "FILTERS", "FLOOD_LEAST", "FORGET_S", "RETURNED_S", "SCORERS", "Fare", "Move", "Share", "Waited",
    "allowance", "expected_wait_s", "fare_of", "is_bad", "may_wait", "moves", "size_of", "span_of", "split_of",
    "stats_of", "told",
]  # fmt: skip

FLOOD_LEAST = 20
"""So many allocations may wait at a queue however few run."""
FLOOD_FACTOR = 2
"""… else so many times as many as run."""
BAD_LEAST = 5
"""A site is bad for a batch once more jobs of it came to nothing there than this, and than twice as many went well."""
BAD_FACTOR = 2
FORGET_S = 6 * 3600
"""What happened longer ago does not count."""
RETURNED_S = 3600
"""So long at the most a site that gave jobs of a batch back gets none of it."""
WAIT_S = 600.0
"""A queue that keeps one waiting so much longer is half as good."""
NEUTRAL_S = 60.0
WAIT_WEIGHT = 0.2
"""How much the newest wait counts in a mean."""
MOST = 1e12
"""No wait and no cost makes a place worth nothing: however bad, some place must be the best."""
MOVE_FACTOR = 2.0
"""Jobs move if they have waited so many times as long as they are expected to elsewhere."""
BROKERED_AGAIN = "brokered again"
"""How the reason begins for which an allocation that had not started is given up for another site."""


# ---- how long queues let one wait -----------------------------------------------------------------------------------


def size_of(cores: int, nodes: int = 1) -> int:
    """The class of a size, by doubling, of millicores and nodes."""
    return max(0, (max(1, -(-cores // 1000)) * max(1, nodes)).bit_length() - 1)


def span_of(time_s: int | None) -> int:
    """The class of a time that is asked for, by doubling, from a quarter of an hour; -1: none is."""
    return -1 if time_s is None else (max(0, time_s - 1) // 900).bit_length()


class Waited(Struct, frozen=True):
    """How long allocations waited at a queue, the last ones counting most."""

    mean_s: float | None = None
    kinds: tuple[tuple[int, int, float], ...] = ()
    """(class of sizes, class of times, mean of such), ascending."""
    last_start: float | None = None
    """Wall-clock time at which one last started."""

    def plus(self, kind: tuple[int, int], waited_s: float, wall: float) -> "Waited":
        """With one more that has started."""
        mean = waited_s if self.mean_s is None else self.mean_s + WAIT_WEIGHT * (waited_s - self.mean_s)
        kinds = {(size, span): known for size, span, known in self.kinds}
        before = kinds.get(kind, waited_s)
        kinds[kind] = before + WAIT_WEIGHT * (waited_s - before)
        return Waited(mean, tuple([(*one, known) for one, known in sorted(kinds.items())]), wall)


def expected_wait_s(stats: Stats | None, size: int, span: int, wall: float) -> float | None:
    """Seconds that an allocation of this size and time is expected to wait at a queue; None: nothing is known.

    What others of its kind waited, or else those nearest to it; and at least as long as the oldest has waited by now.
    """
    if stats is None:
        return None
    oldest = max(0.0, wall - stats.oldest) if stats.waiting else None
    learned = stats.wait_s
    near = math.inf
    for other_size, other_span, wait_s in stats.kinds:
        distance = abs(other_size - size) + abs(other_span - span)
        if distance < near:
            near, learned = distance, wait_s
    known = [seconds for seconds in (learned, oldest) if seconds is not None]
    return max(known) if known else None


def _wait(shape: Shape, place: Place, view: View) -> float | None:
    needs = shape.needs
    return expected_wait_s(stats_of(place, view), size_of(needs.cores, needs.nodes), span_of(needs.time_s), view.wall)


def stats_of(place: Place, view: View) -> Stats | None:
    """How allocations fare at a queue, if that is known."""
    own = place.queue is None or place.queue.default
    found = view.facts["stats"].get((place.location.site, "" if own else place.location.queue))
    return found if isinstance(found, Stats) else None


# ---- how jobs of a batch fared at a site ----------------------------------------------------------------------------


class Fare(Struct, frozen=True):
    """How jobs of a batch fared at a site: the fact `fares`, by (batch, site)."""

    finished: int = 0
    failed: int = 0
    returned: int = 0
    """Those that it gave back before they started."""
    since: float = 0.0
    """Wall-clock time since when that is counted."""
    until: float = 0.0
    """Wall-clock time before which it gets none of the batch, because it gave some back."""
    pause_s: float = 0.0
    """How long that was."""

    def plus(self, finished: int, failed: int, returned: int, wall: float) -> "Fare":
        """With what has happened since; what was long ago is forgotten."""
        old = Fare(since=wall) if not self.since or wall - self.since > FORGET_S else self
        counts = old.finished + finished, old.failed + failed, old.returned + returned
        return Fare(*counts, old.since, self.until, old.pause_s)

    def back(self, waited_s: float, wall: float) -> "Fare":
        """With one that it gave back after so long: as long it gets none, and twice as long each time that it did so.

        Those that it gives back meanwhile were asked of it before, and count as the same time.
        """
        new = self.plus(0, 0, 1, wall)
        longer = max(waited_s, new.pause_s if wall < self.until else 2 * new.pause_s)
        pause = min(RETURNED_S, longer)
        return replace(new, until=max(self.until, wall + pause), pause_s=pause)


class Share(Struct, frozen=True):
    """A fare as policies see it, in coarse steps: it changes seldom."""

    good: float = 1.0
    """The part that went well, in eighths, and some more than that."""
    bad: bool = False
    words: str = ""
    until: float = 0.0


def is_bad(fare: Fare) -> bool:
    """Whether a site gets probes only, of a batch that fared so."""
    return fare.failed + fare.returned > max(BAD_FACTOR * fare.finished, BAD_LEAST)


def told(fare: Fare) -> Share:
    """A fare as policies see it."""
    all_of_them = fare.finished + fare.failed + fare.returned
    good = math.ceil(8 * (fare.finished + 1) / (all_of_them + 1)) / 8
    bad = is_bad(fare)
    words = f"{fare.failed} failed and {fare.returned} came back of {all_of_them} jobs of this batch" if bad else ""
    return Share(good, bad, words, fare.until)


def fare_of(place: Place, view: View) -> Share:
    """How jobs of the batch that is asked about fared at a site."""
    found = view.facts["fares"].get((view.batch, place.location.site))
    return found if isinstance(found, Share) else _FAIR


_FAIR = Share()


# ---- no -------------------------------------------------------------------------------------------------------------


def may_wait(stats: Stats | None) -> int:
    """How many more allocations may wait at a queue."""
    if stats is None:
        return FLOOD_LEAST
    return max(FLOOD_LEAST, FLOOD_FACTOR * stats.running) - stats.waiting


def flood(shape: Shape, place: Place, view: View) -> Answer:
    """No queue has many more waiting than run there."""
    stats = stats_of(place, view)
    if stats is None or shape.needs.site is not None or may_wait(stats) > 0:
        return None
    most = max(FLOOD_LEAST, FLOOD_FACTOR * stats.running)
    words = f"{stats.waiting} allocations wait there and {stats.running} run; {most} may wait at once"
    return No("flooded", words, False, (Wake.CAPACITY,))


def probe(shape: Shape, place: Place, view: View) -> Answer:
    """A site where most jobs of a batch came to nothing gets one of them at a time."""
    fare = fare_of(place, view)
    if not fare.bad or shape.needs.site is not None:
        return None
    stats = stats_of(place, view)
    if stats is None or not stats.waiting + stats.running:
        return None
    return No("failing", f"{fare.words}: it gets one at a time, until more go well there", False, (Wake.CAPACITY,))


def returned(shape: Shape, place: Place, view: View) -> Answer:
    """A site that gave jobs of a batch back, because it did not start them, gets none of it for a while."""
    everybody = view.facts["fares"].get((-1, place.location.site), _FAIR)
    until = max(fare_of(place, view).until, everybody.until)
    if until <= view.wall or shape.needs.site is not None:
        return None
    left = format_duration(max(1, int(until - view.wall)))
    return No("gave-back", f"did not start jobs of this batch for long; next try in {left}", False, (Wake.TIME,), until)


def allowance(shape: Shape, view: View) -> int | None:
    """How many more allocations may be asked for jobs of a share; None: nobody has set bounds for it."""
    thresholds, share = view.facts["broker"].get("thresholds"), shape.share
    if not share or thresholds is None:
        return None
    now = view.facts["made"].get(share, _NONE_YET)
    queued, running = thresholds.get(f"NQUEUECAP_{share}"), thresholds.get(f"NRUNNINGCAP_{share}")
    left = [] if queued is None else [queued - now.queued]
    left += [] if running is None else [running - now.running - now.queued]
    if thresholds.get(f"NQUEUELIMIT_{share}") is not None and may_generate(now, thresholds, share).stop:
        left.append(0)
    return int(min(left)) if left else None


_NONE_YET = Generation()


def throttle(shape: Shape, place: Place, view: View) -> Answer:
    """No more is asked for a share of which enough waits, or runs, by the bounds that are set for it."""
    more = allowance(shape, view)
    if more is None or more > 0:
        return None
    now = view.facts["made"].get(shape.share, _NONE_YET)
    told = may_generate(now, view.facts["broker"]["thresholds"], shape.share)
    words = told.why or f"{now.queued} wait and {now.running} run, which is as many as may"
    return No("throttled", f"of the share {shape.share} {words}", False, (Wake.CAPACITY,))


# ---- how good -------------------------------------------------------------------------------------------------------


def wait(shape: Shape, place: Place, view: View) -> float:
    """Queues where what is of this size and time starts soon; what is not known yet is neutral, and so is a minute."""
    expected = _wait(shape, place, view)
    return 1.0 if expected is None else 1.0 / (1.0 + min(MOST, max(0.0, expected - NEUTRAL_S) / WAIT_S))


def cost(shape: Shape, place: Place, view: View) -> float:
    """Sites where a core costs little: one that costs 1 more per hour is half as good."""
    price = 0.0 if place.site is None else place.site.cost
    return 1.0 / (1.0 + min(MOST, price))


def fared(shape: Shape, place: Place, view: View) -> float:
    """Sites where jobs of the same batch went well."""
    return fare_of(place, view).good


def missing(shape: Shape, place: Place, view: View) -> float:
    """Sites that have the files of a job, or get them fast: ten minutes of bringing them are half as good."""
    return 1.0 / (1.0 + min(MOST, transfer_s(shape, place, view) / WAIT_S)) if shape.inputs else 1.0


# ---- splitting ------------------------------------------------------------------------------------------------------


def split(scores: Sequence[float], given: Sequence[int], draw: Callable[[], float]) -> int:
    """In proportion to the scores: the place that is furthest behind what it should have; of equal ones the first."""
    return max(range(len(scores)), key=lambda at: (scores[at] / (given[at] + 1), -at))


def split_of(count: int, scores: Sequence[float], waiting: Sequence[int]) -> list[int]:
    """How many of so many go to each of these places, where so many wait already."""
    given = list(waiting)
    for _ in range(count):
        given[split(scores, given, lambda: 0.0)] += 1
    return [after - before for after, before in zip(given, waiting, strict=True)]


# ---- going elsewhere ------------------------------------------------------------------------------------------------


class Move(Struct, frozen=True):
    """What waits at a queue, as far as the question goes whether it should go elsewhere."""

    waited_s: float
    size: int
    span: int


def moves(
    move: Move, others: Mapping[str, tuple[Stats | None, int]], wall: float, least_s: float
) -> tuple[str, float] | None:
    """(the site where it would start much sooner, seconds that it is expected to wait there); None: it stays.

    `others`: site → how its queue fares, and how many more may be asked of it.
    """
    if move.waited_s < least_s:
        return None
    best: tuple[float, str] | None = None
    for site, (stats, room) in others.items():
        if min(room, may_wait(stats)) > 0:
            expected = expected_wait_s(stats, move.size, move.span, wall) or 0.0
            if move.waited_s > MOVE_FACTOR * expected and (best is None or expected < best[0]):
                best = (expected, site)
    return None if best is None else (best[1], best[0])


FILTERS = ("throttle", "returned", "probe", "flood")
"""Asked after those of the default policy, but for `room`."""
SCORERS = {"wait": 1.0, "missing": 1.0, "cost": 1.0, "fared": 1.0}
"""Beside `pack` and `own_queue`."""

filters.BUILT_IN.update({
    "throttle": Filter("throttle", throttle, (QUEUE,), ("made", "broker")),
    "returned": Filter("returned", returned, (QUEUE,), ("fares",)),
    "probe": Filter("probe", probe, (QUEUE,), ("fares", "stats")),
    "flood": Filter("flood", flood, (QUEUE,), ("stats",)),
})  # fmt: skip
scorers.BUILT_IN.update({
    "wait": Scorer(wait, (QUEUE,), ("stats",)),
    "cost": Scorer(cost, (QUEUE,), place_only=True),
    "fared": Scorer(fared, (QUEUE,), ("fares",)),
    "missing": Scorer(missing, (QUEUE,), ("replicas", "bandwidth")),
})  # fmt: skip
picks.BUILT_IN["split"] = Pick(split, waiting=True)

"""Queues as places of the scheduling loop: what a site could give beside the nodes that are there, and why not."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from rota.model.amounts import format_duration
from rota.model.location import Kind, Location
from rota.model.needs import Needs
from rota.model.shape import Shape
from rota.model.site import SiteFacts
from rota.model.verdict import Verdict
from rota.schedule import filters
from rota.schedule.demand import ANY
from rota.schedule.filters import No
from rota.schedule.ledger import Ledger
from rota.schedule.policy import DEFAULT, Policy
from rota.schedule.view import QUEUE, Place, View, Want

__all__ = [
    "COUNTED", "Claim", "Sites", "candidates", "claim_of", "compete", "impossible", "own_queue", "queue_id",
    "queue_places", "verdicts",
]  # fmt: skip

Claim = tuple[str, str, int]
"""(site, queue; "": its own, shape or ANY): allocations that jobs can count on."""
Sites = Mapping[str, Sequence[Place]]
"""Site → itself as a place, then its queues."""

COUNTED = frozenset(("limits", "open", "most"))
"""Filters that are not asked in a pass: what is left over is within the limits, and room at sites is counted."""
NAMED = 4
"""How many reasons are told of what can never run."""


# ---- places ----------------------------------------------------------------------------------------------------------


def queue_id(site: str, queue: str) -> str:
    """Id of the location of a queue; of the site itself if the queue is ""."""
    return f"{site}:{queue}" if queue else site


def queue_places(name: str, facts: SiteFacts, classes: dict[tuple[object, ...], int]) -> tuple[Place, ...]:
    """A site as a place, then its queues. Queues of a class differ in nothing but their names and what they have."""
    bare = replace(facts, queues=(), directory="", bounds=())
    location = Location(name, Kind.SITE, None, None, True, facts.tags, None, name)
    own = (QUEUE, bare, tuple(queue.name for queue in facts.queues))
    status = "PAUSED" if facts.paused else "UP"
    places = [Place(location, "", status, classes.setdefault(own, len(classes)), facts)]
    for queue in facts.queues:
        tags = tuple(dict.fromkeys((*facts.tags, *queue.tags)))
        location = Location(
            queue_id(name, queue.name), Kind.QUEUE, name, None, True, tags, None, name, None, queue.name
        )
        number = classes.setdefault((QUEUE, bare, replace(queue, name="", default=False)), len(classes))
        places.append(Place(location, "", status if queue.up else "DOWN", number, facts, queue))
    return tuple(places)


def candidates(needs: Needs, places: Sequence[Place]) -> Sequence[Place]:
    """The places of a site that come into question: its queues, and the site itself unless its own queue is known.

    A job that names a queue has only that; one that is not known is left to the site.
    """
    if len(places) == 1:
        return places
    if needs.queue is not None:
        named = [place for place in places[1:] if place.queue is not None and place.queue.name == needs.queue]
        return named or places[:1]
    hosts = places[0].site is not None and (places[0].site.hosts or places[0].site.cloud)
    return places[1:] if hosts or own_queue(places) is not None else places


def own_queue(places: Sequence[Place]) -> Place | None:
    """The queue that a site uses if none is named, if that is known and may be used."""
    for place in places[1:]:
        queue = place.queue
        if queue is not None and queue.default and queue.auto and queue.up:
            return place
    return None


def claim_queue(place: Place) -> str:
    """The queue that an allocation is asked for at a place; "": none is named, as it is the site's own."""
    return "" if place.queue is None or place.queue.default else place.queue.name


def claim_of(want: Want, place: Place) -> Claim:
    """What a shape counts on at a place."""
    assert place.site is not None
    alone = not place.site.whole or (want.shape.needs.nodes > 1 and not place.site.given)
    queue = want.shape.needs.queue or claim_queue(place)
    return place.location.site, queue, want.shape_id if alone else ANY


_BEGINNING = View(0.0, 0.0, "serving", (), Ledger().view, {})
"""What is known before anything is: nothing is in use, nobody has refused anything."""
_ASKED = [
    filters.BUILT_IN[name].check
    for name in DEFAULT.filters
    if QUEUE in filters.BUILT_IN[name].levels and name not in COUNTED
]
"""Filters that say whether something can ever run."""


# ---- questions -------------------------------------------------------------------------------------------------------


def verdicts(want: Want, sites: Sites, view: View, policy: Policy = DEFAULT) -> list[Verdict]:
    """The first no of every site and queue to a shape, limits aside; those that say none are left out."""
    view = replace(view, number=want.shape_id, batch=want.first)
    out = []
    for places in sites.values():
        for place in candidates(want.shape.needs, places):
            for name in policy.filters:
                one = filters.BUILT_IN[name]
                if name == "most" and place.site is not None and place.site.given:
                    continue  # there never is another allocation: its nodes say why not
                if (
                    QUEUE in one.levels
                    and name != "limits"
                    and isinstance(no := one.check(want.shape, place, view), No)
                ):
                    who = f"{name}: {no.part}" if no.part else name
                    out.append(Verdict(place.location.id, who, no.code, no.detail, no.lasting, no.wake_on, level=QUEUE))
                    break
    return out


def impossible(needs: Needs, sites: Sites) -> str | None:
    """Why no queue of any site could ever run a job with these needs, nearest first; None if one could."""
    shape, view = Shape(needs), _BEGINNING
    reasons: list[tuple[int, str]] = []
    said: set[str] = set()
    by_name: list[Place] = []
    for site, places in sites.items():
        if needs.site not in (None, site):
            continue
        for place in candidates(needs, places):
            rank, no = _never(shape, place, view)
            if no is None:
                return None
            if no.code == "by-name":
                by_name.append(place)
            else:
                label = _words_of(site, place, no)
                if label not in said:  # all sizes of a cloud say the same
                    said.add(label)
                    reasons.append((-rank, label))
    hints = [words for place in by_name if (words := _by_name(needs, place, view)) is not None]
    if not reasons and not by_name:
        known = ", ".join(sites) or "none"
        return f"there is no site '{needs.site}'; the sites are: {known}" if needs.site else "no site is configured"
    reasons.sort(key=lambda row: row[0])
    told = [words for _, words in reasons[:NAMED]]
    if len(reasons) > NAMED:
        told.append(f"and so for {len(reasons) - NAMED} more")
    return "; ".join([*told, *hints[:NAMED]]) or "all queues that could run it must be named, and none is large enough"


def _words_of(site: str, place: Place, no: No) -> str:
    """A lasting no of a place, with who says it."""
    if no.code == "no-flavor":
        return f"{site}: {no.detail}"
    kind = "queue"
    if place.site is not None:
        kind = "host" if place.site.hosts else "flavor" if place.site.cloud else "queue"
    label = site if place.queue is None else f"the {kind} {place.queue.name} of {site}"
    parts = [("or ", part[3:]) if part.startswith("or ") else ("", part) for part in no.detail.split("; ")]
    return "; ".join(f"{before}{label} {part}" for before, part in parts)


def _never(shape: Shape, place: Place, view: View) -> tuple[int, No | None]:
    """(how many filters said yes, the first no that waiting cannot help): a queue that is shut now may open."""
    for rank, check in enumerate(_ASKED):
        answer = check(shape, place, view)
        if isinstance(answer, No) and answer.lasting:
            return rank, answer
    return len(_ASKED), None


def compete(one: Needs, other: Needs, sites: Sites) -> bool:
    """Whether jobs with these needs could take what jobs with the others wait for; without sites: yes.

    That is, if a queue could run both; one that is shut counts only for those that name it.
    """
    first, second = Shape(one), Shape(other)
    for site, places in sites.items():
        if one.site in (None, site) and other.site in (None, site):
            shared = {place.location.id for place in candidates(one, places)}
            both = [
                place
                for place in candidates(other, places)
                if place.location.id in shared
                and (place.queue is None or place.queue.up or place.queue.name == other.queue)
            ]
            if any(all(_never(shape, place, _BEGINNING)[1] is None for shape in (first, second)) for place in both):
                return True
    return not sites


def _by_name(needs: Needs, place: Place, view: View) -> str | None:
    """What a queue that must be named would give; None: it could not run the job either."""
    assert place.queue is not None
    named = replace(needs, options=(*needs.options, ("partition", place.queue.name)))
    if _never(Shape(named), place, view)[1] is not None:
        return None
    longest = place.queue.time_most_s
    gives = "would do" if longest is None else f"gives {format_duration(longest)}"
    return f"--partition {place.queue.name} {gives}"

"""The exam for policies, and for the filters, scorers and orders that they are made of.

    from rota.testing.check_policy import check_policy

    def test_my_filter():
        check_policy(Filter("replicas", check, levels=(NODE, QUEUE), reads=("replicas",)),
                     facts={"replicas": lambda chance, places: {"/data/x": places[0].location.site}})

In random worlds it is asked about everything, and must leave what it sees as it is, say the same of the same, whatever
is asked before and beside it, read no facts but those that it says it reads, and raise nothing. A whole policy must
also give out no more than there is. What is wrong is said in words.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from rota.model.location import Kind, Location
from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.model.site import QueueFacts, SiteFacts
from rota.schedule import filters, orders, scorers
from rota.schedule.filters import Filter, No
from rota.schedule.ledger import Ledger
from rota.schedule.orders import Order
from rota.schedule.pipeline import Placement, place
from rota.schedule.policy import DEFAULT, POLICIES, Policy, check_policy_names
from rota.schedule.scorers import Scorer
from rota.schedule.view import Limit, Place, View, Want

__all__ = ["check_policy"]

Told = Mapping[str, Callable[[random.Random, Sequence[Place]], Mapping[Any, Any]]]
"""Fact → what makes its values for a world."""
UNDER_TEST = "under-test"
WALL = 1_000_000.0


def check_policy(
    tested: str | Policy | Filter | Scorer | Order, *, facts: Told | None = None, worlds: int = 50, seed: int = 1
) -> None:
    """Raise AssertionError, with the reason, if a policy, or a part of one, does not do what is asked of all."""
    with _entered(tested) as policy:
        check_policy_names(policy)
        for number in range(worlds):
            world = _World(random.Random(f"{seed}/{number}"), facts or {})
            try:
                _check_parts(world, policy)
                _check_order(world, policy)
                _check_placing(world, policy)
            except AssertionError as wrong:
                raise AssertionError(f"{wrong} (world {number}, seed {seed})") from None


@contextlib.contextmanager
def _entered(tested: str | Policy | Filter | Scorer | Order) -> Iterator[Policy]:
    """The policy to test; a part that is not registered is for the moment."""
    if isinstance(tested, Policy):
        yield tested
        return
    if isinstance(tested, str):
        assert tested in POLICIES, f"there is no policy '{tested}'; there are {', '.join(sorted(POLICIES))}"
        yield POLICIES[tested]
        return
    registry: Any
    if isinstance(tested, Filter):
        registry, policy = filters.BUILT_IN, replace(DEFAULT, filters=(UNDER_TEST, *DEFAULT.filters))
    elif isinstance(tested, Scorer):
        registry, policy = scorers.BUILT_IN, replace(DEFAULT, scorers={UNDER_TEST: 1.0})
    else:
        registry, policy = orders.BUILT_IN, replace(DEFAULT, order=UNDER_TEST)
    registry[UNDER_TEST] = tested
    try:
        yield policy
    finally:
        del registry[UNDER_TEST]


# ---- the parts ------------------------------------------------------------------------------------------------------


def _check_parts(world: "_World", policy: Policy) -> None:
    """Every filter and scorer: answers of the right kind, that do not depend on what is asked before and beside."""
    named = [("filter", name, filters.BUILT_IN[name]) for name in policy.filters]
    parts: list[tuple[str, str, Any]] = [*named, *(("scorer", name, scorers.BUILT_IN[name]) for name in policy.scorers)]
    for kind, name, part in parts:
        ask = part.check if isinstance(part, Filter) else part.score
        asked = [(shape, at) for shape in world.shapes for at in world.places if at.level in part.levels]
        first = [_asked(world, kind, name, part.reads, ask, shape, at, world.view) for shape, at in asked]
        for (_, at), answer in zip(asked, first, strict=True):
            where = f"the {kind} '{name}' at {at.location.id}"
            if isinstance(part, Filter):
                good = answer is None or isinstance(answer, No | float)
                assert good, f"{where} answered {answer!r}, which is neither None, a time nor a No"
                if isinstance(answer, No):
                    assert answer.code and answer.detail, f"{where} said no without a code, or without words"
            else:
                good = isinstance(answer, int | float) and 0 < answer < float("inf")
                assert good, f"{where} answered {answer!r}, which is not a number above 0"
        shuffled = list(zip(asked, first, strict=True))
        world.chance.shuffle(shuffled)
        other = replace(world.view, places=tuple(world.chance.sample(world.view.places, len(world.view.places))))
        for (shape, at), answer in shuffled:
            again = _asked(world, kind, name, part.reads, ask, shape, at, other)
            words = (
                f"the {kind} '{name}' at {at.location.id} said {answer!r}, and asked again, in another order, {again!r}"
            )
            assert again == answer, words


def _check_order(world: "_World", policy: Policy) -> None:
    """The order: keys that can be compared, and tell all wants apart."""
    order, name = orders.BUILT_IN[policy.order], policy.order
    keys = [_asked(world, "order", name, order.reads, order.key, want, world.view) for want in world.wants]
    try:
        ranked = sorted(keys)
    except TypeError as error:
        raise AssertionError(f"the order '{name}' has keys that cannot be compared: {error}") from None
    for one, other in pairwise(ranked):
        assert one != other, f"the order '{name}' has one key for two shapes, {one!r}: end it with want.shape_id"
    later = replace(world.view, wall=world.view.wall + 1e6, mono=world.view.mono + 1e6)
    moved = [_asked(world, "order", name, order.reads, order.key, want, later) for want in world.wants]
    assert moved == keys, (
        f"the order '{name}' looks at the clock: nothing would put jobs into order again as time passes"
    )


def _asked(world: "_World", kind: str, name: str, reads: Sequence[str], ask: Callable[..., Any], *given: Any) -> Any:
    """The answer of a part. (More than six parameters: what it is asked, and what its failures are called.)"""
    view = given[-1]
    watched = _Watched(view.facts)
    before = world.print(given)
    try:
        answer = ask(*given[:-1], replace(view, facts=watched))
    except Exception as error:
        raise AssertionError(f"the {kind} '{name}' raised {type(error).__name__}: {error}") from error
    assert world.print(given) == before, f"the {kind} '{name}' changed what it was shown"
    hidden = sorted(watched.seen - {*reads})
    says = ", ".join(reads) or "none"
    assert not hidden, f"the {kind} '{name}' read the fact {', '.join(hidden)}, and says that it reads {says}"
    return answer


class _Watched(Mapping[str, Mapping[Any, Any]]):
    """Facts that note which of them were looked at."""

    def __init__(self, facts: Mapping[str, Mapping[Any, Any]]) -> None:
        self._facts = facts
        self.seen: set[str] = set()

    def __getitem__(self, name: str) -> Mapping[Any, Any]:
        self.seen.add(name)
        return self._facts[name]

    def __iter__(self) -> Iterator[str]:
        self.seen.update(self._facts)
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)


# ---- the whole ------------------------------------------------------------------------------------------------------


def _check_placing(world: "_World", policy: Policy) -> None:
    """A pass: no more is given out than there is, and the same again from the same beginning."""
    first, second = (world.placed(policy, ledger) for ledger in (world.a_ledger(), world.a_ledger()))
    assert first == second, f"two passes over the same world differ: {first} and {second}"


class _World:
    """A random world: sites, queues, nodes, shapes, limits, wants and facts."""

    def __init__(self, chance: random.Random, facts: Told) -> None:
        self.chance = chance
        self.sites = [f"s{number}" for number in range(chance.randint(1, 3))]
        self.nodes = [self._a_node(number) for number in range(chance.randint(1, 6))]
        self.places: list[Place] = [*self.nodes, *(self._a_queue(number) for number in range(chance.randint(1, 4)))]
        self.shapes = list(dict.fromkeys(self._a_shape() for _ in range(chance.randint(1, 6))))
        self.limits = {"l1": Limit(chance.randint(0, 3), 0), "l2": Limit(None, 0)}
        told = {name: MappingProxyType(dict(make(chance, self.places))) for name, make in facts.items()}
        if "shares" not in told:
            told["shares"] = MappingProxyType(
                {(shape.policy, shape.share): chance.random() for shape in self.shapes[1:]}
            )
        self.facts = _Facts(told)
        self.view = self.a_view(self.a_ledger())
        self.wants = [self._a_want(number, shape) for number, shape in enumerate(self.shapes)]

    def _a_node(self, number: int) -> Place:
        chance, site = self.chance, self.chance.choice(self.sites)
        capacity = Amounts(
            chance.choice((2000, 4000, 8000)), chance.choice((20, 100)), 50, chance.choice((0, 2)), (("lic", 2),)
        )
        tags = ("ssd",) if chance.random() < 0.5 else ()
        until = chance.choice((None, WALL + 100, WALL + 10_000))
        location = Location(f"{site}/n{number}", Kind.NODE, None, capacity, True, tags, until, site)
        status = chance.choice(("SERVING", "SERVING", "SERVING", "MISSING"))
        return Place(location, f"r{number}", status, number)

    def _a_queue(self, number: int) -> Place:
        chance, site = self.chance, self.chance.choice(self.sites)
        node = Amounts(chance.choice((4000, 64_000)), chance.choice((50, 1000)), 50, chance.choice((0, 4)))
        queue = QueueFacts(f"q{number}", node, chance.choice((None, 1, 8)), chance.choice((None, 3600)))
        facts = SiteFacts(node, most=chance.randint(0, 5), queues=(queue,), nodes_most=chance.choice((1, 8)))
        location = Location(f"{site}:q{number}", Kind.QUEUE, None, None, True, (), None, site)
        return Place(location, "", chance.choice(("UP", "UP", "down")), 100 + number, facts, queue)

    def _a_shape(self) -> Shape:
        chance = self.chance
        needs = Needs(
            cores=chance.choice((500, 1000, 3000)),
            cores_most=chance.choice((0, 0, 4000)),
            memory=chance.choice((None, 10, 30)),
            time_s=chance.choice((None, 60, 3600)),
            gpus=chance.choice((0, 0, 1)),
            named=chance.choice(((), (("lic", 1),))),
            tags=chance.choice(((), (), ("ssd",))),
            site=chance.choice((None, None, "s0")),
        )
        return Shape(needs, chance.choice(((), (), ("l1",))), share=chance.choice(("ann", "bob")))

    def _a_want(self, number: int, shape: Shape) -> Want:
        chance = self.chance
        return Want(number, shape, chance.randint(1, 9), chance.choice((0, 0, 7)), chance.randint(1, 3))

    def a_ledger(self) -> Ledger:
        """What is free, everything being so."""
        ledger = Ledger()
        for node in self.nodes:
            ledger.add(node.location)
        return ledger

    def a_view(self, ledger: Ledger) -> View:
        """What the parts are shown."""
        return View(
            WALL, 1000.0, "serving", tuple(self.places), ledger.view, MappingProxyType(self.limits), facts=self.facts
        )

    def placed(self, policy: Policy, ledger: Ledger) -> list[tuple[int, str, int, int]]:
        """What a pass gives out: (shape, place, how many slots, millicores of each), charged as it goes."""
        limits = dict(self.limits)
        view = replace(self.a_view(ledger), places=tuple(self.nodes), limits=limits)
        out = []
        for item in place(view, self.wants, policy, {}, ledger.changed):
            if not isinstance(item, Placement):
                continue
            where = item.place.location.id
            free = ledger.free(where)
            amounts = item.want.shape.needs.amounts(item.cores)
            words = f"{item.count} × {amounts} were given out at {where}, where {free} was free"
            assert amounts.times_in(free) >= item.count > 0, words
            ledger.charge(where, amounts, item.count, ledger.pick_gpus(where, amounts))
            for name in item.want.shape.limits:
                limits[name] = limit = replace(limits[name], used=limits[name].used + item.count)
                assert limit.count is None or limit.used <= limit.count, f"the limit {name} was exceeded: {limit}"
            out.append((item.want.shape_id, where, item.count, item.cores))
        return out

    def print(self, given: Sequence[Any]) -> bytes:
        """All that a part is shown, so that changes are seen."""
        view = given[-1]
        free = [view.ledger.free(at.location.id) for at in self.nodes]
        shown = (given[:-1], view.places, dict(view.limits), free, view.wall, view.mode, view.job_times)
        return msgspec.json.encode([shown, {name: repr(self.facts[name]) for name in self.facts}])


class _Facts(Mapping[str, Mapping[Any, Any]]):
    """Facts of a world; one that nobody told is empty."""

    def __init__(self, told: Mapping[str, Mapping[Any, Any]]) -> None:
        self._told = told

    def __getitem__(self, name: str) -> Mapping[Any, Any]:
        return self._told.get(name, MappingProxyType({}))

    def __iter__(self) -> Iterator[str]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)

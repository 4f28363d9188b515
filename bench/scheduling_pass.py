"""One scheduling pass over 200 shapes × 200 locations × 30 filters: cold, when nothing changed, and when little did.

    python bench/scheduling_pass.py [SHAPES] [PLACES]

The budget: 100 ms cold and 10 ms when little changed. Three kinds of cluster: idle (everything starts), full (no room
anywhere, all nodes alike) and uneven (no room for most, every node used differently); a fifth of the shapes are at a
full limit, and half of the nodes end at some time.

Then the queue level over ten times as many queues: open (everything finds one), full (no site takes more) and offline
(a filter that reads a fact says no everywhere). The budget: 1 s cold and 20 ms when a fact of one queue changed.
"""

import random
import sys
import time
from itertools import chain

import msgspec

from rota.model.location import Kind, Location
from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.model.site import QueueFacts, SiteFacts
from rota.model.verdict import Wake
from rota.schedule import filters
from rota.schedule.facts import Facts
from rota.schedule.filters import Filter, No
from rota.schedule.ledger import Ledger
from rota.schedule.pipeline import Memo, Parked, place
from rota.schedule.policy import DEFAULT, Policy
from rota.schedule.queue_memo import QueueMemo
from rota.schedule.queue_pass import QueuePass
from rota.schedule.queues import queue_places
from rota.schedule.view import NODE, QUEUE, Limit, Place, View, Want

GIB = 1 << 30
CLASSES = [(64, 256, ()), (128, 512, ("big",)), (32, 128, ("ssd",)), (48, 192, ("gpu",))]


class Cluster:
    """A tree of locations with some use, and wants."""

    def __init__(self, kind: str, shapes: int, places: int, chance: random.Random) -> None:
        self.policy, self.facts = _policy(NODE), Facts()
        self.ledger = Ledger()
        self.limits: dict[str, Limit] = {"lic": Limit(10, 10), "wide": Limit(100_000, 5)}
        self.places = []
        self.clock = 1000.0
        for site in range(4):
            self.ledger.add(Location(f"s{site}", Kind.SITE, None, None, True, (), None, f"s{site}"))
        for number in range(places):
            cores, memory, tags = CLASSES[number % 4]
            name, site = f"n{number}", f"s{number % 4}"
            until = 1000.0 + chance.randrange(600, 90_000) if number % 2 else None
            node = Location(
                name,
                Kind.NODE,
                site,
                Amounts(cores * 1000, memory * GIB, 0, 4 if "gpu" in tags else 0),
                True,
                tags,
                until,
                site,
            )
            self.ledger.add(node)
            if kind == "full":
                self.ledger.charge(name, Amounts(cores * 1000, 0), 1)
            elif kind == "uneven":
                self.ledger.charge(
                    name, Amounts(cores * 1000 - chance.randrange(0, 8000), chance.randrange(memory) * GIB), 1
                )
            self.places.append(Place(node, name, "SERVING", number % 4))
        self.wants = []
        for number in range(shapes):
            needs = Needs(
                cores=chance.choice((1000, 2000, 8000, 16_000, 64_000)) + number,
                memory=chance.choice((None, GIB, 8 * GIB, 64 * GIB)),
                time_s=chance.choice((None, 600, 3600, 86_400)),
                tags=chance.choice(((), (), (), ("big",), ("ssd",))),
            )
            limits = chance.choice(((), (), (), ("wide",), ("lic",)))
            self.wants.append(Want(number, Shape(needs, limits), 1000, chance.randrange(3), number))

    def one_pass(self, memo: Memo) -> tuple[float, int, int]:
        """(milliseconds, placements, verdicts)."""
        self.clock += 1.0
        view = View(
            self.clock, self.clock, "serving", list(self.places), self.ledger.view, self.limits, facts=self.facts
        )
        placed = verdicts = 0
        began = time.process_time()
        for item in place(view, self.wants, self.policy, memo, self.ledger.changed):
            if isinstance(item, Parked):
                verdicts += len(item.verdicts)
            else:
                placed += 1
                self.ledger.charge(item.place.location.id, item.want.shape.needs.amounts(item.cores), item.count)
                for name in item.want.shape.limits:
                    limit = self.limits[name]
                    self.limits[name] = Limit(limit.count, limit.used + item.count)
        return (time.process_time() - began) * 1000, placed, verdicts


def _fine(shape: Shape, place: Place, view: View) -> None:
    return None


def _online(shape: Shape, place: Place, view: View) -> No | None:
    """A filter that reads a fact of each queue."""
    if view.facts["status"].get(place.location.id) == "offline":
        return No("offline", "is offline", False, (Wake.FACT,))
    return None


def _policy(level: str) -> Policy:
    """The default filters, and others up to 30, of which one reads a fact of each place."""
    more = [Filter(f"fine{number}", _fine, (level,), static=True) for number in range(29 - len(DEFAULT.filters))]
    more.append(Filter("online", _online, (level,), ("status",)))
    filters.BUILT_IN.update({one.name: one for one in more})
    return Policy(filters=(*DEFAULT.filters, *[one.name for one in more]))


class Queues:
    """2,000 queues of 20 classes at 20 sites, 30 filters, and what of 200 shapes found no node."""

    def __init__(self, kind: str, shapes: int, places: int, chance: random.Random) -> None:
        self.policy = _policy(QUEUE)
        self.memo, self.facts = QueueMemo(), Facts()
        self.live: dict[str, int] = {}
        self.coming: dict[str, dict[tuple[str, int], int]] = {}
        self.moved: dict[tuple[str, str, int], None] = {}
        self.clock = 1000.0
        classes: dict[tuple[object, ...], int] = {}
        self.sites = {}
        most = 0 if kind == "full" else 100_000
        for site in range(20):
            queues = tuple(
                QueueFacts(f"q{number}", Amounts(64_000, 64 * GIB), time_most_s=3600 * (1 + site), default=not number)
                for number in range(places // 20)
            )
            facts = SiteFacts(Amounts(64_000, 64 * GIB), most=most, whole=False, queues=queues)
            self.sites[f"s{site}"] = queue_places(f"s{site}", facts, classes)
        self.most = most
        if kind == "offline":
            for place in chain.from_iterable(self.sites.values()):
                self.facts.tell("status", place.location.id, "offline")
        self.wants = [
            Want(
                number,
                Shape(Needs(1000 + number, time_s=chance.randrange(60, 72_000))),
                10,
                chance.randrange(3),
                number,
            )
            for number in range(shapes)
        ]

    def one_pass(self) -> tuple[float, int]:
        """(milliseconds, allocations asked for)."""
        self.clock += 1.0
        rooms = {name: self.most - self.live.get(name, 0) for name in self.sites}
        view = View(self.clock, self.clock, "serving", (), Ledger().view, {}, facts=self.facts, rooms=rooms)
        began, asked = time.process_time(), 0
        level = QueuePass(self.memo, view, self.sites, self.coming, {"default": self.policy}, lambda: 0.5)
        level.update_all(self.wants)
        level.wake(list(self.moved), list(self.facts.changed))
        self.moved.clear()
        self.facts.changed.clear()
        for each in level.run():
            asked += each.count
            self.live[each.site] = self.live.get(each.site, 0) + each.count
            key = (each.queue or "", each.shape_id)
            counts = self.coming.setdefault(each.site, {})
            counts[key] = counts.get(key, 0) + each.count
            self.moved[each.site, *key] = None
        return (time.process_time() - began) * 1000, asked


def print_queues(shapes: int, places: int) -> None:
    """Print the table of the queue level."""
    print(f"\n{shapes} shapes × {places} queues of 20 classes × 30 filters (budget: 1000 cold, 20 warm)")
    print(f"{'queues':10}{'cold':>9}{'asked':>9}{'same':>9}{'1 fact':>9}{'1 shape':>9}")
    for kind in ("open", "full", "offline"):
        world = Queues(kind, shapes, places, random.Random(1))
        cold, asked = world.one_pass()
        world.one_pass()
        same = min(world.one_pass()[0] for _ in range(3))
        world.facts.tell("status", "s3:q7", "online")
        fact = world.one_pass()[0]
        world.wants[5] = msgspec.structs.replace(world.wants[5], ready=11)
        print(f"{kind:10}{cold:9.1f}{asked:9}{same:9.1f}{fact:9.1f}{world.one_pass()[0]:9.1f}")


def main() -> None:
    """Print the tables."""
    shapes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    places = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    print(f"{shapes} shapes × {places} locations × 30 filters, milliseconds of CPU (budget: 100 cold, 10 warm)")
    print(f"{'cluster':10}{'cold':>9}{'placed':>9}{'verdicts':>10}{'same':>9}{'2 nodes':>9}{'1 limit':>9}")
    for kind in ("idle", "full", "uneven"):
        rows = []
        for seed in range(3):
            cluster = Cluster(kind, shapes, places, random.Random(seed))
            memo: Memo = {}
            cold, placed, verdicts = cluster.one_pass(memo)
            cluster.one_pass(memo)
            same = min(cluster.one_pass(memo)[0] for _ in range(3))
            nodes = []
            for number in range(5):
                for name in (f"n{number}", f"n{number + 9}"):  # something ends there, and is replaced by something else
                    cluster.ledger.charge(name, Amounts(500), -1)
                    cluster.ledger.charge(name, Amounts(500), 1)
                nodes.append(cluster.one_pass(memo)[0])
            limits = []
            for number in range(3):
                cluster.limits["lic"] = Limit(10, 11 + number)
                limits.append(cluster.one_pass(memo)[0])
            rows.append((cold, placed, verdicts, same, sorted(nodes)[2], sorted(limits)[1]))
        cold, placed, verdicts, same, two, limit = sorted(rows)[1]
        print(f"{kind:10}{cold:9.1f}{placed:9}{verdicts:10}{same:9.1f}{two:9.1f}{limit:9.1f}")
    print_queues(shapes, 10 * places)


if __name__ == "__main__":
    main()

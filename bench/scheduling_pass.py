"""One scheduling pass over 200 shapes × 200 locations: cold, when nothing changed, and when little did.

    python bench/scheduling_pass.py [SHAPES] [PLACES]

The budget: 100 ms cold and 10 ms when little changed. Three kinds of cluster: idle (everything starts), full (no
room anywhere, all nodes alike) and uneven (no room for most, every node used differently); a fifth of the shapes are at
a full limit, and half of the nodes end at some time.
"""

import random
import sys
import time

from rota.model.location import Kind, Location
from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.schedule.ledger import Ledger
from rota.schedule.pipeline import Memo, Parked, place
from rota.schedule.policy import DEFAULT
from rota.schedule.view import Limit, Place, View, Want

GIB = 1 << 30
CLASSES = [(64, 256, ()), (128, 512, ("big",)), (32, 128, ("ssd",)), (48, 192, ("gpu",))]


class Cluster:
    """A tree of locations with some use, and wants."""

    def __init__(self, kind: str, shapes: int, places: int, chance: random.Random) -> None:
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
        view = View(self.clock, self.clock, "serving", list(self.places), self.ledger.view, self.limits)
        placed = verdicts = 0
        began = time.process_time()
        for item in place(view, self.wants, DEFAULT, memo, self.ledger.changed):
            if isinstance(item, Parked):
                verdicts += len(item.verdicts)
            else:
                placed += 1
                self.ledger.charge(item.place.location.id, item.want.shape.needs.amounts(item.cores), item.count)
                for name in item.want.shape.limits:
                    limit = self.limits[name]
                    self.limits[name] = Limit(limit.count, limit.used + item.count)
        return (time.process_time() - began) * 1000, placed, verdicts


def main() -> None:
    """Print the table."""
    shapes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    places = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    print(f"{shapes} shapes × {places} locations, milliseconds of CPU (budget: 100 cold, 10 warm)")
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


if __name__ == "__main__":
    main()

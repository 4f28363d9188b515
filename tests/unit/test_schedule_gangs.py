"""Gangs: all nodes of a job at one time, of one allocation."""

from msgspec.structs import replace

from rota.model.location import Kind, Location
from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.schedule.gangs import KEPT, gang_verdicts, place_gang
from rota.schedule.ledger import Ledger
from rota.schedule.policy import DEFAULT, Policy
from rota.schedule.view import Place, View, Want


class World:
    """Allocations `a1`, `a2` … with nodes of four cores each."""

    def __init__(self, *nodes: int, shared: int = 0, gpus: int = 0) -> None:
        self.ledger = Ledger()
        names = ("lic",) if shared else ()
        capacity = Amounts(named=(("lic", shared),)) if shared else None
        site = Location("s", Kind.SITE, None, capacity, True, (), None, "s", shared=names, shared_only=bool(shared))
        self.ledger.add(site)
        self.places = []
        for number, count in enumerate(nodes, 1):
            parent = f"s/a{number}"
            self.ledger.add(Location(parent, Kind.ALLOCATION, "s", None, True, (), None, "s"))
            for node in range(count):
                name = f"{parent}/n{node}"
                self.ledger.add(Location(name, Kind.NODE, parent, Amounts(4000, 8 << 30, 0, gpus), True, (), None, "s"))
                self.places.append(Place(self.ledger.locations[name], f"r{number}{node}", "SERVING", 0))

    def view(self) -> View:
        return View(0.0, 0.0, "serving", self.places, self.ledger.view, {})

    def place(self, needs: Needs, policy: Policy = DEFAULT) -> list[str]:
        """Place a job, and charge it."""
        found = place_gang(Want(0, Shape(needs), 9, 0, 1), self.view(), policy)
        for place, cores in [] if found is None else found.parts:
            self.ledger.charge(place.location.id, found.needs.amounts(cores), 1)
        return [place.location.id for place, _ in ([] if found is None else found.parts)]

    def why(self, needs: Needs) -> list[tuple[str, str, bool]]:
        found = gang_verdicts(Want(0, Shape(needs), 9, 0, 1), self.view(), DEFAULT)
        return [(verdict.location, verdict.detail, verdict.lasting) for verdict in found]


def test_of_an_allocation_that_has_room_nothing_is_said() -> None:
    world = World(2, 1)
    assert [location for location, _, _ in world.why(Needs(3000, nodes=2))] == ["s/a2"]
    assert world.place(Needs(3000, nodes=2))
    assert [location for location, _, _ in world.why(Needs(3000, nodes=2))] == ["s/a1", "s/a2"]


def test_all_nodes_are_of_one_allocation() -> None:
    world = World(2, 2, 3)
    assert world.place(Needs(3000, nodes=3)) == ["s/a3/n0", "s/a3/n1", "s/a3/n2"]
    assert world.place(Needs(3000, nodes=3)) == []
    assert world.why(Needs(3000, nodes=3)) == [
        ("s/a1", "asks for 3 nodes at one time, 2 of 2 could take it now", True),
        ("s/a2", "asks for 3 nodes at one time, 2 of 2 could take it now", True),
        (
            "s/a3",
            "asks for 3 nodes at one time, 0 of 3 could take it now: asks for 3 cores, 1 core free now",
            False,
        ),
    ]


def test_the_fullest_nodes_first() -> None:
    world = World(3)
    world.ledger.charge("s/a1/n2", Amounts(1000), 1)
    world.ledger.charge("s/a1/n1", Amounts(2000), 1)
    assert world.place(Needs(2000, nodes=2)) == ["s/a1/n1", "s/a1/n2"]
    assert world.place(Needs(4000, nodes=1)) == ["s/a1/n0"]


def test_a_node_that_can_never_do_is_no_part() -> None:
    world = World(3)
    assert world.place(Needs(8000, nodes=2)) == []
    ((_, words, lasting),) = world.why(Needs(8000, nodes=2))
    assert lasting and words.endswith("0 of 3 could take it now: asks for 8 cores, has 4 cores")


def test_what_the_nodes_have_in_common_must_do_for_all() -> None:
    world = World(3, shared=3)
    assert world.place(Needs(1000, nodes=3, named=(("lic", 1),))) != []
    assert world.place(Needs(1000, nodes=3, named=(("lic", 1),))) == []
    world = World(3, shared=2)
    assert world.place(Needs(1000, nodes=3, named=(("lic", 1),))) == []
    ((_, words, _),) = world.why(Needs(1000, nodes=3, named=(("lic", 1),)))
    assert words.endswith("what they have in common is in use")


def test_nodes_that_are_kept_are_for_gangs() -> None:
    world = World(2)
    world.places = [replace(place, status=KEPT) for place in world.places]
    assert world.place(Needs(nodes=2)) == ["s/a1/n0", "s/a1/n1"]


def test_each_node_has_gpus_of_its_own() -> None:
    world = World(2, gpus=2)
    want = Want(0, Shape(Needs(nodes=2, gpus=2)), 9, 0, 1)
    found = place_gang(want, world.view(), DEFAULT)
    assert found is not None
    for place, cores in found.parts:
        amounts = found.needs.amounts(cores)
        gpus = world.ledger.pick_gpus(place.location.id, amounts)
        assert gpus == (0, 1), "the same numbers on both, since they are not the same gpus"
        world.ledger.charge(place.location.id, amounts, 1, gpus)
    assert place_gang(want, world.view(), DEFAULT) is None
    world.ledger.charge("s/a1/n1", found.needs.amounts(), -1, (0, 1))
    assert place_gang(want, world.view(), DEFAULT) is None, "what one node has given back is of no use to the other"
    one = place_gang(Want(0, Shape(Needs(gpus=2, span="pack")), 9, 0, 1), world.view(), DEFAULT)
    assert one is not None and [place.location.id for place, _ in one.parts] == ["s/a1/n1"]


def test_the_first_alternative_that_has_room_is_taken() -> None:
    world = World(1, gpus=1)
    needs = Needs(4000, variants=((("cores", 1000), ("gpus", 1)), (("cores", 2000),)))
    assert [world.place(needs), world.place(needs)] == [["s/a1/n0"], []]
    world.ledger.charge("s/a1/n0", Amounts(2000), -1)
    found = place_gang(Want(0, Shape(needs), 9, 0, 1), world.view(), DEFAULT)
    assert found is not None and (found.needs.gpus, found.needs.cores) == (1, 1000)
    ((_, words, lasting),) = world.why(Needs(8000, variants=((("cores", 9000),),)))
    assert lasting and "8 cores" in words and "; or" in words and "9 cores" in words


def test_whole_nodes_are_idle_ones() -> None:
    world = World(3)
    world.ledger.charge("s/a1/n0", Amounts(500), 1)
    assert world.place(Needs(nodes=2, whole=True)) == ["s/a1/n1", "s/a1/n2"]
    assert world.place(Needs(whole=True)) == []
    ((_, words, lasting),) = world.why(Needs(whole=True))
    assert not lasting and words.endswith("asks for all its cores, 0.5 cores are in use")

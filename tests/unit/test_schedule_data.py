"""Policies that look at where files are: what each prefers, and that files tell jobs apart only under these."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from core_world import FakeRunner, World
from rota.core.state import Settings
from rota.core.stimuli import Submit
from rota.model.batch import BatchSpec, Template
from rota.model.location import Kind, Location
from rota.model.needs import Amounts, Needs
from rota.model.patch import Patch
from rota.model.shape import Shape
from rota.model.site import QueueFacts, SiteFacts
from rota.schedule.data import cheapest_transfer, data_locality, most_bytes, names_of, present, transfer_s
from rota.schedule.facts import Facts, Stats
from rota.schedule.ledger import Ledger
from rota.schedule.picks import any_best
from rota.schedule.policy import POLICIES
from rota.schedule.scorers import least_loaded
from rota.schedule.view import Place, View
from rota.testing.check_policy import check_policy

G = 1 << 30
ONE = Amounts(1000, G, G)


def node(host: str, site: str = "farm", capacity: Amounts | None = None) -> Place:
    return Place(Location(f"{site}/a/{host}:r", Kind.NODE, None, capacity, site=site, host=host), "r", "SERVING", 0)


def queue(name: str, site: str = "farm") -> Place:
    facts = SiteFacts(ONE, most=1)
    location = Location(f"{site}:{name}", Kind.QUEUE, None, None, site=site, queue=name)
    return Place(location, "", "UP", 0, facts, QueueFacts(name, ONE, None, None))


def view(replicas: dict[str, Any], **more: dict[Any, Any]) -> View:
    facts = Facts()
    for name, rows in {"replicas": replicas, **more}.items():
        for key, value in rows.items():
            facts.tell(name, key, value)
    return View(1000.0, 1000.0, "serving", (), Ledger().view, {}, facts=facts)


def shape(*inputs: str) -> Shape:
    return Shape(Needs(), inputs=inputs)


def best(score: Callable[..., float], what: Shape, places: list[Place], seen: View) -> list[str]:
    """The hosts, or queues, with the highest score."""
    scores = [score(what, place, seen) for place in places]
    most = max(scores)
    found = [place for place, value in zip(places, scores, strict=True) if value == most]
    return [place.location.host or place.location.queue for place in found]


HOSTS = [node(f"h{number}") for number in (1, 2, 3)]


def test_a_place_has_what_its_site_has_and_what_is_on_its_host() -> None:
    assert names_of(node("h1").location) == ("farm", "farm/h1")
    assert names_of(queue("h2").location) == ("farm", "farm/h2")


def test_the_heaviest_file_decides_whatever_else_is_elsewhere() -> None:
    seen = view({"/big": (("farm/h2", 10),), "/a": (("farm/h1", 9),), "/b": (("farm/h1", 9),)})
    assert best(data_locality, shape("/a", "/big", "/b"), HOSTS, seen) == ["h2"]
    assert best(most_bytes, shape("/a", "/big", "/b"), HOSTS, seen) == ["h1"]


def test_the_next_heaviest_decides_where_the_heaviest_is_on_no_place_that_is_free() -> None:
    seen = view({"/big": (("farm/h2", 10),), "/a": (("farm/h3", 9),)})
    assert best(data_locality, shape("/a", "/big"), [HOSTS[0], HOSTS[2]], seen) == ["h3"]


def test_a_file_on_several_places_and_one_that_all_of_a_site_see() -> None:
    seen = view({"/x": (("farm/h1", 5), ("farm/h3", 5)), "/shared": (("farm", 100),)})
    assert best(data_locality, shape("/x"), HOSTS, seen) == ["h1", "h3"]
    assert best(data_locality, shape("/shared"), [*HOSTS, node("n", "other")], seen) == ["h1", "h2", "h3"]


def test_nothing_known_of_the_files_is_as_if_there_were_none() -> None:
    for score in (data_locality, most_bytes, cheapest_transfer):
        assert best(score, shape("/unknown"), HOSTS, view({})) == ["h1", "h2", "h3"]
        assert best(score, shape(), HOSTS, view({"/x": (("farm/h1", 5),)})) == ["h1", "h2", "h3"]


def test_more_files_than_a_number_has_digits() -> None:
    paths = [f"/f{number}" for number in range(3000)]
    seen = view({path: (("farm/h1" if path == "/f0" else "away/n", 1 + at),) for at, path in enumerate(paths)})
    assert best(data_locality, shape(*paths), HOSTS, seen) == ["h1"]


def test_of_equal_places_one_by_chance() -> None:
    draws = iter([0.0, 0.4, 0.99])
    assert [any_best([1.0, 2.0, 2.0, 2.0], [0] * 4, lambda: next(draws)) for _ in range(3)] == [1, 2, 3]


def test_bytes_that_are_there() -> None:
    seen = view({"/x": (("farm/h1", 5),), "/y": (("farm/h2", 7),)})
    assert present(shape("/x", "/y", "/z"), HOSTS[0], seen) == (5, 12)


def test_the_time_of_a_transfer_is_from_the_fastest_source_and_against_the_wait_of_the_queue() -> None:
    rows = {"/x": (("farm/h1", 10 * G), ("slow", 10 * G))}
    speeds = {("farm/h1", "farm/h2"): float(G), ("farm/h1", "far"): float(G) / 10, ("slow", "far"): 1.0}
    seen = view(rows, bandwidth=speeds, stats={("farm", "h1"): Stats(wait_s=500.0)})
    assert transfer_s(shape("/x"), node("h2"), seen) == 10.0
    assert transfer_s(shape("/x"), node("n", "far"), seen) == 100.0
    places = [queue("h1"), queue("h2")]
    assert best(cheapest_transfer, shape("/x"), places, seen) == ["h2"], "ten seconds are less than the wait"
    seen = view(rows, bandwidth=speeds, stats={("farm", "h1"): Stats(wait_s=5.0)})
    assert best(cheapest_transfer, shape("/x"), places, seen) == ["h1"]


def test_the_least_loaded_place_by_what_is_scarcest() -> None:
    ledger, places = Ledger(), [node(name, capacity=Amounts(4000, 8 * G)) for name in ("h1", "h2")]
    for place in places:
        ledger.add(place.location)
    ledger.charge(places[0].location.id, Amounts(1000, 6 * G), 1)
    ledger.charge(places[1].location.id, Amounts(2000, 1 * G), 1)
    seen = replace(view({}), ledger=ledger.view)
    assert best(least_loaded, shape(), places, seen) == ["h2"]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_exam(name: str) -> None:
    told = {"replicas": lambda chance, places: {"/x": ((chance.choice(places).location.site, 5),)}}
    check_policy(name, facts=told, worlds=10)


# ---- in the core ----------------------------------------------------------------------------------------------------


def farm(hosts: int, cores: int = 4000) -> tuple[World, list[FakeRunner]]:
    at = World(Settings(missing_s=1e9, policies=POLICIES), site=False)
    at.site(node=replace(ONE, cores=cores), most=hosts)
    add(at, [()] * hosts * (cores // 1000))
    at.schedule()
    runners = []
    for number, allocation in enumerate(list(at.state.allocations), 1):
        runner = at.runners[f"r{number}"] = FakeRunner(f"r{number}", allocation)
        at.greet(runner, replace(ONE, cores=cores), host=f"h{number}")
        runners.append(runner)
    at.change("kill")
    for runner in runners:
        at.report(runner, disclaimed=list(runner.held))
    return at, runners


def add(at: World, inputs: list[tuple[str, ...]], policy: str = "default") -> list[int]:
    """A batch for each of these sets of inputs."""
    out = []
    for each in inputs:
        at.keys += 1
        spec = BatchSpec(1, (Template(argv=("x",), policy=policy, inputs=each),))
        out.append(int(at.step(Submit(at=at.at, by="ann", spec=spec, key=f"k{at.keys}")).reply["batch"]))
    return out


def shapes(at: World, batches: list[int]) -> set[int]:
    return {at.state.batches[number].shapes[-1] for number in batches}


def test_files_tell_jobs_apart_only_under_a_policy_that_looks_at_them() -> None:
    at, _ = farm(1)
    inputs = [(f"/f{number}",) for number in range(5)]
    plain = add(at, inputs)
    near = add(at, inputs, "data_locality")
    assert len(shapes(at, plain)) == 1 and len(shapes(at, near)) == 5
    at.change("modify", str(near[0]), patch=Patch(policy="default"))
    assert shapes(at, near[:1]) == shapes(at, plain)
    at.change("modify", str(plain[0]), patch=Patch(policy="most_bytes"))
    (number,) = shapes(at, plain[:1])
    assert at.state.shapes[number].shape.inputs == ("/f0",)


def test_jobs_go_to_where_their_files_are() -> None:
    at, runners = farm(3)
    for number in range(9):
        at.state.soft.facts.tell("replicas", f"/f{number}", ((f"local/h{1 + number % 3}", 10 + number),))
    batches = add(at, [(f"/f{number}",) for number in range(9)], "data_locality")
    at.schedule()
    where = {job[0]: at for at, runner in enumerate(runners) for job in runner.held}
    assert [where[batch] for batch in batches] == [0, 1, 2] * 3


def test_a_place_that_is_full_is_none_and_another_is_taken() -> None:
    at, runners = farm(2, cores=1000)
    at.state.soft.facts.tell("replicas", "/f", (("local/h2", 10),))
    batches = add(at, [("/f",), ("/f",)], "data_locality")
    at.schedule()
    assert [[job[0] for job in runner.held] for runner in runners] == [[batches[1]], [batches[0]]]


def deep_queue(hosts: int, policy: str) -> tuple[World, list[FakeRunner], list[int]]:
    """One core a host, all taken; then four jobs for the file of each host, those of a host after one another."""
    at, runners = farm(hosts, cores=1000)
    for number in range(hosts):
        at.state.soft.facts.tell("replicas", f"/f{number}", ((f"local/h{1 + number}", 10 + number),))
    add(at, [()] * hosts)
    at.schedule()
    return at, runners, add(at, [(f"/f{number // 4}",) for number in range(4 * hosts)], policy)


def end_one(at: World, runner: FakeRunner) -> None:
    """The oldest job of a runner ends, and whoever is next gets its place."""
    at.end(runner, next(iter(runner.held)))
    at.schedule()


def test_what_is_free_goes_to_the_first_in_line_that_has_its_file_there() -> None:
    at, runners, batches = deep_queue(3, "data_locality")
    for runner in reversed(runners):
        end_one(at, runner)
    assert [[job[0] for job in runner.held] for runner in runners] == [[batches[0]], [batches[4]], [batches[8]]]
    at.state.soft.facts.tell("replicas", "/f0", (("local/h1", 1000),))
    for _ in range(4):
        end_one(at, runners[2])  # the fifth that it gets is one whose file is elsewhere: no place stays empty,
    assert [job[0] for job in runners[2].held] == [batches[5]]  # and as little is moved as can be


def test_priority_goes_before_files() -> None:
    at, runners, batches = deep_queue(2, "data_locality")
    at.change("modify", str(batches[3]), patch=Patch(priority=5))
    end_one(at, runners[1])
    assert [job[0] for job in runners[1].held] == [batches[3]]


def test_who_waits_for_a_host_that_is_away_is_not_passed_by() -> None:
    at, runners, batches = deep_queue(2, "data_locality")
    at.state.soft.facts.tell("replicas", "/f0", (("mars/h9", 10),))
    end_one(at, runners[1])
    assert [job[0] for job in runners[1].held] == [batches[0]]

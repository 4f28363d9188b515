"""Sites with queues, in the core: what is asked for there, what is learned of them, and why jobs wait."""

from core_world import FakeRunner, Job, World, cores
from rota.core.explain import Records, verdicts
from rota.core.plan import TOGETHER
from rota.core.stimuli import FactSeen, Greet
from rota.model.batch import Template
from rota.model.location import Kind
from rota.model.needs import Amounts, Needs
from rota.model.site import QueueFacts
from rota.schedule.facts import Stats

NODE = Amounts(4000, 8 << 30)
DAY = 86_400
QUEUES = (
    QueueFacts("short", NODE, time_most_s=600, default=True),
    QueueFacts("long", NODE, time_most_s=10 * DAY),
)


def jobs(time_s: int, nodes: int = 1) -> Template:
    return Template(shell="true", needs=Needs(time_s=time_s, nodes=nodes, site="hpc"))


def planned(world: World) -> list[tuple[str | None, int, int | None]]:
    """(queue, nodes, time) of the allocations that were asked of the cluster."""
    return [(each.queue, each.nodes, each.time_s) for each in world.state.allocations.values() if each.site == "hpc"]


def come(world: World, allocation: str, until: float | None = None) -> list[Job]:
    """The runner of an allocation greets; returns what it is leased."""
    runner = world.runners[f"r-{allocation}"] = FakeRunner(f"r-{allocation}", allocation)
    runner.connect = 1
    world.step(
        Greet(
            at=world.at, runner=runner.name, allocation=allocation, connect=1, clock=world.mono, host="host", pid=1,
            capacity=NODE, until=until, held=[],
        )
    )  # fmt: skip
    world.schedule()
    return list(runner.held)


def test_long_jobs_go_to_the_long_queue() -> None:
    world = World()
    world.site("hpc", NODE, most=5, whole=False, queues=QUEUES, nodes_most=10)
    world.submit(1, jobs(300))
    world.submit(1, jobs(DAY))
    world.schedule()
    assert planned(world) == [(None, 1, 600), ("long", 1, DAY)]
    world.check_restart()


def test_a_node_of_a_short_queue_is_not_for_long_jobs() -> None:
    world = World()
    world.site("hpc", NODE, most=5, queues=QUEUES)
    world.submit(1, jobs(300))
    world.schedule()
    world.submit(1, jobs(DAY))
    world.schedule()
    assert planned(world) == [(None, 1, 600), ("long", 1, DAY)]
    first, second = (each.id for each in world.state.allocations.values() if each.site == "hpc")
    assert len(come(world, first, world.wall + 600)) == 1, "only the short one"
    assert len(come(world, second, world.wall + DAY + 60)) == 1
    ledger = world.state.ledger
    path = [location.kind for location in ledger.path(world.state.runners[f"r-{second}"].location)]
    assert path == [Kind.NODE, Kind.ALLOCATION, Kind.QUEUE, Kind.SITE]
    world.check_restart()


def test_how_long_allocations_wait_is_known() -> None:
    world = World()
    world.site("hpc", NODE, most=5, whole=False, queues=QUEUES)
    world.submit(2, jobs(DAY))
    world.schedule()
    asked = [each.id for each in world.state.allocations.values()]
    began = world.wall
    stats = world.state.soft.facts["stats"]
    assert stats["hpc", "long"] == Stats(None, 2, began)
    world.tick(100)
    world.allocation(asked[0], "pend")
    world.allocation(asked[0], "run")
    kinds = ((0, 7, 100.0),)
    assert stats["hpc", "long"] == Stats(100.0, 1, began, 1, kinds)
    world.allocation(asked[1], "fail", "no")
    assert stats["hpc", "long"] == Stats(100.0, 0, 0.0, 1, kinds), "what never started tells nothing"


def test_gangs_ask_for_nodes_and_get_all_at_once() -> None:
    world = World()
    world.site("hpc", NODE, most=5, queues=QUEUES, nodes_most=10)
    world.submit(1, jobs(300, nodes=3))
    world.schedule()
    assert planned(world) == [(None, 3, 600)]


def test_why_a_job_waits_names_queues() -> None:
    world = World()
    world.site("hpc", NODE, most=1, whole=False, queues=QUEUES)
    batch = world.submit(2, jobs(DAY))
    world.schedule()
    shape = world.state.shapes[world.state.batches[batch].shapes[0]]
    found = [(v.level, v.location, v.code) for v in verdicts(world.state, shape, world.at, Records())]
    assert found == [
        ("queue", "hpc:long", "starting"),
        ("queue", "local", "other-site"),
        ("queue", "hpc:short", "too-short"),
    ]


def test_facts_come_in_from_outside() -> None:
    world = World()
    world.step(FactSeen(at=world.at, name="replicas", key="/data/x", value=("a", "b")))
    assert world.state.soft.facts["replicas"]["/data/x"] == ("a", "b")
    assert world.state.soft.planning.wanted
    world.schedule()
    world.step(FactSeen(at=world.at, name="replicas", key="/data/x", value=("a", "b")))
    assert not world.state.soft.planning.wanted, "no news"


def test_named_resources_that_a_site_has_once() -> None:
    world = World()
    world.site("hpc", NODE, most=5, shared=(("db", 3),))
    needs = Needs(1000, site="hpc", named=(("db", 2),))
    world.submit(4, Template(shell="true", needs=needs))
    world.submit(4, cores(1))
    world.schedule()
    (asked,) = (each.id for each in world.state.allocations.values() if each.site == "hpc")
    leased = come(world, asked)
    assert len([job for job in leased if job[0] == 1]) == 1, "one more would need four"
    assert world.state.ledger.free("hpc").named == (("db", 1),)
    world.check_restart()


def test_what_came_while_no_site_had_room_is_asked_for_when_one_has() -> None:
    world = World()
    world.site("local", NODE, most=0)
    world.site("hpc", NODE, most=1, whole=False, queues=QUEUES)
    world.submit(1, jobs(DAY))
    world.schedule()
    (first,) = (each.id for each in world.state.allocations.values() if each.site == "hpc")
    come(world, first, world.wall + DAY + 60)
    planning = world.state.soft.planning
    later = [world.submit(1, jobs(DAY + 60 * number)) for number in (3, 2, 1)]
    world.schedule()
    assert planned(world) == [("long", 1, DAY)]
    waiting = {world.state.batches[batch].shapes[0] for batch in later}
    assert planning.unasked is not None and waiting <= planning.unasked, "queues that have no room are not asked"
    for number in range(TOGETHER):  # but not for ever
        world.submit(1, jobs(2 * DAY + 60 * number))
        world.schedule()
    assert waiting <= planning.queues.shapes.keys() and len(planning.unasked) < TOGETHER
    last = world.submit(1, jobs(3 * DAY))
    world.schedule()
    assert world.state.batches[last].shapes[0] in planning.unasked
    world.site("hpc", NODE, most=2 + len(later) + TOGETHER, whole=False, queues=QUEUES)
    world.schedule()
    asked = [each.shape for each in world.state.allocations.values() if each.site == "hpc"]
    assert asked == [shape.id for shape in world.state.shapes], "all of them, in order"
    world.check_restart()

"""Brokerage of any task in any world: checks are pure, weights are positive and finite, funnels add up."""

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rota.schedule.broker.analysis import broker_analysis
from rota.schedule.broker.config import PROFILES, Profile, Thresholds
from rota.schedule.broker.decision import Decision
from rota.schedule.broker.production import CHECKS, broker_production
from rota.schedule.broker.queue import Queue
from rota.schedule.broker.task import Chunk, File, Rules, Task
from rota.schedule.broker.world import Jobs, Link, Outcomes, UserJobs, World

COUNT = st.integers(0, 300)
MAYBE = st.none() | st.integers(0, 20_000)
NAMES = [f"Q{number}" for number in range(6)]

queues = st.builds(
    Queue,
    name=st.just("Q"),
    type=st.sampled_from(["production", "analysis", "unified"]),
    status=st.sampled_from(["online", "online", "standby", "offline"]),
    site=st.sampled_from([None, "S0", "S1", "NUC"]),
    capability=st.sampled_from(["score", "ucore"]),
    core_count=st.sampled_from([None, 0, 1, 8]),
    corepower=st.sampled_from([None, 0, 10.0]),
    maxrss=MAYBE, minrss=st.sampled_from([None, 0, 3000]), maxtime=MAYBE, maxwdir=MAYBE,
    storage_free_gb=st.none() | st.floats(0, 1000), blacklisted=st.booleans(), vp_endpoint=st.booleans(),
    pledged_cpu=st.sampled_from([None, -1, 100]), site_class=st.sampled_from([1, 0, -1]),
    fairshare_policy=st.sampled_from([None, "", "type=any:0%", "[:", "x"]),
    num_slots=st.sampled_from([{}, {"MC": {None: 0}}, {None: {"MCORE": 40}}]),
    wnconnectivity=st.sampled_from([None, "full"]),
)  # fmt: skip
jobs = st.builds(Jobs, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT, COUNT)
speeds = st.none() | st.floats(0, 500)
queued = st.dictionaries(st.just("Production Output"), st.integers(0, 900))
links = st.builds(Link, st.none() | st.integers(-1, 11), queued, speeds, speeds, speeds)
files = st.lists(st.builds(File, st.just("f"), st.integers(0, 2**34), st.none() | st.integers(0, 5000)), max_size=4)
tasks = st.builds(
    Task,
    processing_type=st.sampled_from(["simul", "urgent", "validation"]),
    gshare=st.sampled_from([None, "MC", "User Analysis"]),
    current_priority=st.integers(0, 2500), task_priority=st.integers(0, 2500),
    nucleus=st.sampled_from([None, "NUC", "S0"]),
    core_count=st.sampled_from([None, 0, 1, 8]), ram_count=MAYBE, ram_unit=st.sampled_from([None, "MB", "MBPerCore"]),
    base_ram_count=MAYBE, cpu_time=MAYBE, cpu_time_unit=st.sampled_from([None, "HS06sPerEvent", "mHS06sPerEvent"]),
    cpu_efficiency=st.sampled_from([None, 0, 90]), walltime=MAYBE, out_disk_count=MAYBE, work_disk_count=MAYBE,
    io_intensity=MAYBE, disk_io=MAYBE, user_class=st.sampled_from([None, "A", "B", "C"]),
    event_service=st.booleans(), rules=st.builds(Rules, n_files_per_job=st.sampled_from([None, 1, 3]),
                                                 t1_weight=st.sampled_from([0, -1, 7])),
    chunk=st.builds(Chunk, scouting=st.booleans(), is_merging=st.booleans()), files=files.map(tuple),
)  # fmt: skip
rows = st.builds(UserJobs, COUNT, COUNT)
worlds = st.builds(
    lambda described, **known: World(
        queues={name: _named(queue, name) for name, queue in zip(NAMES, described, strict=False)}, **known
    ),
    st.lists(queues, min_size=1, max_size=6),
    jobs=st.dictionaries(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(["MC", "User Analysis"]), jobs)),
    jobs_by_type=st.dictionaries(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(["MCORE", "SCORE"]), jobs)),
    links=st.dictionaries(st.sampled_from(["S0", "S1"]), links),
    files_local=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9)),
    workers=st.dictionaries(st.sampled_from(NAMES), COUNT),
    outcomes=st.dictionaries(st.sampled_from(NAMES), st.builds(Outcomes, COUNT, COUNT, COUNT)),
    user_jobs=st.dictionaries(
        st.sampled_from(NAMES),
        st.dictionaries(st.just("User Analysis"), st.dictionaries(st.sampled_from(["me", "_total"]), rows)),
    ),
    start_rate_default=st.floats(0, 50),
)
profiles = st.sampled_from(PROFILES)


def _named(queue: Queue, name: str) -> Queue:
    from msgspec.structs import replace

    return replace(queue, name=name)


def check(decision: Decision) -> None:
    """What holds of every decision."""
    left = decision.initial
    for step in decision.steps:
        assert step.before == left and 0 <= step.after < step.before and 1 <= step.cut <= 100
        left = step.after
    assert decision.initial - left == len(decision.skipped) or decision.throttled
    assert len(decision.candidates) == (left if decision.status == "SUCCEEDED" else 0)
    for one in decision.candidates:
        made = math.prod(value for _, value in one.factors)
        assert all(math.isfinite(value) and value > 0 for _, value in one.factors), one
        assert (one.weight == 0) if one.bootstrap else (one.weight > 0 and math.isclose(one.weight, made)), one
    for skip in decision.skipped.values():
        assert skip.words and (skip.weight is None or (math.isfinite(skip.weight) and skip.weight > 0))
    names = [(one.bootstrap is False, -one.weight, one.queue) for one in decision.candidates]
    assert decision.flow != "production" or names == sorted(names)
    assert (decision.status == "FAILED") == bool(decision.reason)


@settings(max_examples=120, deadline=None)
@given(tasks, worlds, profiles)
def test_every_decision_adds_up(task: Task, world: World, profile: Profile) -> None:
    values = Thresholds(profile)
    check(broker_production(task, world, values))
    check(broker_analysis(task, world, values))


@settings(max_examples=60, deadline=None)
@given(tasks, worlds, profiles, st.randoms(use_true_random=False))
def test_the_order_of_checks_changes_only_the_reasons(task: Task, world: World, profile: Profile, chance: Any) -> None:
    mixed = list(CHECKS)
    chance.shuffle(mixed)
    values = Thresholds(profile)
    one, other = broker_production(task, world, values), broker_production(task, world, values, mixed)
    assert one.candidates == other.candidates and one.status == other.status
    assert one.skipped.keys() == other.skipped.keys()
    assert broker_production(task, world, values) == one  # nothing was changed by looking

"""Every native state of every dialect, forced on the fake cluster and read from what it prints; and every end."""

import pytest

from driver_world import make_ask
from fake_recordings import START, cluster, ends
from rota.drivers.dialect import Answer, Options
from rota.drivers.dialects import load_dialect
from rota.drivers.outcome import Evidence, judge

PERSONALITIES = ("slurm", "lsf", "pbs", "torque", "sge")
ROWS = [(name, state) for name in PERSONALITIES for state in load_dialect(name).states]
LATER = START + 400


def submitted(personality, lasts=None, count=1, options=None, **settings):
    """A cluster with one submission of ours, as the dialect makes it: (cluster, dialect, native id of element 0)."""
    fake, dialect = cluster(personality, lasts or ends(1e9), **settings), load_dialect(personality)
    ask = make_ask(1, count)
    answer = ask_cluster(fake, dialect.submit(ask, options or Options()), START)
    done = dialect.read_submit(ask, answer)
    assert done.result == "ok", answer
    return fake, dialect, dialect.element_id(done.native_id, 0, count)


def ask_cluster(fake, command, at):
    return Answer(*fake.run(command.argv, command.stdin, at))


def listed(fake, dialect, native, options, at=START + 10):
    listing = dialect.read_listing(ask_cluster(fake, dialect.listing("tester"), at), options)
    assert listing.result == "ok", listing.detail
    return next((seen for seen in listing.seen if seen.native_id == native), None)


def told(fake, dialect, native, options, at=LATER):
    """As the driver sees the end of one: by the listing, and by the history if that says too little."""
    seen = listed(fake, dialect, native, options, at)
    if seen is not None and seen.outcome is not None and seen.outcome.exit_code is not None:
        return seen
    for command in dialect.history([native]):
        found = dialect.read_history(ask_cluster(fake, command, at), options)
        seen = next((each for each in found.seen if each.native_id == native), seen)
    return seen


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("personality", "state"), ROWS)
def test_every_native_state_is_read_as_its_table_says(personality, state, count, strict):
    fake, dialect, native = submitted(personality, count=count)
    options = Options(strict=strict)
    fake.world.jobs[0].forced = state
    expected = dialect.strict.get(state, dialect.states[state]) if strict else dialect.states[state]
    seen = listed(fake, dialect, native, options)
    assert seen is not None and (seen.kind, seen.tag in (None, make_ask(1).tag)) == (expected, True), seen
    other = Options(state_map=((state, "unsure" if expected != "unsure" else "running"),))
    assert listed(fake, dialect, native, other).kind == other.state_map[0][1]


@pytest.mark.parametrize("personality", PERSONALITIES)
def test_a_state_that_nobody_knows_tells_nothing(personality):
    fake, dialect, native = submitted(personality)
    fake.world.jobs[0].forced = {"pbs": "Z", "torque": "Z"}.get(personality, "ODD")
    assert listed(fake, dialect, native, Options()).kind == "unsure"


ENDS = {
    "well": dict.fromkeys(PERSONALITIES, ("complete", None)),
    "exit 3": dict.fromkeys(PERSONALITIES, ("fail", None)),
    "signal 9": dict.fromkeys(PERSONALITIES, ("fail", None)),
    "memory": dict.fromkeys(PERSONALITIES, ("fail", "oom")) | {"slurm": ("abort", "oom"), "sge": ("fail", "time")},
    "time": dict.fromkeys(PERSONALITIES, ("fail", "time")) | {"slurm": ("abort", "time")},
    "cancelled": {
        "slurm": ("abort", "cancelled"),
        "lsf": ("fail", "cancelled"),
        "pbs": ("abort", "cancelled"),
        "torque": ("fail", "cancelled"),
        "sge": ("fail", None),
    },
    "node": {
        "slurm": ("abort", "node-fail"),
        "lsf": ("fail", "node-fail"),
        "pbs": ("fail", "node-fail"),
        "torque": ("fail", "cancelled"),
        "sge": ("fail", None),
    },
}
"""End → what is made of it. Grid Engine's accounting tells neither limits nor deletions apart any better."""


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("personality", PERSONALITIES)
@pytest.mark.parametrize("end", ENDS)
def test_every_end_has_its_reason(personality, end, count):
    statuses = {"well": (0, None), "exit 3": (3, None), "signal 9": (None, 9)}
    lasts = ends(20.0, *statuses[end]) if end in statuses else None
    fake, dialect, native = submitted(personality, lasts, count)
    fake.advance(START + 5)
    world, job = fake.world, fake.world.jobs[0]
    world.of(job).requeue = False
    if end == "memory":
        world.run_out_of_memory(fake, job)
    elif end == "time":
        world.run_out_of_time(fake, job)
    elif end == "cancelled":
        world.cancel(fake, job, "admin")
    elif end == "node":
        world.fail_node(fake, job.nodes[0])
    seen = told(fake, dialect, native, Options(), START + 100)
    verdict = judge(Evidence(seen))
    assert (verdict.verb, verdict.outcome and verdict.outcome.why) == ENDS[end][personality], (seen, verdict)
    if end == "exit 3":
        assert verdict.outcome.exit_code == 3


@pytest.mark.parametrize("personality", PERSONALITIES)
def test_requeued_suspended_and_forgotten(personality):
    fake, dialect, native = submitted(personality, options=Options(requeue=True), purge_s=300)
    fake.advance(START + 5)
    job = fake.world.jobs[0]
    assert listed(fake, dialect, native, Options(), START + 6).kind == "running"
    fake.world.suspend(fake, job)
    assert listed(fake, dialect, native, Options(), START + 7).kind == "suspended"
    fake.world.resume(fake, job)
    fake.world.settings["requeue_delay_s"] = 60
    fake.world.requeue(fake, job)
    assert listed(fake, dialect, native, Options(), START + 8).kind == "pending"
    assert listed(fake, dialect, native, Options(), START + 80).kind == "running"
    fake.world.cancel(fake, job, "admin")
    fake.advance(START + 90)
    assert listed(fake, dialect, native, Options(), START + 1000) is None
    commands = dialect.history([native])
    results = [dialect.read_history(ask_cluster(fake, command, START + 1000), Options()).result for command in commands]
    assert set(results) <= {"ok", "not-found"}

"""Jobs of one batch that wait for each other, for names that some of them have, and for what is outside of it."""

import random

import pytest

from core_world import World, cores, lease_all, run_jobs
from rota.core import invariants
from rota.core.dependencies.following import element_reason
from rota.core.explain import account, omitted_reason
from rota.core.stimuli import Cover
from rota.model.batch import Dependency
from rota.model.errors import RefusedError, UsageError
from rota.model.graph import Graph, find_circle, pack_links
from rota.model.patch import BatchPatch, Patch

CONDITION = {"": 0, "?": 1, "!": 2, "=": 3}


def graph(
    count: int, links: dict[int, list[str]], *after: Dependency, jobs: tuple[tuple[int, bytes], ...] = ()
) -> Graph:
    """Links in words: `2` the job at position 2, `=n` has the name n, `@n` after those of name n, `%0` the first
    dependency, `/0` the first job elsewhere; with `?` in front whatever becomes of it, with `!` if it fails."""
    names = list(dict.fromkeys(word[1:] for row in links.values() for word in row if word[0] == "="))
    rows = []
    for pos in range(count):
        row = []
        for word in links.get(pos, ()):
            bits = CONDITION.get(word[0], 0)
            word = word.lstrip("?!=")
            if bits == 3 or word[0] == "@":
                node = count + names.index(word.lstrip("@"))
            elif word[0] == "%":
                node = count + len(names) + int(word[1:])
            elif word[0] == "/":
                node = count + len(names) + len(after) + int(word[1:])
            else:
                node = int(word)
            row.append(node << 2 | bits)
        rows.append(row)
    return Graph(*pack_links(rows), tuple(names), after, jobs)


def settle(world: World, batch: int, fate: dict[int, int]) -> list[int]:
    """Run whatever can run to its exit code (0 if it has none); the order in which jobs were run, by position."""
    runner = world.runners.get("r1") or world.start_runner()
    order = []
    while leased := lease_all(world, runner):
        for job in leased:
            pos = world.state.batches[job[0]].position(job[1])
            assert pos is not None
            if job[0] == batch:
                order.append(pos)
            world.end(runner, job, fate.get(pos, 0) if job[0] == batch else 0)
    return order


def restart(world: World) -> None:
    """Restart the manager; its runners come back."""
    world.restart()
    for runner in world.runners.values():
        world.greet(runner)


def test_a_circle_through_a_name_that_one_job_waits_for_is_refused() -> None:
    """What the name means to that job is not fixed when other jobs of its batch are ready."""
    world = World()
    merge = world.submit(2, name="merge", graph=graph(2, {1: ["%0"]}, Dependency("@align")))
    assert world.counts(merge) == {"PENDING": 1, "WAITING": 1}
    other = world.submit()
    align = world.submit(name="align", after=[str(other)])
    patch = Patch(batch=BatchPatch(after=(Dependency("@merge"),)))
    circle = rf"batch {other} → batch {merge} \(merge\) → batch {align} \(align\) → batch {other}: nothing was changed"
    with pytest.raises(UsageError, match=circle):
        world.change("modify", str(other), patch=patch)
    said = account(world.state, world.state.batches[merge], 1, world.at).reason
    assert said.startswith(f"waits for @align (1 of 1 jobs not settled) → {align} → {other}, which is PENDING"), said
    world.check_restart()


def test_a_diamond_runs_in_its_order_and_survives_restarts() -> None:
    world = World()
    batch = world.submit(4, graph=graph(4, {1: ["0"], 2: ["0"], 3: ["1", "2"]}))
    assert world.counts(batch) == {"PENDING": 1, "WAITING": 3}
    world.checkpoint()
    world.check_restart()
    run_jobs(world, batch, 0)
    assert world.counts(batch) == {"COMPLETED": 1, "PENDING": 2, "WAITING": 1}
    assert element_reason(world.state, world.state.batches[batch], 3) == f"waits for {batch}.2, which is PENDING"
    world.check_restart()
    restart(world)
    run_jobs(world, batch, 0, 0, 0)
    assert world.counts(batch) == {"COMPLETED": 4}
    world.check_restart()


def test_what_is_given_back_waits_again_for_what_runs_again() -> None:
    """A job that was leased while what it waits for was retried: it has not started, and may not before that."""
    world = World()
    batch = world.submit(2, graph=graph(2, {1: ["!0"]}))
    runner = world.start_runner()
    (first,) = lease_all(world, runner)
    world.end(runner, first, 1)
    (second,) = lease_all(world, runner)
    world.change("retry", f"{batch}.1")
    world.report(runner, disclaimed=[second])
    assert world.states(batch)[1] == "WAITING"
    world.check_restart()
    (again,) = lease_all(world, runner)
    world.end(runner, again, 0)
    assert world.states(batch) == ["COMPLETED", "OMITTED"]


def test_what_fails_omits_what_follows_and_a_retry_opens_it_again() -> None:
    world = World()
    links = {1: ["0"], 2: ["1"], 3: ["!0"], 4: ["?2"]}
    batch = world.submit(5, graph=graph(5, links))
    run_jobs(world, batch, 1)
    assert world.states(batch) == ["FAILED", "OMITTED", "OMITTED", "PENDING", "PENDING"]
    book = world.state.batches[batch]
    assert omitted_reason(world.state, book, 1) == f"depends on {batch}.1, which is FAILED"
    assert omitted_reason(world.state, book, 2) == f"depends on {batch}.2, which is OMITTED"
    world.check_restart()
    world.change("retry", f"{batch}.1")
    assert world.states(batch) == ["PENDING", "WAITING", "WAITING", "WAITING", "WAITING"]
    world.check_restart()
    assert settle(world, batch, {}) == [0, 1, 2, 4]
    assert world.states(batch) == ["COMPLETED"] * 3 + ["OMITTED", "COMPLETED"]
    assert omitted_reason(world.state, book, 3) == f"was to run if {batch}.1 failed, but it succeeded"


def test_what_is_killed_held_or_removed() -> None:
    world = World()
    batch = world.submit(4, graph=graph(4, {1: ["0"], 2: ["1"], 3: ["?1"]}))
    world.change("hold", f"{batch}.2")
    run_jobs(world, batch, 0)
    assert world.states(batch) == ["COMPLETED", "HOLDING", "WAITING", "WAITING"]
    with pytest.raises(RefusedError, match=f"other jobs of batch {batch} depend on these"):
        world.change("remove", f"{batch}.2")
    world.change("kill", f"{batch}.2")
    assert world.states(batch) == ["COMPLETED", "ABORTED", "OMITTED", "PENDING"]
    run_jobs(world, batch, 0)
    world.change("remove", f"{batch}.2")
    assert world.states(batch) == ["COMPLETED", "REMOVED", "PENDING", "COMPLETED"]
    world.check_restart()
    world.change("remove", str(batch))
    assert world.counts(batch) == {"REMOVED": 4}


def test_names_of_jobs() -> None:
    """A name is waited for by jobs of the batch, by other batches, and is a selector."""
    world = World()
    links = {0: ["=align"], 1: ["=align", "=s1"], 2: ["@align"], 3: []}
    batch = world.submit(4, graph=graph(4, links))
    other = world.submit(1, after=["@align"])
    early = world.submit(1, after=[("@s1", "any")])
    assert world.counts(other) == world.counts(early) == {"WAITING": 1}
    assert world.change("hold", "@s1", dry_run=True)["sample"] == [f"{batch}.2"]
    world.check_restart()
    run_jobs(world, batch, 0)
    assert world.states(batch)[2] == "WAITING"
    restart(world)
    run_jobs(world, batch, 0)
    assert world.states(batch) == ["COMPLETED", "COMPLETED", "PENDING", "PENDING"]
    assert world.counts(other) == world.counts(early) == {"PENDING": 1}
    world.change("retry", f"{batch}.1", ":completed")
    assert world.states(batch)[2] == "WAITING"
    assert world.counts(other) == {"WAITING": 1}
    assert world.counts(early) == {"PENDING": 1}
    world.check_restart()
    settle(world, batch, {})
    assert world.counts(other) == {"COMPLETED": 1}


def test_a_restart_knows_of_a_name_that_jobs_of_a_later_batch_have() -> None:
    world = World()
    waiter = world.submit(after=["@left"])
    first = world.submit(name="left")
    later = world.submit(2, graph=graph(2, {0: ["=left"], 1: ["0"]}))
    runner = world.start_runner()
    leased = {job[0]: job for job in lease_all(world, runner)}
    world.end(runner, leased[later])
    restart(world)
    invariants.check(world.state)
    world.end(world.runners["r1"], leased[first])
    assert world.states(waiter) == ["PENDING"], "it was told, though it had looked before the graph of the later batch"


def test_a_line_waits_for_what_is_outside() -> None:
    world = World()
    first = world.submit(3)
    after = (Dependency(str(first)), Dependency(f"{first}.1"), Dependency("@later"))
    batch = world.submit(4, graph=graph(4, {0: ["%0"], 1: ["%1"], 2: ["%2"], 3: ["!%0"]}, *after))
    assert world.counts(batch) == {"WAITING": 4}
    world.checkpoint()
    run_jobs(world, first, 0)
    assert world.states(batch) == ["WAITING", "PENDING", "WAITING", "WAITING"]
    restart(world)
    run_jobs(world, first, 0, 0)
    assert world.states(batch) == ["PENDING", "PENDING", "WAITING", "OMITTED"]
    later = world.submit(1, name="later")
    run_jobs(world, later, 1)
    assert world.states(batch) == ["PENDING", "PENDING", "OMITTED", "OMITTED"]
    world.check_restart()
    world.submit(1, name="later")  # it comes too late to count
    world.change("retry", str(later))
    assert world.states(batch) == ["PENDING", "PENDING", "WAITING", "OMITTED"]
    run_jobs(world, later, 0)
    assert world.states(batch)[2] == "PENDING"
    world.check_restart()
    with pytest.raises(UsageError, match="job 2: --after 99: there is no batch 99"):
        world.submit(2, graph=graph(2, {1: ["%0"]}, Dependency("99")))


def test_a_line_waits_for_a_name_that_comes_while_its_batch_waits_as_a_whole() -> None:
    world = World(check=False)  # the check itself would have it look
    whole = world.submit()
    batch = world.submit(2, after=[str(whole)], graph=graph(2, {1: ["%0"]}, Dependency("@align")))
    align = world.submit(name="align")
    runner = world.start_runner()
    leased = {job[0]: job for job in lease_all(world, runner)}
    world.end(runner, leased[align], 1)
    assert world.states(batch) == ["WAITING", "OMITTED"]


def test_a_live_name_lets_a_line_run_again() -> None:
    world = World()
    world.submit(1, name="data")
    after = (Dependency("@data", live=True, rerun=True),)
    batch = world.submit(3, graph=graph(3, {1: ["%0"], 2: ["1"]}, *after))
    settle(world, batch, {})
    assert world.counts(batch) == {"COMPLETED": 3}
    world.submit(1, name="data")
    assert world.states(batch) == ["COMPLETED", "WAITING", "COMPLETED"]
    settle(world, batch, {})
    assert world.counts(batch) == {"COMPLETED": 3}
    world.check_restart()


def test_jobs_elsewhere_one_by_one() -> None:
    world = World()
    first = world.submit(3)
    positions = (first, b"".join(pos.to_bytes(4, "little") for pos in (0, 2)))
    batch = world.submit(2, graph=graph(2, {0: ["/1"], 1: ["/0"]}, jobs=(positions,)))
    run_jobs(world, first, 0)
    assert world.states(batch) == ["WAITING", "PENDING"]
    assert element_reason(world.state, world.state.batches[batch], 0) == f"waits for {first}.3, which is PENDING"
    world.checkpoint()
    restart(world)
    run_jobs(world, first, 0, 1)
    assert world.states(batch) == ["OMITTED", "PENDING"]
    world.change("retry", f"{first}.3")
    assert world.states(batch) == ["WAITING", "PENDING"]
    settle(world, batch, {})
    assert world.counts(batch) == {"COMPLETED": 2}
    world.check_restart()


def test_batch_wide_dependencies_go_together_with_links() -> None:
    world = World()
    first = world.submit(1)
    batch = world.submit(2, after=[str(first)], graph=graph(2, {1: ["0"]}))
    assert world.counts(batch) == {"WAITING": 2}
    world.change("modify", str(batch), patch=Patch(batch=BatchPatch(after_none=True)))
    assert world.states(batch) == ["PENDING", "WAITING"]
    world.check_restart()


def test_circles_are_refused() -> None:
    world = World()
    with pytest.raises(UsageError, match="wait for each other and could never run: 1 → 3 → 2 → 1"):
        world.submit(3, graph=graph(3, {0: ["2"], 1: ["0"], 2: ["1"]}))
    with pytest.raises(UsageError, match="wait for each other"):
        world.submit(2, graph=graph(2, {0: ["=a", "1"], 1: ["@a"]}))
    with pytest.raises(UsageError, match="not there"):
        world.submit(1, graph=graph(1, {0: ["7"]}))
    waiter = world.submit(1, after=["@n"])
    with pytest.raises(UsageError, match="wait for itself"):
        world.submit(2, graph=graph(2, {0: ["=n", "%0"]}, Dependency(str(waiter))))
    assert not find_circle(1, [0, 0], [])


def test_a_long_chain_is_cut_and_opened_in_one_step() -> None:
    world = World(check=False)
    count = 3000
    batch = world.submit(count, graph=graph(count, {pos: [str(pos - 1)] for pos in range(1, count)}))
    run_jobs(world, batch, 1)
    assert world.counts(batch) == {"FAILED": 1, "OMITTED": count - 1}
    before = len(world.log)
    world.change("retry", f"{batch}.1")
    assert world.counts(batch) == {"PENDING": 1, "WAITING": count - 1}
    assert len(world.log) - before <= 3
    invariants.check(world.state)


@pytest.mark.parametrize("seed", range(25))
def test_any_graph_comes_to_what_its_links_say(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    count = rng.randint(2, 14)
    links: dict[int, list[str]] = {}
    order = list(range(count))
    rng.shuffle(order)
    for at, pos in enumerate(order):
        row = []
        if rng.random() < 0.3:
            row.append(f"={'ab'[at % 2] if at < count // 2 else 'c'}")
        for parent in rng.sample(order[:at], min(at, rng.choice((0, 1, 1, 2, 3)))):
            row.append(rng.choice(("", "", "?", "!")) + str(parent))
        links[pos] = row
    names = {word[1:] for row in links.values() for word in row if word[0] == "="}
    for pos in order[count // 2 :]:
        if rng.random() < 0.3 and (known := sorted(names & {"a", "b"})):
            links[pos].append(rng.choice(("", "?", "!")) + "@" + rng.choice(known))
    batch = world.submit(count, graph=graph(count, links))
    fate = {pos: rng.choice((0, 0, 1)) for pos in range(count)}
    for _ in range(rng.randint(0, 4)):
        runner = world.runners.get("r1") or world.start_runner()
        for job in lease_all(world, runner)[: rng.randint(0, 3)]:
            world.end(runner, job, fate[job[1] - 1])
        what = rng.choice(("hold", "release", "retry", "kill", "restart", "checkpoint"))
        if what in ("restart", "checkpoint"):
            world.checkpoint()
            world.check_restart()
        else:
            words = [f"{batch}.{rng.randint(1, count)}"] + ([":completed"] if what == "retry" and seed % 2 else [])
            world.change(what, *words)
    world.change("release", str(batch))
    settle(world, batch, fate)
    states = world.states(batch)
    assert not {*states} & {"WAITING", "PENDING", "HOLDING"}
    good = {pos: state == "COMPLETED" for pos, state in enumerate(states)}
    for pos, state in enumerate(states):
        met = []
        for word in links[pos]:
            bare = word.lstrip("?!")
            if word[0] == "=":
                continue
            group = [p for p, row in links.items() if f"={bare[1:]}" in row] if bare[0] == "@" else [int(bare)]
            fine = all(good[each] for each in group)
            met.append(word[0] == "?" or (fine if word[0] not in "!" else not fine))
        if state == "OMITTED":
            assert not all(met)
        elif state in ("COMPLETED", "FAILED"):
            assert all(met) or "retry" in str(world.events())
    world.check_restart()


def test_jobs_that_are_there_get_a_name() -> None:
    world = World()
    batch = world.submit(3)
    waiter = world.submit(1, after=["@new"])
    linked = world.submit(2, graph=graph(2, {0: ["=a"], 1: ["@a", "%0"]}, Dependency(str(batch))))
    world.step(Cover(at=world.at, by="ann", name="new", jobs={batch: [0, 2], linked: [0]}))
    assert world.counts(waiter) == {"WAITING": 1}
    assert world.change("hold", "@new", dry_run=True)["sample"] == [f"{batch}.1", f"{batch}.3", f"{linked}.1"]
    world.check_restart()
    world.checkpoint()
    restart(world)
    settle(world, linked, {})
    assert world.counts(waiter) == {"COMPLETED": 1}
    assert world.counts(linked) == {"COMPLETED": 2}
    with pytest.raises(UsageError, match="wait for itself"):
        last = world.submit(1, after=["@later"])
        world.submit(1, after=[str(last)])
        world.step(Cover(at=world.at, by="ann", name="later", jobs={last + 1: [0]}))
    world.check_restart()


def test_a_back_off_is_skipped_by_retry_and_by_modify() -> None:
    for what, patch in (("retry", None), ("modify", Patch(batch=BatchPatch(not_before=None)))):
        world = World()
        batch = world.submit(2, cores(1, retries=2))
        run_jobs(world, batch, 1, 0)
        assert world.states(batch) == ["WAITING", "COMPLETED"]
        reply = world.change(what, str(batch), patch=patch)
        assert reply["jobs"] >= 1
        assert world.states(batch) == ["PENDING", "COMPLETED"]
        assert world.state.batches[batch].failures == {0: 1}
        world.check_restart()


def test_retry_of_what_was_omitted_says_what_has_failed() -> None:
    world = World()
    first = world.submit(2)
    second = world.submit(2, after=[str(first)])
    each = world.submit(2, after=[Dependency(str(first), each=True)])
    inner = world.submit(2, graph=graph(2, {1: ["0"]}))
    run_jobs(world, first, 0, 1)
    run_jobs(world, inner, 1)
    for batch, target, jobs in ((second, f"{first}.2", 2), (each, f"{first}.2", 1), (inner, f"{inner}.1", 1)):
        words = (f"{batch}.2",) if batch == inner else (str(batch),)
        reply = world.change("retry", *words)
        assert reply["jobs"] == 0
        (row,) = [row for row in reply["skipped"] if "OMITTED" in row["reason"]]
        assert row["jobs"] == jobs and f"depends on {target}, which is FAILED" in row["reason"], row
    world.change("retry", str(first), str(second))
    assert world.counts(second) == {"WAITING": 2}
    run_jobs(world, first, 0)
    assert world.counts(second) == {"PENDING": 2}


def test_what_was_omitted_is_looked_at_when_its_parent_is_removed() -> None:
    world = World()
    first = world.submit(2)
    second = world.submit(2, after=[str(first)])
    run_jobs(world, first, 0, 1)
    assert world.counts(second) == {"OMITTED": 2}
    world.change("remove", f"{first}.2")
    assert world.counts(second) == {"PENDING": 2}
    world.check_restart()
    world.change("remove", str(first), str(second))
    assert world.counts(second) == {"REMOVED": 2}


def test_a_batch_that_gets_another_name_keeps_the_names_of_its_jobs() -> None:
    world = World()
    batch = world.submit(2, name="call", graph=graph(2, {0: ["=call"], 1: ["%0"]}, Dependency("@other")))
    world.submit(1, name="other")
    patch = Patch(batch=BatchPatch(name="align", after=(Dependency("@call", "failure"),)))
    with pytest.raises(UsageError, match="would wait for itself"):
        world.change("modify", str(batch), patch=patch)
    assert world.state.batches[batch].spec.name == "call"

"""The tables: written out again, apart from the code, and what must hold of any such table."""

import pathlib
import subprocess
import sys

import pytest

from rota.core.evolve import evolve
from rota.core.state import Settings, State
from rota.model import events as ev
from rota.model import tables
from rota.model.batch import BatchSpec, Template
from rota.model.needs import Amounts
from rota.model.tables import ALLOCATION, JOB, JOB_MOVES, JOB_STATES, RUNNER, SETTLED, Table, diagram, move

# In words: verb: from → to.
WRITTEN_JOB = """
submit: → WAITING
ready: WAITING → PENDING
block: PENDING → WAITING
hold: WAITING PENDING → HOLDING
release: HOLDING → WAITING
omit: WAITING HOLDING → OMITTED
lease: PENDING → STARTING
start: STARTING → RUNNING
lapse: STARTING RUNNING → MISSING
resume: MISSING → RUNNING
return: STARTING MISSING → PENDING
requeue: STARTING RUNNING MISSING → WAITING
complete: STARTING RUNNING MISSING KILLING → COMPLETED
fail: PENDING STARTING RUNNING MISSING → FAILED
kill: STARTING RUNNING MISSING → KILLING
abort: WAITING HOLDING PENDING KILLING → ABORTED
reopen: COMPLETED FAILED ABORTED OMITTED → WAITING
"""
WRITTEN_ALLOCATION = """
plan: → WAITING
submit: WAITING → SUBMITTING
retry: SUBMITTING → SUBMITTING
retry: KILLING → KILLING
pend: SUBMITTING RUNNING → PENDING
run: SUBMITTING PENDING → RUNNING
kill: SUBMITTING PENDING RUNNING → KILLING
kill: WAITING → ABORTED
complete: SUBMITTING PENDING RUNNING KILLING → COMPLETED
fail: WAITING SUBMITTING PENDING RUNNING → FAILED
fail: KILLING → ABORTED
abort: WAITING SUBMITTING PENDING RUNNING KILLING → ABORTED
"""
WRITTEN_RUNNER = """
greet: → SERVING
drain: SERVING MISSING → DRAINING
lapse: SERVING DRAINING → MISSING
resume: MISSING → SERVING
close: SERVING DRAINING MISSING → CLOSED
lose: SERVING DRAINING MISSING → EXPIRED
"""
ALL = [("job", JOB, WRITTEN_JOB), ("allocation", ALLOCATION, WRITTEN_ALLOCATION), ("runner", RUNNER, WRITTEN_RUNNER)]
MOVABLE = sorted(set(JOB) - {"submit", "lease", "start"})
"""Verbs that a `Moved` event may carry (the others have events of their own, or come in `Ended`)."""


def design(text: str) -> dict[tuple[str, str], str]:
    out = {}
    for line in text.strip().splitlines():
        verb, _, rest = line.partition(":")
        olds, _, new = rest.partition("→")
        for old in olds.split() or [""]:
            assert (verb, old) not in out
            out[verb, old] = new.strip()
    return out


def flat(table: Table) -> dict[tuple[str, str], str]:
    return {(verb, old): new for verb, moves in table.items() for old, new in moves.items()}


@pytest.mark.parametrize(("name", "table", "text"), ALL)
def test_the_table_is_the_designs(name: str, table: Table, text: str) -> None:
    assert flat(table) == design(text)


@pytest.mark.parametrize(("name", "table", "text"), ALL)
def test_every_pair_moves_as_written_or_not_at_all(name: str, table: Table, text: str) -> None:
    legal = design(text)
    for state in tables.states(table):
        for verb in [*table, "no-such-verb"]:
            assert move(table, state, verb) == legal.get((verb, state))
    assert move(table, "NOWHERE", next(iter(table))) is None


def reachable(table: Table, start: str) -> set[str]:
    seen, queue = {start}, [start]
    while queue:
        state = queue.pop()
        for new in {moves[state] for moves in table.values() if state in moves} - seen:
            seen.add(new)
            queue.append(new)
    return seen


@pytest.mark.parametrize(("name", "table", "text"), ALL)
def test_every_state_can_be_reached_and_none_is_a_trap(name: str, table: Table, text: str) -> None:
    everything = set(tables.states(table))
    assert reachable(table, "") == {"", *everything}
    for state in everything:
        if state.endswith("ING"):
            assert any(other.endswith("ED") for other in reachable(table, state)), f"{state} never settles"


@pytest.mark.parametrize(("name", "table", "text"), ALL)
def test_naming(name: str, table: Table, text: str) -> None:
    for state in tables.states(table):
        assert state.isupper() and state.endswith(("ING", "ED"))
    for verb in table:
        assert verb.islower() and not verb.endswith(("ing", "ed")), f"'{verb}' is no verb"


@pytest.mark.parametrize(("name", "table", "text"), ALL)
def test_settled_states_are_left_only_by_reopening(name: str, table: Table, text: str) -> None:
    leaving = {verb for (verb, old) in flat(table) if old.endswith("ED")}
    assert leaving == ({"reopen"} if name == "job" else set())
    if name == "job":
        assert set(JOB["reopen"]) == {state for state in tables.states(JOB) if state.endswith("ED")}


def test_the_bytes_are_the_names() -> None:
    assert set(JOB_STATES) - {"REMOVED"} == set(tables.states(JOB))
    assert [state.endswith("ED") for state in JOB_STATES] == [number >= SETTLED for number in range(len(JOB_STATES))]
    for number, name in enumerate(JOB_STATES):
        assert getattr(tables, name) == number
    for verb, moves in JOB.items():
        assert {(JOB_STATES[old], JOB_STATES[new]) for old, new in JOB_MOVES[verb].items()} == {
            pair for pair in moves.items() if pair[0]
        }
    active = {"STARTING", "RUNNING", "MISSING", "KILLING"}
    assert {JOB_STATES[old] for old in JOB_MOVES["remove"]} == set(JOB_STATES) - active - {"REMOVED"}
    assert set(JOB_MOVES["remove"].values()) == {tables.REMOVED}
    assert not any(tables.REMOVED in moves for moves in JOB_MOVES.values())


def test_the_bytes_on_disk_stay_what_they_are() -> None:
    on_disk = {
        "WAITING": 0,
        "PENDING": 1,
        "HOLDING": 2,
        "STARTING": 3,
        "RUNNING": 4,
        "MISSING": 5,
        "KILLING": 6,
        "COMPLETED": 7,
        "FAILED": 8,
        "ABORTED": 9,
        "OMITTED": 10,
        "REMOVED": 11,
    }
    now = {name: number for number, name in enumerate(JOB_STATES)}
    moved = {name: (number, now.get(name)) for name, number in on_disk.items() if now.get(name) != number}
    assert not moved, (
        f"these states have other bytes than in the databases that exist (name: on disk, now): {moved}. The order of "
        "JOB_STATES must not change: append, or write a migration that rewrites the columns (rota/store/migrations)"
    )


# ---- in the core ----------------------------------------------------------------------------------------------------


def job_in(name: str, count: int) -> State:
    """A state whose one batch has jobs in this state, the books being right."""
    state = State(Settings())
    evolve(state, ev.Submitted(1, BatchSpec(count, (Template(argv=("true",)),)), "k", 0.0))
    paths = {
        "WAITING": [],
        "PENDING": ["ready"],
        "HOLDING": ["hold"],
        "OMITTED": ["omit"],
        "ABORTED": ["abort"],
        "FAILED": ["ready", "fail"],
        "REMOVED": ["remove"],
        "STARTING": ["ready", "lease"],
        "RUNNING": ["ready", "lease", "start"],
        "MISSING": ["ready", "lease", "lapse"],
        "KILLING": ["ready", "lease", "kill"],
        "COMPLETED": ["ready", "lease", "complete"],
    }[name]
    for verb in paths:
        if verb == "lease":
            evolve(state, ev.RunnerGreeted("r1", None, 1, 1, "host", 9, Amounts(9000)))
            evolve(state, ev.Leased(1, [0, count], "r1", "0:1000", count))
        elif verb == "start":
            evolve(state, ev.Started("r1", [(1, pos) for pos in range(count)]))
        elif verb == "complete":
            evolve(state, ev.Ended("r1", [(1, pos, "complete", None, 1) for pos in range(count)]))
        elif verb == "remove":
            evolve(state, ev.Removed(1, [0, count]))
        else:
            evolve(state, ev.Moved(1, verb, [0, count]))
    assert state.batches[1].states == bytes([JOB_STATES.index(name)]) * count
    return state


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("verb", MOVABLE)
@pytest.mark.parametrize("old", JOB_STATES)
def test_evolve_makes_legal_moves_and_no_others(old: str, verb: str, count: int) -> None:
    state = job_in(old, count)
    new = design(WRITTEN_JOB).get((verb, old))
    if new is None:
        with pytest.raises((AssertionError, KeyError)):
            evolve(state, ev.Moved(1, verb, [0, count]))
    else:
        evolve(state, ev.Moved(1, verb, [0, count]))
        batch = state.batches[1]
        assert batch.states == bytes([JOB_STATES.index(new)]) * count
        assert batch.counts[JOB_STATES.index(new)] == count and sum(batch.counts) == count


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("old", JOB_STATES)
def test_evolve_leases_only_what_is_pending(old: str, count: int) -> None:
    state = job_in(old, count)
    if "r1" not in state.runners:
        evolve(state, ev.RunnerGreeted("r1", None, 1, 1, "host", 9, Amounts(9000)))
    lease = ev.Leased(1, [0, count], "r1", "0:1000", count)
    if old == "PENDING":
        evolve(state, lease)
        assert list(state.batches[1].attempts) == [1] * count
    else:
        with pytest.raises((AssertionError, KeyError)):
            evolve(state, lease)


@pytest.mark.parametrize("verb", ["complete", "fail", "requeue", "return", "abort"])
@pytest.mark.parametrize("old", JOB_STATES)
def test_evolve_ends_only_what_is_live(old: str, verb: str) -> None:
    state = job_in(old, 1)
    if "r1" not in state.runners:
        evolve(state, ev.RunnerGreeted("r1", None, 1, 1, "host", 9, Amounts(9000)))
    ended = ev.Ended("r1", [(1, 0, verb, None, 0)])
    new = design(WRITTEN_JOB).get((verb, old))
    if new is None or old not in ("STARTING", "RUNNING", "MISSING", "KILLING"):
        with pytest.raises((AssertionError, KeyError)):
            evolve(state, ended)
    else:
        evolve(state, ended)
        assert JOB_STATES[state.batches[1].states[0]] == new
        assert not state.batches[1].live and not state.runners["r1"].slots
        assert state.ledger.used[state.runners["r1"].location] == Amounts()


@pytest.mark.parametrize("old", JOB_STATES)
def test_evolve_starts_only_what_is_starting(old: str) -> None:
    state = job_in(old, 1)
    if "r1" not in state.runners:
        evolve(state, ev.RunnerGreeted("r1", None, 1, 1, "host", 9, Amounts(9000)))
    if old == "STARTING":
        evolve(state, ev.Started("r1", [(1, 0)]))
        assert JOB_STATES[state.batches[1].states[0]] == "RUNNING"
    else:
        with pytest.raises((AssertionError, KeyError)):
            evolve(state, ev.Started("r1", [(1, 0)]))


@pytest.mark.parametrize("verb", [verb for verb in ALLOCATION if verb != "plan"])
@pytest.mark.parametrize("old", tables.states(ALLOCATION))
def test_evolve_moves_allocations_as_the_table_says(old: str, verb: str) -> None:
    state = State(Settings())
    evolve(state, ev.AllocationPlanned("a1", "s", "tag", Amounts(), 0.0))
    state.allocations["a1"].state = old
    new = design(WRITTEN_ALLOCATION).get((verb, old))
    if new is None:
        with pytest.raises(AssertionError):
            evolve(state, ev.AllocationMoved("a1", verb))
    else:
        evolve(state, ev.AllocationMoved("a1", verb))
        assert state.allocations["a1"].state == new


@pytest.mark.parametrize("verb", [verb for verb in RUNNER if verb != "greet"])
@pytest.mark.parametrize("old", tables.states(RUNNER))
def test_evolve_moves_runners_as_the_table_says(old: str, verb: str) -> None:
    state = State(Settings())
    evolve(state, ev.RunnerGreeted("r1", None, 1, 1, "host", 9, Amounts(9000)))
    state.runners["r1"].state = old
    new = design(WRITTEN_RUNNER).get((verb, old))
    if new is None:
        with pytest.raises(AssertionError):
            evolve(state, ev.RunnerMoved("r1", verb))
    else:
        evolve(state, ev.RunnerMoved("r1", verb))
        assert state.runners["r1"].state == new


# ---- in the documents -----------------------------------------------------------------------------------------------


def test_diagrams_have_every_move() -> None:
    for _, table, _ in ALL:
        text = diagram(table)
        assert text.startswith("stateDiagram-v2\n")
        for (verb, old), new in flat(table).items():
            assert any(
                line.strip().startswith(f"{old or '[*]'} --> {new}:")
                and verb in line.split(":")[1].replace(",", " ").split()
                for line in text.splitlines()
            )


def test_the_architecture_document_has_the_present_diagrams() -> None:
    document = pathlib.Path(__file__).parents[2] / "docs" / "architecture.md"
    text = document.read_text()
    assert "<!-- tables -->" in text and "<!-- /tables -->" in text
    shown = text.split("<!-- tables -->", 1)[1].split("<!-- /tables -->", 1)[0]
    printed = subprocess.run(
        [sys.executable, "-m", "rota.model.tables"], capture_output=True, text=True, check=True
    ).stdout
    assert shown.strip() == printed.strip(), "run: python -m rota.model.tables, and put it between the markers"

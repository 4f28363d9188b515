"""The three tables: every legal move of a job, an allocation and a runner. The table is the truth.

States that live end in -ING, states that are settled end in -ED, moves are verbs. A (state, verb) pair that is not
here is a bug when we make it, and is refused and recorded when the outside world reports it. The diagrams in
`docs/architecture.md` and the checks in the tests are made from these literals: `python -m rota.model.tables` prints
the diagrams.
"""

from collections.abc import Mapping

from rota.model.selector import STATES

__all__ = ["ALLOCATION", "JOB", "JOB_STATES", "RUNNER", "SETTLED", "diagram", "move"]

Table = Mapping[str, Mapping[str, str]]
"""verb → old state → new state; the old state "" is "does not exist yet"."""

JOB: Table = {
    "submit": {"": "WAITING"},
    "ready": {"WAITING": "PENDING"},
    "block": {"PENDING": "WAITING"},
    "hold": {"WAITING": "HOLDING", "PENDING": "HOLDING"},
    "release": {"HOLDING": "WAITING"},
    "omit": {"WAITING": "OMITTED", "HOLDING": "OMITTED"},
    "lease": {"PENDING": "STARTING"},
    "start": {"STARTING": "RUNNING"},
    "lapse": {"STARTING": "MISSING", "RUNNING": "MISSING"},
    "resume": {"MISSING": "RUNNING"},
    "return": {"STARTING": "PENDING", "MISSING": "PENDING"},
    "requeue": {"STARTING": "WAITING", "RUNNING": "WAITING", "MISSING": "WAITING"},
    "complete": {"STARTING": "COMPLETED", "RUNNING": "COMPLETED", "MISSING": "COMPLETED", "KILLING": "COMPLETED"},
    "fail": {"PENDING": "FAILED", "STARTING": "FAILED", "RUNNING": "FAILED", "MISSING": "FAILED"},
    "kill": {"STARTING": "KILLING", "RUNNING": "KILLING", "MISSING": "KILLING"},
    "abort": {"WAITING": "ABORTED", "HOLDING": "ABORTED", "PENDING": "ABORTED", "KILLING": "ABORTED"},
    "reopen": {"COMPLETED": "WAITING", "FAILED": "WAITING", "ABORTED": "WAITING", "OMITTED": "WAITING"},
}

ALLOCATION: Table = {
    "plan": {"": "WAITING"},
    "submit": {"WAITING": "SUBMITTING"},
    "retry": {"SUBMITTING": "SUBMITTING", "KILLING": "KILLING"},
    "pend": {"SUBMITTING": "PENDING", "RUNNING": "PENDING"},
    "run": {"SUBMITTING": "RUNNING", "PENDING": "RUNNING"},
    "kill": {"WAITING": "ABORTED", "SUBMITTING": "KILLING", "PENDING": "KILLING", "RUNNING": "KILLING"},
    "complete": {"SUBMITTING": "COMPLETED", "PENDING": "COMPLETED", "RUNNING": "COMPLETED", "KILLING": "COMPLETED"},
    "fail": {
        "WAITING": "FAILED",
        "SUBMITTING": "FAILED",
        "PENDING": "FAILED",
        "RUNNING": "FAILED",
        "KILLING": "ABORTED",
    },
    "abort": {
        "WAITING": "ABORTED",
        "SUBMITTING": "ABORTED",
        "PENDING": "ABORTED",
        "RUNNING": "ABORTED",
        "KILLING": "ABORTED",
    },
}

RUNNER: Table = {
    "greet": {"": "SERVING"},
    "drain": {"SERVING": "DRAINING", "MISSING": "DRAINING"},
    "lapse": {"SERVING": "MISSING", "DRAINING": "MISSING"},
    "resume": {"MISSING": "SERVING"},
    "close": {"SERVING": "CLOSED", "DRAINING": "CLOSED", "MISSING": "CLOSED"},
    "lose": {"SERVING": "EXPIRED", "DRAINING": "EXPIRED", "MISSING": "EXPIRED"},
}
"""A runner that was DRAINING when it went MISSING is told to drain again once it is back (`resume`, then `drain`)."""

JOB_STATES = (*STATES, "REMOVED")
"""A job's state is one byte: its place in this tuple. REMOVED is the tombstone of a removed job; nothing leaves it.

These bytes are on disk, one per job: `columns.states` in every database. So the order never changes and no name leaves.
A settled state may be appended here (not to STATES, which would move REMOVED), with a migration that adds it to the
database's `job_states`; any other change needs one that rewrites the columns, a live state too (below SETTLED).
"""

WAITING, PENDING, HOLDING, STARTING, RUNNING, MISSING, KILLING, COMPLETED, FAILED, ABORTED, OMITTED, REMOVED = range(12)
SETTLED = COMPLETED
"""States with this number or more are settled."""
QUEUED = (WAITING, PENDING, HOLDING)
ACTIVE = (STARTING, RUNNING, MISSING, KILLING)
UNSUCCESSFUL = (FAILED, ABORTED, OMITTED)

JOB_MOVES: dict[str, dict[int, int]] = {
    verb: {JOB_STATES.index(old): JOB_STATES.index(new) for old, new in moves.items() if old}
    for verb, moves in JOB.items()
}
"""The job table on state bytes."""
JOB_MOVES["remove"] = dict.fromkeys((*QUEUED, COMPLETED, *UNSUCCESSFUL), REMOVED)
KILLABLE = tuple(JOB_MOVES["kill"])


def move(table: Table, state: str, verb: str) -> str | None:
    """The state that the verb leads to, or None if the table has no such move."""
    return table.get(verb, {}).get(state)


def states(table: Table) -> list[str]:
    """Every state of a table, in order of appearance."""
    both = (state for moves in table.values() for pair in moves.items() for state in pair)
    return list(dict.fromkeys(state for state in both if state))


def diagram(table: Table) -> str:
    """The table as a Mermaid state diagram."""
    edges: dict[tuple[str, str], list[str]] = {}
    for verb, moves in table.items():
        for old, new in moves.items():
            edges.setdefault((old or "[*]", new), []).append(verb)
    lines = ["stateDiagram-v2"]
    lines.extend(f"    {old} --> {new}: {', '.join(verbs)}" for (old, new), verbs in edges.items())
    lines.extend(f"    {state} --> [*]" for state in states(table) if state.endswith("ED"))
    return "\n".join(lines)


def main() -> None:
    """Print the three diagrams, as they stand in docs/architecture.md."""
    for name, table in (("Job", JOB), ("Allocation", ALLOCATION), ("Runner", RUNNER)):
        print(f"### {name}\n\n```mermaid\n{diagram(table)}\n```\n")


if __name__ == "__main__":
    main()

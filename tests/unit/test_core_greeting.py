"""Which runners an allocation can have: TAG.ELEMENT.NODE.NONCE, and no more of them than it has nodes."""

import pytest

from rota.core.decide.greeting import stranger
from rota.core.evolve import evolve
from rota.core.state import Settings, State
from rota.model import events as ev
from rota.model.allocation import Allocation
from rota.model.needs import Amounts

TAG = "0123456789ab"


def state_with(nodes: int, *runners: str, direct: bool = False) -> State:
    """A state with one allocation and the runners that have greeted from it."""
    state = State(Settings())
    state.allocations["a1"] = Allocation("a1", "hpc", TAG, "RUNNING", element=2, nodes=nodes, direct=direct)
    for name in runners:
        evolve(state, ev.RunnerGreeted(name, "a1", 1, 1, "n1", 9, Amounts(1000), site="hpc"))
    return state


@pytest.mark.parametrize(
    ("nodes", "before", "runner", "may"),
    [
        (1, [], f"{TAG}.2.0.aa", True),
        (1, [f"{TAG}.2.0.aa"], f"{TAG}.2.0.bb", True),  # another process of the same node
        (1, [], f"{TAG}.2", True),  # of an older release
        (1, [], f"{TAG}.2.1.aa", False),  # a node that it has not
        (1, [], f"{TAG}.2.n1.aa", False),
        (1, [], f"{TAG}.3.0.aa", False),  # another element
        (1, [], "ba9876543210.2.0.aa", False),  # another submission
        (1, [], f"{TAG}.2.0.", False),
        (1, [], "r1", False),
        (3, [], f"{TAG}.2.n16-1.aa", True),  # of several nodes each is called as its host is
        (3, [f"{TAG}.2.n1.aa", f"{TAG}.2.n2.aa"], f"{TAG}.2.n3.aa", True),
        (3, [f"{TAG}.2.n1.aa", f"{TAG}.2.n2.aa", f"{TAG}.2.n3.aa"], f"{TAG}.2.n2.bb", True),
        (3, [f"{TAG}.2.n1.aa", f"{TAG}.2.n2.aa", f"{TAG}.2.n3.aa"], f"{TAG}.2.n4.aa", False),  # one too many
        (3, [], f"{TAG}.1.n1.aa", False),
        (3, [], f"{TAG}.2..aa", False),
    ],
)
def test_who_may_come(nodes: int, before: list[str], runner: str, may: bool) -> None:
    why = stranger(state_with(nodes, *before), "a1", runner)
    assert why is None if may else why == f"allocation a1 has no runner {runner}"


def test_a_direct_job_has_no_runner_that_greets() -> None:
    assert stranger(state_with(1, direct=True), "a1", f"{TAG}.2.0.aa") is not None


def test_one_of_an_allocation_that_nobody_knows_is_told_to_end() -> None:
    assert stranger(state_with(1), "a9", f"{TAG}.2.0.aa") is None
    assert stranger(state_with(1), None, "r1") is None

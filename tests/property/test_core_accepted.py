"""A submission that was accepted before is decided in few steps: always as one that nobody has seen."""

import random
from typing import Any

import msgspec
import pytest

from core_world import GIB, World
from rota.core.decide import decide, submissions
from rota.core.stimuli import Submit
from rota.model.batch import BatchSpec, Dependency, Template
from rota.model.errors import RotaError
from rota.model.needs import Amounts, Needs

SPECS = [
    BatchSpec(1, (Template(argv=("true",)),)),
    BatchSpec(1, (Template(argv=("true",), group="g"),), name="a"),
    BatchSpec(3, (Template(argv=("true",), needs=Needs(cores=3000)),), ranges=((1, 3, 1),)),
    BatchSpec(1, (Template(argv=("big",), needs=Needs(memory=4 * GIB), group="g"),)),
    BatchSpec(2, (Template(argv=("few",), limits=("lim",)),), ranges=((1, 2, 1),)),
    BatchSpec(1, (Template(argv=("shared",), policy="fair"),), name="b"),
    BatchSpec(1, (Template(argv=("after",)),), after=(Dependency("@a", live=True),), name="late"),
    BatchSpec(4, (Template(argv=("scouts",)),), scouts=1, ranges=((1, 4, 1),)),
    BatchSpec(1, (Template(argv=("once",)),), at_once=1),
    BatchSpec(1, (Template(argv=("x",), priority=999),)),
    BatchSpec(1, (Template(argv=("none",), policy="nowhere"),)),
]


def decided(world: World, stimulus: Submit) -> Any:
    try:
        decision = decide(world.state, stimulus)
    except RotaError as refusal:
        return type(refusal), str(refusal)
    return msgspec.structs.asdict(decision)


def copied(spec: BatchSpec) -> BatchSpec:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=BatchSpec)


@pytest.mark.parametrize("seed", range(30))
def test_the_decision_is_that_on_a_submission_which_nobody_has_seen(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    quick: list[int] = []
    accepted = submissions._accepted
    monkeypatch.setattr(submissions, "_accepted", lambda *args: quick.append(1) or accepted(*args))
    chance, world = random.Random(seed), World(check=False)
    for turn in range(120):
        if chance.random() < 0.15:
            what = chance.randrange(4)
            if what == 0:
                world.mode(chance.choice(("serving", "serving", "paused", "draining")))
            elif what == 1:
                node = chance.choice((Amounts(2000, GIB), Amounts(4000, 8 * GIB), Amounts(8000, 16 * GIB)))
                world.site("local", node)
            elif what == 2:
                world.limit("lim", chance.choice((1, 5, 9)))
            else:
                world.tick(5)
        elif world.state.mode != "serving":
            world.mode("serving")
        rare = SPECS if turn > 60 else [each for each in SPECS if each.name != "late"]  # from then on its name is open
        spec = chance.choice(rare if chance.random() < 0.5 else SPECS[:3])
        key = f"k{turn}" if chance.random() < 0.9 or not turn else f"k{turn - 1}"
        more: dict[str, Any] = {"limits": {"lim": 3}} if chance.random() < 0.1 else {}
        if chance.random() < 0.1:
            more["then"] = BatchSpec(1, (Template(shell="echo over"),))
        stimulus = Submit(at=world.at, by="ann", spec=spec, key=key, env=None, runs=None, **more)
        unseen = msgspec.structs.replace(stimulus, spec=copied(spec))
        assert decided(world, stimulus) == decided(world, unseen)
        try:
            world.step(stimulus)
        except RotaError:
            pass
        world.schedule()
    assert len(quick) > 10, "nothing was known"


def test_few_are_remembered_and_none_when_sites_say_something_new() -> None:
    world = World(check=False)
    kept = [BatchSpec(1, (Template(argv=(str(number),)),)) for number in range(200)]
    for number, spec in enumerate(kept):
        world.step(Submit(at=world.at, by="ann", spec=spec, key=f"k{number}", env=None, runs=None))
        assert len(world.state.soft.accepted) <= 64
    assert world.state.soft.accepted
    world.site("local", Amounts(1000, GIB))
    assert not world.state.soft.accepted

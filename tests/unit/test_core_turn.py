"""The turn of the loop, as every shell takes it."""

from core_world import World, lease_all
from rota.core.effects import Ack, Lease
from rota.core.step import Step
from rota.core.stimuli import At, Report, Submit, Tick
from rota.core.turn import Turn
from rota.model.batch import BatchSpec, Dependency, Template
from rota.model.errors import RotaError
from rota.model.events import Ended, Leased, Submitted


def test_a_turn_numbers_its_events_refuses_and_answers_in_order() -> None:
    world = World()
    world.submit(1)
    runner = world.start_runner()
    (job,) = lease_all(world, runner)
    before, at = world.state.seq, world.at
    outcomes: list[Step | RotaError] = []

    def submission(key: str, *after: str) -> Submit:
        spec = BatchSpec(1, (Template(argv=("true",)),), after=tuple(Dependency(word) for word in after))
        return Submit(at=at, by="ann", spec=spec, key=key)

    report = Report(at=at, by="r1", runner="r1", session=runner.session, seq=1, got=1, clock=0, ended=[world.row(job)])
    turn = Turn(world.core)
    turn.take(
        [
            (submission("x"), outcomes.append),
            (submission("y", "99"), outcomes.append),
            (report, None),
            (Tick(at=at), outcomes.append),
        ]
    )
    later = At(at.wall + 1, at.mono + 1)
    turn.schedule(later)

    assert [entry.seq for entry in turn.entries] == list(range(before + 1, world.state.seq + 1))
    assert {(type(entry.event), entry.at, entry.by) for entry in turn.entries} >= {
        (Submitted, at.wall, "ann"),
        (Ended, at.wall, "r1"),
        (Leased, later.wall, "rota"),
    }
    assert [(result.batch, result.state) for result in turn.results] == [(job[0], "COMPLETED")]
    assert [type(effect) for effect in turn.effects] == [Ack, Lease]
    assert not outcomes, "nobody is answered before that is asked for"
    turn.answer()
    added, refused, ticked = outcomes
    assert isinstance(added, Step) and added.reply["batch"] == 2
    assert isinstance(refused, RotaError)
    assert isinstance(ticked, Step)

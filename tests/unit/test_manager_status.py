"""The status of many batches: in brief, page by page, and what `rota status` prints of it."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from core_world import World
from rota.cli import status as command
from rota.manager.answers.status import LIVE_SHOWN, NAMES_SHOWN, SETTLED_SHOWN, status
from rota.wire import messages
from rota.wire.frames import MAX_FRAME
from rota.wire.messages import Status


def of_many(settled: int, live: int, name: str = "old") -> World:
    world = World(check=False)
    for _ in range(settled):
        world.change("kill", str(world.submit(1, name=name)))
    for _ in range(live):
        world.submit(2)
    return world


def ask(world: World, **arguments: Any) -> dict[str, Any]:
    return status(world.state, msgspec.convert(arguments, Status), world.at)


def test_in_brief_it_has_what_lives_and_the_last_that_are_settled() -> None:
    world = of_many(settled=50, live=3)
    answer = ask(world, brief=True)
    assert [row["id"] for row in answer["batches"]] == [*range(51 - SETTLED_SHOWN, 51), 51, 52, 53]
    assert answer["total"] == {"batches": 53, "live": 3, "jobs": 56}
    assert answer["counts"] == {"ABORTED": 50, "PENDING": 6}
    hidden = 50 - SETTLED_SHOWN
    assert answer["more"] == [{"name": "old", "batches": hidden, "jobs": hidden, "counts": {"ABORTED": hidden}}]


def test_in_brief_many_that_live_are_counted_by_name() -> None:
    world = of_many(settled=0, live=LIVE_SHOWN + 5)
    for number in range(NAMES_SHOWN + 3):
        world.submit(1, name=f"n{number}")
    answer = ask(world, brief=True)
    assert [row["id"] for row in answer["batches"]] == list(range(1, LIVE_SHOWN + 1))
    first, last = answer["more"][0], answer["more"][-1]
    assert (first["name"], first["batches"], first["jobs"]) == ("", 5, 10)
    assert (last["name"], last["names"], last["batches"]) == (None, 4, 4)
    assert sum(row["batches"] for row in answer["more"]) == 5 + NAMES_SHOWN + 3


def test_all_come_page_by_page_and_every_page_fits_into_a_message() -> None:
    world = World(check=False)
    for _ in range(3000):
        world.submit(1, name="\u20ac" * 128)
    seen, after, pages = [], 0, 0
    while after is not None:
        page = ask(world, after=after)
        assert len(messages.encode({"t": "answer", "id": 1, **page})) < MAX_FRAME
        seen += [row["id"] for row in page["batches"]]
        after, pages = page["next"], pages + 1
        assert page["total"]["batches"] == 3000
    assert seen == list(range(1, 3001)) and pages > 1


def test_states_select_what_is_counted() -> None:
    world = of_many(settled=30, live=1)
    answer = ask(world, sel=[":aborted"], brief=True)
    assert answer["total"] == {"batches": 30, "live": 0, "jobs": 30} and len(answer["batches"]) == SETTLED_SHOWN
    assert ask(world, sel=["3", "31"], brief=True)["counts"] == {"ABORTED": 1, "PENDING": 2}


@pytest.mark.parametrize("every", [False, True])
def test_the_command_prints_few_lines_and_a_total(
    every: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = of_many(settled=200, live=1)

    class Manager:
        def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
            return ask(world, **arguments)

    @contextmanager
    def look(args: argparse.Namespace) -> Iterator[Manager]:
        yield Manager()

    monkeypatch.setattr(command, "look", look)
    command.execute(argparse.Namespace(selector=[], json=False, all=every))
    lines = capsys.readouterr().out.splitlines()
    total = "201 batches, 1 of them live: 2 PENDING, 200 ABORTED"
    if every:
        assert len(lines) == 1 + 201 + 1 and lines[-1] == total
    else:
        assert len(lines) == 1 + 1 + SETTLED_SHOWN + 1 + 1 and lines[-1] == f"{total}; each of them: --all"
        assert lines[1].split() == ["180", "more", "old", "180", "-", "180"]

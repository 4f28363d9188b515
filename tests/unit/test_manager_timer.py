"""The manager's timer: it never comes after the next Tick is due, and is not set anew because that has moved on."""

from types import SimpleNamespace
from typing import Any

from rota.core.stimuli import Tick
from rota.manager.service import Manager


class Loop:
    """A loop whose time stands still until it is told."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Any] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Any) -> Any:
        timer = SimpleNamespace(when=lambda: when, call=call, over=False)
        timer.cancel = lambda: setattr(timer, "over", True)
        self.timers.append(timer)
        return timer

    def run_to(self, now: float) -> None:
        while due := [timer for timer in self.timers if not timer.over and timer.when() <= now]:
            first = min(due, key=lambda timer: timer.when())
            first.over = True
            self.now = first.when()
            first.call()
        self.now = now


def test_it_is_set_anew_only_for_what_comes_sooner() -> None:
    deadlines, loop, ticks = {"next": 5.0}, Loop(), []
    manager: Any = Manager.__new__(Manager)
    manager.loop, manager._timer, manager._due = loop, None, 0.0
    manager.core = SimpleNamespace(next_deadline=lambda at: deadlines["next"])

    def tell(stimulus: Any) -> None:
        assert isinstance(stimulus, Tick)
        ticks.append(loop.now)
        deadlines["next"] = loop.now + 10
        manager._arm()

    manager.tell = tell
    manager._arm()
    for due in (6.0, 7.0, 9.0):
        deadlines["next"] = due
        manager._arm()
    assert len(loop.timers) == 1, "a deadline that moves on costs nothing"
    loop.run_to(8.9)
    assert ticks == [], "it came at 5, and was not due"
    loop.run_to(9.5)
    assert ticks == [9.0]
    deadlines["next"] = 12.0
    manager._arm()
    deadlines["next"] = 11.0
    manager._arm()
    loop.run_to(12.5)
    assert ticks == [9.0, 11.0], "what comes sooner is seen at its time"

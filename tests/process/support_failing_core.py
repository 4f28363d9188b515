"""A manager whose core has bugs: `python support_failing_core.py HOME`. Limits named `decide` and `evolve` find them.

While there is a file `no-pass` in the home, the scheduling pass fails.
"""

import os
import sys
from typing import Any

from rota.core import decide, step
from rota.core.stimuli import SetLimits
from rota.manager import __main__ as manager
from rota.model.events import LimitSet

HOME = sys.argv[1]
real_evolve, real_plan, real_limits = step.evolve, step.plan, decide._DECIDE[SetLimits]


def evolve(state: Any, event: Any) -> None:
    """Fail at the limit `evolve`, having done it."""
    real_evolve(state, event)
    if isinstance(event, LimitSet) and event.name == "evolve":
        raise AssertionError("a bug in evolve")


def plan(state: Any, at: Any) -> Any:
    """Fail while the file is there."""
    if os.path.exists(os.path.join(HOME, "no-pass")):
        raise AssertionError("a bug in the pass")
    return real_plan(state, at)


def set_limits(state: Any, stimulus: Any) -> Any:
    """Fail at the limit `decide`."""
    if "decide" in stimulus.counts:
        raise KeyError("a bug in decide")
    return real_limits(state, stimulus)


if __name__ == "__main__":
    step.evolve, step.plan = evolve, plan
    decide._DECIDE[SetLimits] = set_limits
    sys.argv = ["rota.manager", "--home", HOME]
    sys.exit(manager.main())

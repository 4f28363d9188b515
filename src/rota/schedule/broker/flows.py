"""The flows: production, analysis, and those that other packages bring (entry points in the group `rota.flows`)."""

from collections.abc import Callable

from msgspec import Struct

from rota.model.errors import UsageError
from rota.schedule.broker.analysis import broker_analysis
from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.decision import Decision
from rota.schedule.broker.production import broker_production
from rota.schedule.broker.task import Task
from rota.schedule.broker.world import World

__all__ = ["FLOWS", "Flow", "broker", "flow_of"]


class Flow(Struct, frozen=True):
    """A way to broker tasks."""

    decide: Callable[[Task, World, Thresholds], Decision]
    about: str = ""


FLOWS: dict[str, Flow] = {
    "production": Flow(broker_production, "jobs of an organisation, which write to a nucleus"),
    "analysis": Flow(broker_analysis, "jobs of users, which go where their input is"),
}
"""Name → flow."""


def flow_of(task: Task) -> str:
    """The flow of a task that names none."""
    return "analysis" if task.prod_source_label in ("user", "panda") else "production"


def broker(task: Task, world: World, thresholds: Thresholds, flow: str | None = None) -> Decision:
    """Decide which queues get the jobs of a task."""
    name = flow or flow_of(task)
    found = FLOWS.get(name)
    if found is None:
        raise UsageError(f"there is no flow '{name}'; there are {', '.join(sorted(FLOWS))}")
    return found.decide(task, world, thresholds)

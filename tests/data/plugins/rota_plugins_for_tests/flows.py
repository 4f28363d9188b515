"""The production flow with a check and a factor more, as docs/howto/brokerage.md has it, and one that fails."""

from functools import partial

from rota.schedule.broker.context import Check
from rota.schedule.broker.decision import Skip
from rota.schedule.broker.flows import Flow
from rota.schedule.broker.production import CHECKS, broker_production
from rota.schedule.broker.weight import Factor


def small(context):
    if context.n_files < 10:
        return None
    no = Skip("-small", f"{context.n_files} files are too many for it")
    return lambda queue: no if queue.has("small") else None


def green(context):
    return lambda queue: 2.0 if queue.has("green") else 1.0


CHECK, FACTOR = Check("small queues", small), Factor("green", green)
STRICT = Flow(partial(broker_production, checks=(*CHECKS, CHECK), factors=(FACTOR,), name="strict"))


def fails(task, world, thresholds):
    raise RuntimeError("no idea")


FAILING = Flow(fails)

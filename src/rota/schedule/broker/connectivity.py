"""Connectivity: `full`, `http` or `none`, with `#IPv4` or `#IPv6`, of a queue and as a task asks for it."""

from collections.abc import Callable

from rota.schedule.broker.context import Context
from rota.schedule.broker.decision import Skip
from rota.schedule.broker.queue import Queue

__all__ = ["check_connectivity", "connected"]


def connected(asked_net: str | None, asked_stack: str | None, has: str | None) -> bool:
    """Whether a queue's connectivity is what a task asks for. `none` asks for nothing."""
    net, _, stack = (has or "none").partition("#")
    if asked_net not in (None, "", "none") and net != "full" and not (net == "http" and asked_net == "http"):
        return False
    return not asked_stack or asked_stack == stack


def check_connectivity(context: Context) -> Callable[[Queue], Skip | None] | None:
    """The queue's nodes must reach what the task asks for."""
    net, _, stack = (context.rules.ip_connectivity or "").partition("#")
    stack = stack or context.rules.ip_stack or ""
    if net in ("", "none") and not stack:
        return None
    asked = f"{net}#{stack}" if stack else net

    def check(queue: Queue) -> Skip | None:
        has = queue.wnconnectivity
        if connected(net, stack, has):
            return None
        words = f"the task asks for connectivity {asked}, it has {has or 'none'}"
        return Skip("-network", words, numbers={"asked": asked, "has": has})

    return check

"""Plugins: parts of policies, policies and flows that other packages bring as entry points, found once at the start.

The pure packages import nothing by name: what is found is entered here into their registries, each part in a fence
(`rota.schedule.fences`), and a timer watches over those that do not come back. What cannot be loaded is left out, and
named by `rota plugins` and `rota doctor`.
"""

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

import rota
from rota.model.errors import UsageError
from rota.model.needs import NAME
from rota.schedule import filters, orders, picks, scorers
from rota.schedule.broker.flows import FLOWS, Flow
from rota.schedule.broker.placing import enter_flow
from rota.schedule.fences import TooLongError, Watch, fenced
from rota.schedule.policy import POLICIES, Policy, brokered, check_policy_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Plugin", "load_plugins", "watched"]

REGISTRIES: dict[str, dict[str, Any]] = {
    "filter": filters.BUILT_IN,
    "scorer": scorers.BUILT_IN,
    "order": orders.BUILT_IN,
}
KINDS = ("filter", "scorer", "order", "policy", "flow")
"""Kinds that can be brought; policies after what they name. The group of a kind is `rota.` and its plural."""
GROUPS = {kind: f"rota.{kind}s" if kind != "policy" else "rota.policies" for kind in KINDS}
BUDGET_S = 2.0
"""A part that does not answer for so long, or up to twice that, is given up."""

_watch = Watch()
_found: list["Plugin"] = []


class Plugin(Struct, frozen=True):
    """One part of policies, and where it comes from."""

    kind: str
    name: str
    source: str
    """`rota`, the package that brings it, or `configuration`."""
    version: str
    value: str = ""
    """The entry point: `package.module:attribute`."""
    problem: str | None = None
    """Why it is left out."""


def configured(plugins: list[Plugin], policies: Iterable[str]) -> list[Plugin]:
    """The plugins, with the policies of these names that only the configuration has."""
    known = {plugin.name for plugin in plugins if plugin.kind == "policy"}
    return [*plugins, *(Plugin("policy", name, "configuration", "") for name in sorted(set(policies) - known))]


def load_plugins() -> list[Plugin]:
    """All that there is: what rota has, then what others bring. The first call enters that into the registries."""
    if not _found:
        from importlib.metadata import entry_points  # it takes longer to import than most commands take

        more: dict[str, dict[str, Any]] = {"pick": picks.BUILT_IN, "policy": POLICIES, "flow": FLOWS}
        registries: dict[str, dict[str, Any]] = {**REGISTRIES, **more}
        own = [
            Plugin(kind, name, "rota", rota.__version__) for kind, registry in registries.items() for name in registry
        ]
        _found.extend(own)
        for kind in KINDS:
            points = sorted(entry_points(group=GROUPS[kind]), key=lambda point: (point.name, point.value))
            _found.extend([_load(kind, point) for point in points])
    return list(_found)


def _load(kind: str, point: "EntryPoint") -> Plugin:
    source, version = (point.dist.name, point.dist.version) if point.dist is not None else ("?", "?")
    plugin = Plugin(kind, point.name, source, version, point.value)
    taken = next((known for known in _found if (known.kind, known.name) == (kind, point.name)), None)
    try:
        if not NAME.fullmatch(point.name):
            raise UsageError("its name has other signs than letters, digits, '_', '.', '-'")
        if taken is not None and taken.problem is None:
            raise UsageError(f"{taken.source} has a {kind} of that name already")
        part = point.load()
        if kind == "policy":
            if not isinstance(part, Policy):
                raise TypeError(f"a policy is made with rota.schedule.policy.Policy(…), not {type(part).__name__}")
            check_policy_names(part)
            POLICIES[point.name] = part
        elif kind == "flow":
            if not isinstance(part, Flow):
                raise TypeError(f"a flow is made with rota.schedule.broker.flows.Flow(…), not {type(part).__name__}")
            _enter_flow(point.name, part)
        else:
            made = fenced(kind, point.name, part, _watch)
            REGISTRIES[kind][point.name] = made
    except BaseException as error:  # whatever their module does: SystemExit too
        if isinstance(error, KeyboardInterrupt):
            raise
        words = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        return Plugin(kind, point.name, source, version, point.value, words.replace("\n", " ")[:300])
    return plugin


def _enter_flow(name: str, flow: Flow) -> None:
    """A flow is a filter and a scorer of its name too, in a fence as those of others are, and a policy of these."""
    for kind in ("filter", "scorer"):
        if name in REGISTRIES[kind]:
            raise UsageError(f"there is a {kind} of that name already")
    FLOWS[name] = flow
    enter_flow(name)
    for kind in ("filter", "scorer"):
        REGISTRIES[kind][name] = fenced(kind, name, REGISTRIES[kind][name], _watch)
    POLICIES.setdefault(name, brokered(name))


@contextlib.contextmanager
def watched(budget_s: float = BUDGET_S) -> Iterator[None]:
    """While this lasts, a foreign part that does not come back is given up: the pass goes on without it.

    The timer fires in the main thread, and raises only while such a part is being asked: anywhere else it would leave
    the core half done. It costs a signal every `budget_s`, and nothing per question. What loops in C, as a regular
    expression may, is not reached.
    """
    foreign = any(plugin.source != "rota" for plugin in _found)
    if not foreign or threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = -1

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if _watch.inside is None:
            seen = -1
        elif _watch.asked != seen:
            seen = _watch.asked
        else:
            raise TooLongError(f"did not answer for {budget_s:g} s")

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, budget_s, budget_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

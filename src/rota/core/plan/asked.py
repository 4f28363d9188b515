"""What is asked for a shape: the needs that users gave, with what was learned from its group."""

from msgspec.structs import replace

from rota.core.soft import ShapeMemo
from rota.core.state import ShapeState, State
from rota.model.needs import Amounts, Needs
from rota.model.shape import Shape
from rota.schedule.estimate import Found, Group, asked_for, learned_words

__all__ = ["asked_now", "largest_node", "longest_time", "unoffered", "what_was_learned"]


def asked_now(state: State, shape: ShapeState) -> ShapeMemo:
    """The memo of a shape, up to date with what was learned from its group."""
    memo = state.soft.planning.shapes.get(shape.id) or ShapeMemo(shape.shape)
    group = state.groups.get(shape.shape.group) if shape.shape.group else None
    if group is None:
        return memo
    given = shape.shape
    most, found = largest_node(state, given.needs), _found(state, given, group)
    basis = (found, most)
    if basis == memo.learned:
        return memo
    needs = asked_for(given.needs, found, given.override, given.level, most, given.ends)
    return replace(memo, learned=basis, asked=memo.asked if needs == memo.asked.needs else replace(given, needs=needs))


def _found(state: State, shape: Shape, group: Group) -> Found:
    return group.scouted(state.settings.thresholds) if shape.scout == "rest" else group.found()


def what_was_learned(state: State, shape: Shape) -> list[str]:
    """What was learned of a shape's group beside what its users said, and what its jobs get."""
    group = state.groups.get(shape.group) if shape.group else None
    if group is None:
        return []
    most, found = largest_node(state, shape.needs), _found(state, shape, group)
    asked = asked_for(shape.needs, found, shape.override, shape.level, most, shape.ends)
    return learned_words(shape.needs, asked, found, group.seen())


def unoffered(state: State, needs: Needs) -> str | None:
    """Which named resources are offered nowhere, in words, with those that are and where; None: all are."""
    offered: dict[str, dict[str, None]] = {}
    for site, facts in state.soft.sites.items():
        places = [(site, facts.node.named), (site, facts.shared)]
        places += [(f"{site}/{queue.name}", queue.node.named) for queue in facts.queues]
        for place, named in places:
            for name, count in named:
                if count:
                    offered.setdefault(name, {})[place] = None
    missing = [name for name, _ in needs.named if name not in offered]
    if not missing:
        return None
    there = "; ".join(f"{name} at {', '.join(places)}" for name, places in sorted(offered.items()))
    return (
        f"no site offers the resource {', '.join(missing)}; offered are: {there or 'none'} (see rota sites; a site "
        "offers what it has in config.toml as resources, node_resources, or native_resources)"
    )


def largest_node(state: State, needs: Needs) -> Amounts | None:
    """The most memory and disk of any node that jobs with such needs can have; None if no site is known."""
    memory = disk = -1
    for name, facts in state.soft.sites.items():
        if needs.site in (None, name) and (needs.nodes <= facts.nodes_most or facts.mode == "direct"):
            memory = max(memory, facts.node.memory)
            disk = max(disk, facts.node.disk)
    return None if memory < 0 else Amounts(memory=memory, disk=disk)


def longest_time(state: State, needs: Needs) -> int | None:
    """The longest allocation, in seconds, that jobs with such needs can have; None: no end is known."""
    times: list[int | None] = []
    for name, facts in state.soft.sites.items():
        if needs.site in (None, name):
            queues = [queue for queue in facts.queues if (queue.name == needs.queue if needs.queue else queue.auto)]
            times += [queue.time_most_s for queue in queues] or [facts.time_most_s]
    known = [time_s for time_s in times if time_s is not None]
    return max(known) if known and len(known) == len(times) else None

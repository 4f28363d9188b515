"""Decisions of the brokerage, for people and as JSON."""

from rota.cli.show import Table, clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from rota.schedule.broker.decision import Candidate, Decision


def print_decision(decision: "Decision", oddities: "Sequence[str]" = ()) -> None:
    """Print the funnel, why each queue was skipped, and each weight with what it is made of."""
    locality = {None: "", True: ", input must be local", False: ", input need not be local"}[decision.locality]
    print(f"flow {decision.flow}, profile {decision.profile}{locality}")
    print(f"{decision.initial} candidates")
    for step in decision.steps:
        print(f"  {step.before} → {step.after} candidates, {step.cut} % cut: {step.name}")
    if decision.status == "SUCCEEDED":
        print(f"{len(decision.candidates)} left")
    else:
        after = "" if not decision.pending_minutes else f"; it is tried again after {decision.pending_minutes:g} min"
        print(f"FAILED: {clean(decision.reason)}{after}")
    if decision.skipped:
        print()
        table = Table("SKIPPED", "TAG", "WAITING HELPS", "WEIGHT", "WHY")
        table.print(
            [
                (name, skip.tag or "", "no" if skip.lasting else "yes", _weight(skip.weight), clean(skip.words))
                for name, skip in sorted(decision.skipped.items())
            ]
        )
    if decision.candidates:
        print()
        Table("USED", "WEIGHT", "FACTORS", "FROM").print([_row(one) for one in decision.candidates])
    for words in [*decision.warnings, *oddities]:
        print(f"note: {clean(words)}")


def _weight(value: "float | None") -> str:
    return "" if value is None else f"{value:.6f}"


def _row(one: "Candidate") -> "tuple[str, str, str, str]":
    factors = " × ".join(f"{name} {value:.6g}" for name, value in one.factors)
    if one.bootstrap:
        factors = "idle: it gets jobs first"
    known = [
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}" for name, value in _said(one.inputs)
    ]
    return one.queue, _weight(one.weight), factors, ", ".join(known)


def _said(inputs: "Mapping[str, Any]") -> "list[tuple[str, Any]]":
    hidden = inputs.get("running_from") == "running"
    return [
        (name, value) for name, value in inputs.items() if value is not None and not (hidden and name == "running_from")
    ]


def as_json(decision: "Decision", oddities: "Sequence[str]" = ()) -> "dict[str, Any]":
    """A decision as JSON has it."""
    return {
        "flow": decision.flow,
        "profile": decision.profile,
        "status": decision.status,
        "reason": decision.reason,
        "throttled": decision.throttled,
        "pending_minutes": decision.pending_minutes,
        "locality": decision.locality,
        "initial": decision.initial,
        "steps": [
            {"filter": step.name, "before": step.before, "after": step.after, "cut_percent": step.cut}
            for step in decision.steps
        ],
        "skipped": {
            name: {
                "tag": skip.tag,
                "check": decision.by.get(name, ""),
                "lasting": skip.lasting,
                "why": skip.words,
                "numbers": dict(skip.numbers),
                "weight": skip.weight,
            }
            for name, skip in sorted(decision.skipped.items())
        },
        "candidates": [
            {
                "queue": one.queue,
                "weight": one.weight,
                "bootstrap": one.bootstrap,
                "factors": [{"name": name, "value": value} for name, value in one.factors],
                "inputs": dict(one.inputs),
            }
            for one in decision.candidates
        ],
        "notes": [*decision.warnings, *oddities],
    }


def _fate(decision: "Decision", queue: str) -> str:
    for number, one in enumerate(decision.candidates, 1):
        if one.queue == queue:
            return f"used ({number}., weight {one.weight:.6g})"
    skip = decision.skipped.get(queue)
    return "no candidate" if skip is None else f"skipped {skip.tag or ''} ({skip.words})"


def _queues(before: "Decision", after: "Decision") -> "list[str]":
    names = {*before.skipped, *after.skipped, *(one.queue for one in (*before.candidates, *after.candidates))}
    return sorted(names)


def compare_json(name: str, before: "Decision", after: "Decision") -> "dict[str, Any]":
    """Two decisions about one task, and the queues whose fate differs."""
    differs = {
        queue: {"before": _fate(before, queue), "after": _fate(after, queue)}
        for queue in _queues(before, after)
        if _fate(before, queue) != _fate(after, queue)
    }
    return {"task": name, "before": as_json(before), "after": as_json(after), "differs": differs}


def print_comparison(name: str, before: "Decision", after: "Decision") -> None:
    """Print what would be different for one task."""
    rows = [
        (queue, clean(_fate(before, queue)), clean(_fate(after, queue)))
        for queue in _queues(before, after)
        if _fate(before, queue) != _fate(after, queue)
    ]
    words = f"task {clean(name)}: {before.status}, {len(before.candidates)} queues"
    if not rows and before.status == after.status:
        print(f"{words}; nothing changes")
        return
    print(f"{words} → {after.status}, {len(after.candidates)} queues; {len(rows)} queues fare otherwise")
    if after.status != before.status and after.reason:
        print(f"  {clean(after.reason)}")
    if rows:
        Table("QUEUE", "NOW", "THEN").print(rows)

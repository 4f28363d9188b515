"""The status: how many jobs are in which state, batch by batch or in brief, and why what waits does."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec

from rota.core.decide.modes import pause_rows
from rota.core.explain import Records, batch_reasons
from rota.core.selection import select, wanted_states
from rota.core.settled import AnyBatch
from rota.core.state import BatchState, State
from rota.core.stimuli import At
from rota.model.selector import Selector, parse_selector
from rota.model.tables import JOB_STATES, PENDING, REMOVED, SETTLED
from rota.wire.messages import Status

__all__ = ["count_jobs", "counts_of", "status"]

WHY_SHOWN = 1000
"""Batches of which a status says why they wait."""
AFTER_SHOWN = 100
"""Dependencies of a batch that its row shows."""
PAGE = 1 << 20
"""Characters of batches in one answer, about, so that it fits into a message."""
LIVE_SHOWN = 100
"""Batches that live, in a brief status."""
SETTLED_SHOWN = 20
"""Batches that are settled, in a brief status: the last."""
NAMES_SHOWN = 20
"""Names of batches that a brief status does not show one by one."""

_LIVE = frozenset(JOB_STATES[:SETTLED])
_MOVING = frozenset(JOB_STATES[PENDING + 1 : SETTLED])

Counts = dict[str, int]


def status(state: State, args: Status, at: At, records: Records | None = None) -> dict[str, Any]:
    """Counts per batch, and why what waits does: a page of all batches, or those that live and the last settled."""
    counted = _counted(state, parse_selector(args.sel))
    totals: Counts = {}
    for counts in counted.values():
        _add(totals, counts)
    live = [number for number, counts in counted.items() if not _LIVE.isdisjoint(counts)]
    answer: dict[str, Any] = {"counts": totals}
    if args.brief:
        shown = _in_brief(counted, live)
        answer["more"] = _by_name(state, counted, shown)
        batches = [batch for batch in map(state.batches.look, shown) if batch is not None]
    else:
        batches, answer["next"] = _page(state, counted, args.after)
    return answer | {
        "batches": [_row(batch, counted[batch.id]) for batch in batches],
        "total": {"batches": len(counted), "live": len(live), "jobs": sum(totals.values())},
        "state": state.mode,
        "why": [
            {"batch": number, "reason": why} for number, why in batch_reasons(state, batches[-WHY_SHOWN:], at, records)
        ],
        "pauses": pause_rows(state.pauses),
    }


def _counted(state: State, selector: Selector) -> dict[int, Counts]:
    """Batch → how many of its selected jobs are in which state, by number; without batches of which there are none."""
    out: dict[int, Counts] = {}
    for batch, low, high in select(state, selector):
        counts = _counts(batch, low, high, selector)
        if batch.id in out:
            _add(out[batch.id], counts)
        elif counts:
            out[batch.id] = counts
    return dict(sorted(out.items()))


def _in_brief(counted: dict[int, Counts], live: list[int]) -> list[int]:
    """The batches that live (if too many, first those in which something goes on), and the last that are settled."""
    if len(live) > LIVE_SHOWN:
        live = sorted(live, key=lambda number: _MOVING.isdisjoint(counted[number]))[:LIVE_SHOWN]
    settled = (number for number in reversed(counted) if _LIVE.isdisjoint(counted[number]))
    return sorted([*live, *islice(settled, SETTLED_SHOWN)])


def _by_name(state: State, counted: dict[int, Counts], shown: Iterable[int]) -> list[dict[str, Any]]:
    """What is not shown batch by batch, by name, those of the most jobs first; the last row is of all other names."""
    rows: dict[str, dict[str, Any]] = {}
    hidden = counted.keys() - set(shown)
    for number in hidden:
        batch = state.batches.peek(number)
        _include(rows.setdefault(batch.name if batch is not None else "", _group()), counted[number])
    found = sorted(rows.items(), key=lambda item: (-item[1]["jobs"], item[0]))
    out = [{"name": name, **row} for name, row in found[:NAMES_SHOWN]]
    if rest := found[NAMES_SHOWN:]:
        other = _group()
        for _, row in rest:
            _include(other, row["counts"], row["batches"])
        out.append({"name": None, "names": len(rest), **other})
    return out


def _group() -> dict[str, Any]:
    return {"batches": 0, "jobs": 0, "counts": {}}


def _include(row: dict[str, Any], counts: Counts, batches: int = 1) -> None:
    row["batches"] += batches
    row["jobs"] += sum(counts.values())
    _add(row["counts"], counts)


def _page(state: State, counted: dict[int, Counts], after: int) -> tuple[list[BatchState], int | None]:
    """The batches beyond a number that fit into one answer, and where the next page goes on; None: there is none."""
    out: list[BatchState] = []
    size = 0
    for number in counted:
        batch = state.batches.look(number) if number > after else None
        if batch is None:
            continue
        spec = batch.spec
        size += 250 + len(spec.name) + sum(60 + len(one.target) for one in spec.after[:AFTER_SHOWN])
        if size > PAGE and out:
            return out, out[-1].id
        out.append(batch)
    return out, None


def _row(batch: BatchState, counts: Counts) -> dict[str, Any]:
    return {
        "id": batch.id,
        "name": batch.spec.name,
        "jobs": sum(counts.values()),
        "counts": counts,
        "submitted": batch.submitted,
        "priority": max(template.priority for template in batch.templates),
        "ends": batch.spec.ends,
        "after": [msgspec.to_builtins(dependency) for dependency in batch.spec.after[:AFTER_SHOWN]],
        "not_before": batch.spec.not_before,
        "at_once": batch.spec.at_once,
        "max_failures": batch.spec.max_failures,
    }


# ---- counts ---------------------------------------------------------------------------------------------------------


def count_jobs(state: State, words: list[str]) -> dict[str, Any]:
    """How many of the selected jobs are in which state."""
    selector = parse_selector(words)
    totals: Counts = {}
    for batch, low, high in select(state, selector):
        _add(totals, _counts(batch, low, high, selector))
    return {"jobs": sum(totals.values()), "counts": totals}


def counts_of(batch: AnyBatch) -> Counts:
    """How many jobs of a batch are in which state, without states that no job is in."""
    if batch.count == 1:
        number = batch.states[0]
        return {JOB_STATES[number]: 1} if number != REMOVED else {}
    counts = batch.counts
    return {name: counts[number] for number, name in enumerate(JOB_STATES) if counts[number] and number != REMOVED}


def _counts(batch: AnyBatch, low: int, high: int, selector: Selector) -> Counts:
    if low == 0 and high == batch.count and not selector.states:
        return counts_of(batch)
    states = batch.states
    return {
        JOB_STATES[number]: count
        for number in sorted(wanted_states(selector))
        if (count := states.count(number, low, high))
    }


def _add(totals: Counts, counts: Counts) -> None:
    for name, count in counts.items():
        totals[name] = totals.get(name, 0) + count

"""Everything that is known of a job's specification, and what jobs of each name used in all."""

import math
from typing import Any

import msgspec

from rota.core.explain.waiting import standing
from rota.core.plan.asked import asked_now, what_was_learned
from rota.core.state import BatchState, State
from rota.manager.answers.jobs import find_job, selected
from rota.manager.answers.status import counts_of
from rota.manager.jobbook import JobBook
from rota.model.command import BEHAVIOURS
from rota.model.tables import JOB_STATES
from rota.store.api import Store, Sums

__all__ = ["batches_of", "show", "totals"]


def show(state: State, store: Store, book: JobBook, job: str) -> dict[str, Any]:
    """The specification of a job, with what was learned and changed since it was submitted."""
    batch, pos = find_job(state, job)
    number = batch.template_of(pos)
    template, attempt = batch.templates[number], max(batch.attempts[pos], 1)
    shape = state.shapes[batch.shapes[number]]
    value = book.value(batch, pos)
    environment = store.environment(batch.env) if template.env_from == "submit" and batch.env else {}
    return {
        "job": job,
        "state": JOB_STATES[batch.states[pos]],
        "batch": batch.id,
        "name": batch.spec.name,
        "by": batch.by,
        "submitted": batch.submitted,
        "attempts": batch.attempts[pos],
        "command": book.command(batch, pos, attempt),
        "values": dict(zip(batch.spec.columns, _listed(value), strict=False)) if batch.spec.columns else None,
        **{name: book.path(batch, pos, attempt, name) for name in ("cwd", "stdin", "stdout", "stderr")},
        "environment_from": template.env_from,
        "environment": environment,
        "set": {**template.set, **(book.maker(batch, number).variables(value) or {})},
        "modules": list(template.modules),
        "setup": template.setup,
        "needs": msgspec.to_builtins(template.needs),
        "needs_words": template.needs.words(),
        "asks_now": asked_now(state, shape).asked.needs.words(),
        "learned": what_was_learned(state, shape.shape),
        "priority": template.priority,
        "policy": template.policy,
        "group": template.group,
        "override": template.override,
        "limits": list(template.limits),
        "at_once": batch.spec.at_once,
        "max_failures": batch.spec.max_failures,
        "scouts": batch.spec.scouts,
        "retries": template.retries,
        "retry_on": list(template.retry_on),
        "never_retry_on": list(template.never_retry_on),
        "no_retry_after_s": template.no_retry_after_s,
        "rerunnable": template.rerunnable,
        "enforce": list(template.enforce),
        "grace_s": template.grace_s,
        "output_cap": template.cap,
        "workdir": template.workdir,
        "cleanup": template.cleanup,
        "behaviours": {name: _behaviour(book, batch, pos, attempt, name) for name in BEHAVIOURS},
        "not_before": batch.spec.not_before,
        "after": [
            {**msgspec.to_builtins(each), "stands": standing(state, each, batch)[0]} for each in batch.spec.after
        ],
        "ends": batch.spec.ends,
        "changes": _changes(batch, number),
    }  # fmt: skip


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) or value is None else list(value)


def _behaviour(book: JobBook, batch: BatchState, pos: int, attempt: int, name: str) -> Any:
    """Command lines that are run after the job, filled in."""
    maker = book.maker(batch, batch.template_of(pos))
    if name in maker.behaviours:
        return maker.behaviour(name, book.value(batch, pos), batch.index(pos), attempt)
    return list(getattr(batch.template(pos), name))


def _changes(batch: BatchState, number: int) -> dict[str, Any]:
    """Field → [as submitted, now] of a template that jobs were changed to."""
    if number < len(batch.spec.templates):
        return {}
    now = msgspec.to_builtins(batch.templates[number])
    # Which of the templates that were submitted it was made from is not kept: the nearest is taken.
    before = min(
        (msgspec.to_builtins(template) for template in batch.spec.templates),
        key=lambda old: sum(old.get(name) != now.get(name) for name in {*old, *now}),
    )
    return {
        name: [before.get(name), now.get(name)]
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name) and name != "over"
    }


# ---- totals ----------------------------------------------------------------------------------------------------------


def batches_of(state: State, words: list[str]) -> list[int] | None:
    """The batches whose sums are wanted; None: all, so that no list of thousands goes into a query."""
    found = {batch.id for batch, _, _ in selected(state, words)} if words else None
    return sorted(found) if found is not None and len(found) <= 500 else None


def totals(state: State, words: list[str], sums: list[Sums]) -> dict[str, Any]:
    """By name (or batch that has none), how many jobs are in which state, and what those that succeeded used."""
    by_batch = {row.batch: row for row in sums}
    rows: dict[str, dict[str, Any]] = {}
    used: dict[str, list[Sums]] = {}
    for batch in {batch.id: batch for batch, _, _ in selected(state, words)}.values():
        name = batch.name or str(batch.id)
        row = rows.setdefault(name, {"name": batch.name or None, "batches": [], "jobs": 0, "counts": {}})
        row["batches"].append(batch.id)
        for each, count in counts_of(batch).items():
            row["jobs"] += count
            row["counts"][each] = row["counts"].get(each, 0) + count
        if batch.id in by_batch:
            used.setdefault(name, []).append(by_batch[batch.id])
    for name, row in rows.items():
        row |= _together(used.get(name, []))
    return {"names": list(rows.values())}


def _together(rows: list[Sums]) -> dict[str, Any]:
    """What attempts that completed used: totals, mean and standard deviation."""
    count = sum(row.count for row in rows)
    wall, cpu = sum(row.wall_s for row in rows), sum(row.cpu_s for row in rows)
    memory = sum(row.memory for row in rows)
    return {
        "measured": count,
        "wall_s": wall,
        "cpu_s": cpu,
        "wall_mean_s": wall / count if count else None,
        "wall_sd_s": _deviation(count, wall, sum(row.wall_squares for row in rows)),
        "wall_most_s": max((row.wall_most_s for row in rows), default=None),
        "memory_mean_bytes": round(memory / count) if count else None,
        "memory_sd_bytes": _whole(_deviation(count, memory, sum(row.memory_squares for row in rows))),
        "memory_most_bytes": max((row.memory_most for row in rows), default=None),
    }


def _deviation(count: int, total: float, squares: float) -> float | None:
    return math.sqrt(max(0.0, squares / count - (total / count) ** 2)) if count else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)

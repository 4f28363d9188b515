"""Zero share: which tasks a queue's `fairsharePolicy` rejects.

    policy := sub ("," sub)*
    sub    := cond (":" cond)* ":" value
    cond   := "type=" PAT | "group=" PAT | "gshare=" PAT | "id=" PAT | "priority" OP INT

The first sub-policy all of whose conditions match decides: `0` and `0%` reject, all else accepts. None matches: accept.
"""

import operator
import re
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

from rota.schedule.broker.config import Thresholds
from rota.schedule.broker.context import Context
from rota.schedule.broker.decision import Skip
from rota.schedule.broker.queue import Queue
from rota.schedule.broker.task import Task

__all__ = ["FairShareError", "group_of", "lint_policy", "rejects", "zero_share"]

TESTS = ("prod_test", "validation", "ptest", "rc_test", "rc_test2", "rc_alrb")
GROUPS = ("evgen", "simul", "reprocessing", "test", "mcore", "group")
MODERN_GROUPS = ("deriv", "pile", "merge")
OPERATORS: dict[str, Callable[[int, int], bool]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
PRIORITY = re.compile(r"priority\s*(>=|<=|==|!=|>|<)\s*(-?\d+)")
NONE = ("0", "0%")


class FairShareError(ValueError):
    """A policy that cannot be read, and why."""


class Sub(Struct, frozen=True):
    """One sub-policy."""

    patterns: tuple[tuple[str, re.Pattern[str] | None], ...]
    """(type, group, gshare or id; what it must match, None: anything)."""
    priority: tuple[str, int] | None
    value: str


@lru_cache(maxsize=4096)
def parse(policy: str) -> tuple[Sub, ...]:
    """The sub-policies of a text; FairShareError if it has another form."""
    found = []
    for text in policy.split(","):
        *conditions, value = text.strip().split(":")
        if not conditions:
            raise FairShareError(f"'{text}' is not of the form type=evgen:100%")
        patterns: list[tuple[str, re.Pattern[str] | None]] = []
        priority: tuple[str, int] | None = None
        for condition in conditions:
            key, sign, pattern = condition.partition("=")
            compared = PRIORITY.fullmatch(condition.strip())
            if compared is not None:
                priority = (compared[1], int(compared[2]))
            elif sign and key.strip() in ("type", "group", "gshare", "id"):
                patterns.append((key.strip(), _pattern(pattern.strip())))
            else:
                raise FairShareError(f"'{condition}' is none of type=, group=, gshare=, priority>")
        found.append(Sub(tuple(patterns), priority, value.strip()))
    return tuple(found)


def _pattern(text: str) -> re.Pattern[str] | None:
    if text in ("any", ""):
        return None
    try:
        return re.compile("^" + text.replace("*", ".*") + "$")
    except re.error as error:
        raise FairShareError(f"'{text}' is no pattern: {error}") from None


def group_of(processing_type: str, modern: bool = True) -> str:
    """The group that a processing type belongs to."""
    if processing_type in TESTS:
        return "test"
    return processing_type if processing_type in GROUPS + MODERN_GROUPS * modern else "others"


def rejects(policy: str | None, task: Task, merging: bool, thresholds: Thresholds) -> bool:
    """Whether a policy gives a task no share. FairShareError: it cannot be read."""
    if not policy:
        return False
    code = thresholds.profile == "code"
    group = group_of(task.processing_type, not code)
    if group == "test":
        return False
    subs = parse(policy)
    for sub in subs:
        if all(_matches(key, pattern, task, group, code) for key, pattern in sub.patterns) and (
            sub.priority is None or merging or OPERATORS[sub.priority[0]](task.current_priority, sub.priority[1])
        ):
            return sub.value in NONE
    return thresholds.on("ZERO_SHARE_LISTED_ONLY") and all(sub.value not in NONE for sub in subs)


def _matches(key: str, pattern: re.Pattern[str] | None, task: Task, group: str, code: bool) -> bool:
    if pattern is None:
        return True
    if key == "type":
        return pattern.search(group) is not None
    if key == "group":
        if task.working_group is None and code:
            return True
        return pattern.search(task.working_group or "") is not None
    if key == "gshare":
        return code or task.gshare is None or pattern.search(task.gshare) is not None
    return False  # id: of work queues of their own, which no task here has


def lint_policy(policy: str | None) -> str | None:
    """What is odd about a policy; None: nothing."""
    if not policy:
        return None
    try:
        subs = parse(policy)
    except FairShareError as error:
        return f"fairsharePolicy '{policy}' cannot be read ({error}): it rejects nothing"
    if all(sub.value not in NONE for sub in subs):
        return f"fairsharePolicy '{policy}' rejects nothing: end it with type=any:0%"
    known = [*GROUPS, *MODERN_GROUPS, "others"]
    for sub in subs:
        for key, pattern in sub.patterns:
            if key == "type" and pattern is not None and not any(pattern.search(name) for name in known):
                return f"fairsharePolicy '{policy}': there is no type {pattern.pattern[1:-1]}, only {', '.join(known)}"
    return None


def zero_share(context: Context) -> Callable[[Queue], Skip | None] | None:
    """A queue whose policy gives the task no share is skipped."""
    if context.task.gshare in ("test", "validation"):
        return None
    task, merging, values = context.task, context.merging, context.values

    def check(queue: Queue) -> Skip | None:
        policy = queue.fairshare_policy
        if not policy:
            return None
        try:
            if not rejects(policy, task, merging, values):
                return None
        except FairShareError as error:
            context.warnings.append(f"{queue.name}: fairsharePolicy '{policy}' cannot be read: {error}")
            return None
        words = f"its fair-share policy gives {task.processing_type or 'this type'} no share: {policy}"
        return Skip("-zeroshare", words, numbers={"policy": policy})

    return check

"""Seeded faults: a plan says which call of which command goes wrong, and how.

A plan is a list of rules: {"command": "squeue" or "*", "nth": 3 | [1, 2] or "every": 4 or "p": 0.1, "do": KIND, …}.
The first rule that fits a call is applied. With `p` the chance comes from `seed`, the command and the number of the
call, so a run can be repeated.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from rota.testing.fake_cluster.world import Reply

__all__ = ["KINDS", "before", "choose", "spoil"]

KINDS = {
    "hang": "sleeps `seconds`, then does the work (killed before that, it has done nothing)",
    "hang-after": "does the work, sleeps `seconds`, then answers",
    "slow": "sleeps `seconds` and answers",
    "exit": "does nothing; exits with `code` and `stderr`",
    "fail-after": "does the work and prints its answer, but exits with `code` and `stderr`",
    "drop-reply": "does the work, prints nothing of it and exits with `code` and `stderr`",
    "empty": "does the work, prints nothing, exits 0",
    "truncate": "leaves out the end of the answer from `at` (a share of it, default a half)",
    "garbage": "answers bytes that mean nothing",
    "foreign": "answers also about jobs of others (`lines`, or lines with strange ids)",
    "shuffle": "answers in another order",
}


def choose(rules: Sequence[Mapping[str, Any]], command: str, call: int) -> Mapping[str, Any] | None:
    """The rule for this call (counted from 1)."""
    for rule in rules:
        if rule.get("command", "*") not in ("*", command):
            continue
        if "nth" in rule:
            nth = rule["nth"]
            fits = call in nth if isinstance(nth, list) else call == nth
        elif "every" in rule:
            fits = call % int(rule["every"]) == 0
        elif "p" in rule:
            fits = random.Random(f"{rule.get('seed', 0)}:{command}:{call}").random() < float(rule["p"])
        else:
            fits = True
        if fits:
            if rule.get("do") not in KINDS:
                raise ValueError(f"a fault plan knows no {rule.get('do')!r}; it knows {', '.join(KINDS)}")
            return rule
    return None


def before(rule: Mapping[str, Any]) -> Reply | None:
    """The reply of a command that does none of its work; None: it does it."""
    if rule["do"] == "exit":
        return Reply("", _text(rule), int(rule.get("code", 1)))
    return None


def spoil(rule: Mapping[str, Any], reply: Reply, call: int) -> Reply:
    """The reply as the fault leaves it."""
    kind, chance = rule["do"], random.Random(f"{rule.get('seed', 0)}:{call}")
    if kind in ("hang", "hang-after", "slow"):
        reply.wait_s = float(rule.get("seconds", 60 if kind != "slow" else 1))
    elif kind == "fail-after":
        reply.err, reply.code = reply.err + _text(rule), int(rule.get("code", 1))
    elif kind == "drop-reply":
        reply.out, reply.err, reply.code = "", _text(rule), int(rule.get("code", 1))
    elif kind == "empty":
        reply.out, reply.err, reply.code = "", "", 0
    elif kind == "truncate":
        reply.out = reply.out[: int(len(reply.out) * float(rule.get("at", 0.5)))]
    elif kind == "garbage":
        size = int(rule.get("bytes", 200))
        reply.out = bytes(chance.randrange(256) for _ in range(size)).decode("utf-8", "surrogateescape")
    elif kind == "foreign":
        lines = reply.out.splitlines(keepends=True)
        reply.out = "".join([*lines, *(rule.get("lines") or [_stranger(line, chance) for line in lines[-1:]])])
    elif kind == "shuffle":
        lines = reply.out.splitlines(keepends=True)
        chance.shuffle(lines)
        reply.out = "".join(lines)
    return reply


def _text(rule: Mapping[str, Any]) -> str:
    text = str(rule.get("stderr", ""))
    return text if not text or text.endswith("\n") else text + "\n"


def _stranger(line: str, chance: random.Random) -> str:
    """A line about a job that nobody here submitted."""
    digits = "".join(letter if letter.isdigit() else " " for letter in line).split()
    return line.replace(digits[0], str(chance.randrange(10**6, 10**7)), 1) if digits else line

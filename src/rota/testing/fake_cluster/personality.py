"""What a personality is, and how one command is carried out by it."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from rota.testing.fake_cluster import faults as faulty
from rota.testing.fake_cluster.model import Caller, Executor, Job, Reply, Submission, World

__all__ = ["PERSONALITIES", "Personality", "native", "options", "perform"]

PERSONALITIES = ("slurm", "lsf", "pbs", "torque", "sge")


class Personality(Protocol):
    """The words of one batch system; a module."""

    COMMANDS: Mapping[str, Callable[[World, Executor, list[str], Caller], Reply]]
    STATES: Sequence[str]
    """Native states that can be forced."""

    def down(self, command: str, how: str) -> Reply:
        """What a command says when the daemon is `refused` or `hung`."""
        ...

    def job_environment(self, world: World, submission: Submission, job: Job) -> dict[str, str]: ...

    def output_path(self, world: World, submission: Submission, job: Job) -> str: ...

    def error_path(self, world: World, submission: Submission, job: Job) -> str | None: ...


def native(world: World) -> Personality:
    """The personality of a world."""
    name = world.settings["personality"]
    if name not in PERSONALITIES:
        raise ValueError(f"no personality {name!r}; there are {', '.join(PERSONALITIES)}")
    return cast(Personality, importlib.import_module(f"rota.testing.fake_cluster.{name}"))


def perform(
    world: World,
    executor: Executor,
    argv: list[str],
    caller: Caller,
    now: float,
    rules: Sequence[Mapping[str, Any]] = (),
    timeout: float | None = None,
) -> Reply:
    """One command: time passes, a fault may strike, the personality answers."""
    command = argv[0].rpartition("/")[2]
    world.advance(executor, now)
    call = world.calls[command] = world.calls.get(command, 0) + 1
    rule = faulty.choose(rules, command, call)
    if rule is not None:
        instead = faulty.before(rule)
        if instead is not None:
            return instead
        if rule["do"] == "hang" and timeout is not None and float(rule.get("seconds", 60)) >= timeout:
            return Reply(code=None, wait_s=float(rule.get("seconds", 60)))
    personality = native(world)
    known = personality.COMMANDS.get(command)
    if known is None:
        return Reply("", f"{command}: command not found\n", 127)
    if world.down is not None:
        return personality.down(command, world.down)
    reply = known(world, executor, argv[1:], caller)
    world.advance(executor, now)  # what it made due begins now
    return reply if rule is None else faulty.spoil(rule, reply, call)


class BadOptionError(Exception):
    """An option that the command does not have, as the user wrote it."""


def options(
    words: Sequence[str], short: str, long: Sequence[str] = (), single: Sequence[str] = ()
) -> tuple[dict[str, list[str]], list[str]]:
    """Read a command line as getopt would, options anywhere before `--`.

    `short`: letters, with `:` after those that have a value. `long`: names for `--name`, with `=` at the end of those
    that have a value. `single`: the same for `-name` (Grid Engine, LSF). Raises BadOptionError.
    """
    found: dict[str, list[str]] = {}
    rest: list[str] = []
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if word == "--":
            rest += words[place:]
            break
        if word.startswith("-") and word[1:] in single:
            found.setdefault(word[1:], []).append("")
            continue
        if word.startswith("-") and word[1:] + "=" in single:
            if place >= len(words):
                raise BadOptionError(word)
            found.setdefault(word[1:], []).append(words[place])
            place += 1
            continue
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if name in long and not equals:
                found.setdefault(name, []).append("")
            elif name + "=" in long:
                if not equals:
                    if place >= len(words):
                        raise BadOptionError(word)
                    value = words[place]
                    place += 1
                found.setdefault(name, []).append(value)
            else:
                raise BadOptionError(word)
            continue
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        if not short:
            raise BadOptionError(word)
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            where = short.find(letter)
            if where < 0 or letter == ":":
                raise BadOptionError("-" + letter)
            if short[where + 1 : where + 2] == ":":
                if not letters:
                    if place >= len(words):
                        raise BadOptionError("-" + letter)
                    letters = words[place]
                    place += 1
                found.setdefault(letter, []).append(letters)
                letters = ""
            else:
                found.setdefault(letter, []).append("")
    return found, rest

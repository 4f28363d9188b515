"""Messages between the core and the real protocol.Runner: manager/inbound and outbound, as far as virtual jobs need."""

from typing import Any

from rota.core.effects import Ack, Hold, Lease, Order, Welcome
from rota.core.state import State
from rota.core.stimuli import (
    At,
    Ended,
    Greet,
    Held,
    HoldRow,
    Left,
    Released,
    Report,
    RunnerBye,
    Started,
    Stimulus,
    Touch,
    Used,
)
from rota.model.needs import Amounts
from rota.model.slot import Slot

__all__ = ["Message", "message_of", "stimulus_of"]

Message = dict[str, Any]
GRACE_S = 2.0


def stimulus_of(message: Message, runner: str, at: At, challenged: float | None = None) -> Stimulus:
    """The stimulus for the core that a runner's message makes, over a connection that was there at that time."""
    kind = message["t"]
    if kind == "greet":
        return Greet(
            at=at,
            by=runner,
            runner=runner,
            allocation=message["allocation"],
            connect=message["connect"],
            clock=message["clock"],
            host=message["host"],
            pid=message["pid"],
            capacity=Amounts(message["cores"], message["memory"], message["disk"], message["gpus"]),
            tags=tuple(message["tags"]),
            output=message["output"],
            held=[(b, i, a) for b, i, a in message["held"]],
            holds=_holds(message),
            gangs=message.get("gangs", False),
            replaces=message.get("replaces"),
            challenged=challenged,
        )
    session = message["session"]
    if kind == "report":
        return Report(
            at=at,
            by=runner,
            runner=runner,
            session=session,
            seq=message["seq"],
            got=message["got"],
            clock=message["clock"],
            started=[Started(*row[:4]) for row in message["started"]],
            ended=[Ended(*row) for row in message["ended"]],
            disclaimed=[(b, i, a, why) for b, i, a, why in message["disclaimed"]],
        )
    if kind == "touch":
        got, clock, held = message["got"], message["clock"], [tuple(job) for job in message["held"]]
        used = [Used(b, i, a, told, cpu_s, memory) for b, i, a, cpu_s, memory, _, _, _, told in message.get("live", ())]
        return Touch(
            at=at,
            by=runner,
            runner=runner,
            session=session,
            got=got,
            clock=clock,
            held=held,
            used=used,
            left=[Left(*row) for row in message.get("left", ())],
            holds=_holds(message),
        )
    if kind == "held":
        return Held(at=at, by=runner, runner=runner, session=session, holds=_holds(message))
    if kind == "released":
        released = [(b, i, a) for b, i, a in message["jobs"]]
        return Released(at=at, by=runner, runner=runner, session=session, jobs=released)
    return RunnerBye(at=at, by=runner, runner=runner, session=session, reason=message["reason"])


def _holds(message: Message) -> list[HoldRow]:
    return [(b, i, a, address) for b, i, a, address in message.get("holds", ())]


def message_of(
    effect: Welcome | Lease | Hold | Order | Ack, state: State, connect: int, named: dict[str, int] | None = None
) -> Message:
    """The message to a runner that an effect makes, on the connection with this number.

    `named` has the specs of its session, each with the lease that named it first. Without it a lease names all.
    """
    if isinstance(effect, Ack):
        return {"t": "ack", "seq": effect.seq}
    if isinstance(effect, Lease):
        return _lease(effect, state, {} if named is None else named)
    if isinstance(effect, Hold):
        return {"t": "hold", "session": effect.session, "jobs": [_hold(state, *job) for job in effect.jobs]}
    if isinstance(effect, Welcome):
        return {
            "t": "welcome",
            "version": 1,
            "connect": effect.connect,
            "session": effect.session,
            "touch_s": state.settings.touch_s,
            "start_by_s": state.settings.start_by_s,
            "grace_s": GRACE_S,
            "linger_s": state.soft.sites[state.runners[effect.runner].site].linger_s,
        }
    if effect.what == "again":
        return {"t": "error", "code": "busy", "message": effect.reason}
    return {  # more than this order needs: a runner does not look at the rest
        "t": effect.what,
        "session": effect.session,
        "connect": connect,
        "jobs": [list(job) for job in effect.jobs],
        "grace_s": GRACE_S,
        "reason": effect.reason,
    }


def _hold(state: State, number: int, pos: int, attempt: int, slot: Slot) -> Message:
    index = state.batches[number].index(pos)
    return {"job": [number, index, attempt], "slot": slot.text, "secret": _secret(number, index, attempt), "spec": {}}


def _secret(*job: int) -> str:
    return ".".join(map(str, job)).rjust(16, "0")


def _lease(effect: Lease, state: State, named: dict[str, int]) -> Message:
    jobs = []
    specs = {}
    gangs: Message = {}
    for number, pos, attempt, slot in effect.jobs:
        batch = state.batches[number]
        name = f"{number}.{batch.template_of(pos)}"
        if named.setdefault(name, effect.n) == effect.n:
            specs[name] = {"cwd": "/", "env": None}
        jobs.append([slot.text, name, number, batch.index(pos), attempt, ["true"], None])
        members = effect.gangs.get((number, pos))
        if members is not None:
            job = (number, batch.index(pos), attempt)
            nodes = [{"host": member.host, "address": member.address, "runner": member.runner} for member in members]
            gangs["{}.{}.{}".format(*job)] = {"secret": _secret(*job), "nodes": nodes}
    return {
        "t": "lease",
        "session": effect.session,
        "n": effect.n,
        "clock": effect.clock,
        "slots": [[slot.text, count] for slot, count in effect.slots.items()],
        "envs": {},
        "specs": specs,
        "jobs": jobs,
        **({"gangs": gangs} if gangs else {}),
    }

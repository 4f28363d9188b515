"""Performing effects that become messages to runners. Called only once the facts behind them are durable."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rota.core import effects as ef
from rota.core.soft import LeasedJob, Member
from rota.core.state import BatchState, Settings, State
from rota.manager.job_tokens import runner_secret
from rota.manager.jobbook import JobBook
from rota.model.batch import Template
from rota.model.errors import BusyError
from rota.model.slot import Slot
from rota.wire.messages import VERSION, encode
from rota.wire.peer import Peer

if TYPE_CHECKING:
    from rota.manager.data.staging import Staging

__all__ = ["Outbound", "Sent", "lease_message"]

log = logging.getLogger("rota")

NO_COMMAND = "rota-has-no-command-for-this-job"
"""What is not found in place of a command that cannot be made."""
MOST_SENT = 2000
"""Specs and environments that a runner keeps: with the next one it starts anew."""


class Sent:
    """Which specs and environments a runner has. Batches that are run alike have one spec: it is made ready once."""

    __slots__ = ("_bodies", "_specs", "alike", "environments", "names")

    def __init__(self) -> None:
        self.alike: dict[tuple[int, str | None, int, int], tuple[Template, str]] = {}
        """Identity of a template, environment, cores, version of the book → the template, and the name of its spec."""
        self.names: dict[str, str] = {}
        """The name of a spec → that under which the runner has it."""
        self._specs: dict[bytes, str] = {}
        self._bodies: dict[str, bytes] = {}
        """The same the other way round."""
        self.environments: set[str] = set()

    def __len__(self) -> int:
        return max(len(self.names), len(self._specs), len(self.alike)) + len(self.environments)

    def name(self, name: str, spec: dict[str, Any], once: bool) -> str:
        """The name under which the runner has such a spec; this one if it has none. `once`: nobody asks again."""
        body = encode(spec)
        known_as = self._specs.setdefault(body, name)
        if known_as == name and (before := self._bodies.get(name, body)) != body:
            del self._specs[before]  # the site is set up otherwise by now: from here on the runner has another one
        self._bodies[known_as] = body
        if not once:
            self.names[name] = known_as
        return known_as

    def clear(self) -> None:
        """Forget all: it is sent again."""
        self.alike.clear()
        self.names.clear()
        self._specs.clear()
        self._bodies.clear()
        self.environments.clear()


class Outbound:
    """Knows the runners in session; carries out what the core decided."""

    def __init__(
        self,
        book: JobBook,
        settings: Settings,
        peers: dict[str, Peer],
        allocate: Callable[[State, ef.Allocate], None],
        job_secret: str,
    ) -> None:
        self._book = book
        self.peers = peers
        """The runners in session, and their connections."""
        self._welcome = {
            "version": VERSION,
            "touch_s": settings.touch_s,
            "start_by_s": settings.start_by_s,
            "grace_s": 10,
        }
        self._allocate = allocate
        self.job_secret = job_secret
        """From which the tokens of jobs are made."""
        self.greeting: dict[str, tuple[Peer, int]] = {}
        """Runners whose greeting is being made durable."""
        self._newest: dict[str, int] = {}
        """Number of the newest lease message that a runner was sent in this session."""
        self._sent: dict[str, Sent] = {}
        """What a runner has been sent in this session."""
        self._connects: dict[str, int] = {}
        """Number of the connection of each session."""
        self._leased: dict[str, Peer] = {}
        """Runners to whom a lease is about to leave."""
        self._acked: dict[str, Peer] = {}
        """Runners to whom an acknowledgement waits to leave."""
        self.staging: Staging | None = None
        """Brings what jobs read; none before the manager has made it."""

    def perform(self, state: State, effect: ef.Effect) -> None:
        """Carry out one effect."""
        if isinstance(effect, ef.Lease):
            self._lease(state, effect)
        elif isinstance(effect, ef.Ack):
            peer = self.peers.get(effect.runner) or self.greeting.get(effect.runner, (None, 0))[0]
            if peer is not None:
                self._ack(state, effect, peer)
        elif isinstance(effect, ef.Order):
            self._order(state, effect)
        elif isinstance(effect, ef.Hold):
            self._hold(state, effect)
        elif isinstance(effect, ef.Welcome):
            self._greet(effect, state)
        else:
            self._allocate(state, effect)

    def flush(self) -> None:
        """Let leases leave: whoever has asked for their jobs may read the answer while they start."""
        leased, self._leased = self._leased, {}
        for runner, peer in leased.items():
            peer.flush()
            self._acked.pop(runner, None)

    def flush_acks(self) -> None:
        """Let acknowledgements leave that wait for a lease to go with."""
        acked, self._acked = self._acked, {}
        for peer in acked.values():
            peer.flush()

    def _ack(self, state: State, effect: ef.Ack, peer: Peer) -> None:
        """Acknowledge a report. A runner that has nothing left to report can wait a moment: the next lease may come."""
        runner = state.runners.get(effect.runner)
        if runner is None or runner.jobs or runner.parts or self.peers.get(effect.runner) is not peer:
            peer.ack(effect.seq)
        else:
            peer.ack(effect.seq, flushed=True)
            self._acked[effect.runner] = peer

    def close_idle(self, state: State) -> None:
        """Tell the runners in session that have no jobs to exit."""
        for runner in state.runners.values():
            if not runner.jobs and not runner.parts and state.soft.contacts[runner.id].connected:
                self.perform(state, ef.Order(runner.id, runner.session, "close", []))

    def forget(self) -> None:
        """Close every runner's connection (after the state was reloaded): runners greet again."""
        for peer in [*self.peers.values(), *(peer for peer, _ in self.greeting.values())]:
            peer.close()
        self.peers.clear()
        self.greeting.clear()

    def _greet(self, effect: ef.Welcome, state: State) -> None:
        found = self.greeting.pop(effect.runner, None)
        if found is None or found[1] != effect.connect:
            return
        old = self.peers.get(effect.runner)
        if old is not None and old is not found[0]:
            old.close()
        self.peers[effect.runner] = found[0]
        self._sent[effect.runner] = Sent()
        self._newest[effect.runner] = 0
        self._connects[effect.runner] = effect.connect
        facts = state.soft.sites.get(state.runners[effect.runner].site)
        linger: dict[str, Any] = {"linger_s": facts.linger_s} if facts is not None else {}
        linger["jobs"] = runner_secret(self.job_secret, effect.runner).hex()
        found[0].send({"t": "welcome", "connect": effect.connect, "session": effect.session, **self._welcome, **linger})
        if self.staging is not None:
            self.staging.resume(state, state.runners[effect.runner])

    def _order(self, state: State, effect: ef.Order) -> None:
        peer = self.peers.get(effect.runner)
        if effect.what in ("expired", "again"):
            self._turn_away(effect, peer)
            return
        if peer is None:
            return
        message: dict[str, Any] = {"t": effect.what, "session": effect.session}
        if effect.what in ("kill", "recall", "release"):
            message["jobs"] = effect.jobs
            if effect.what != "recall":
                for grace, jobs in self._by_grace(state, effect.jobs).items():
                    peer.send({**message, "jobs": jobs, "grace_s": grace})
                return
        peer.send(message)

    def _turn_away(self, effect: ef.Order, peer: Peer | None) -> None:
        """Tell a runner to end, in its greeting or its session; or one that greets to do so again."""
        greeting = self.greeting.get(effect.runner)
        if effect.what == "again":
            if greeting is not None:
                del self.greeting[effect.runner]
                greeting[0].refuse(None, BusyError(effect.reason or "greet again"))
                greeting[0].close()
            return
        if greeting is None and peer is not None:
            greeting = peer, self._connects.get(effect.runner, 0)
        if greeting is not None:
            greeting[0].send({"t": "expired", "connect": greeting[1], "reason": effect.reason})

    def _hold(self, state: State, effect: ef.Hold) -> None:
        peer = self.peers.get(effect.runner)
        runner = state.runners[effect.runner]
        if peer is not None and runner.session == effect.session:
            jobs = [hold_row(self._book, state, job, runner.site) for job in effect.jobs]
            peer.send({"t": "hold", "session": effect.session, "jobs": jobs})

    def _by_grace(self, state: State, jobs: list[tuple[int, int, int]]) -> dict[int, list[tuple[int, int, int]]]:
        out: dict[int, list[tuple[int, int, int]]] = {}
        for job in jobs:
            batch = state.batches.get(job[0])
            pos = batch.position(job[1]) if batch is not None else None
            grace = batch.template(pos).grace_s if batch is not None and pos is not None else 10
            out.setdefault(grace, []).append(job)
        return out

    def _lease(self, state: State, effect: ef.Lease) -> None:
        peer = self.peers.get(effect.runner)
        runner = state.runners[effect.runner]
        if peer is None or runner.session != effect.session:
            return
        sent = self._sent[effect.runner]
        repeat = effect.n <= self._newest.get(effect.runner, 0)
        if repeat:
            sent.clear()  # what came with it the first time may not have arrived either
        self._newest[effect.runner] = max(effect.n, self._newest.get(effect.runner, 0))
        fresh = len(sent) > MOST_SENT
        if fresh:
            sent.clear()
        message = lease_message(self._book, state, effect, runner.site, sent)
        if repeat:
            sent.clear()  # it takes nothing of a lease that it has, which may have had other jobs' specs
        if self.staging is not None and (awaited := self.staging.awaited(state, effect.jobs, runner)):
            message["stage"] = awaited
        peer.send({**message, "fresh": True} if fresh else message, flushed=True)
        self._leased[effect.runner] = peer


def hold_row(book: JobBook, state: State, job: LeasedJob, site: str) -> dict[str, Any]:
    """A part of a gang, with how its ranks are started on that node."""
    number, pos, attempt, slot = job
    batch = state.batches[number]
    variant = book.variant(batch, pos, slot.amounts)
    spec = book.spec(batch, batch.template_of(pos), slot.amounts.cores, site, variant=variant)
    spec |= {"gpus": list(slot.gpus)}
    named = (number, batch.index(pos), attempt)
    return {"job": named, "slot": slot.text, "secret": book.gang_secret(*named), "spec": spec}


def _gang(book: JobBook, named: tuple[int, int, int], members: tuple[Member, ...]) -> dict[str, Any]:
    """A gang as its root is told of it, root first."""
    nodes = [
        {
            "host": member.host,
            "address": member.address,
            "cores": member.slot.amounts.cores,
            "memory": member.slot.amounts.memory,
        }
        for member in members
    ]
    return {"secret": book.gang_secret(*named), "nodes": nodes}


def lease_message(book: JobBook, state: State, effect: ef.Lease, site: str, sent: Sent) -> dict[str, Any]:
    """A lease with all that the runner needs for it and does not have yet."""
    host = state.runners[effect.runner].host
    gangs = {
        "{}.{}.{}".format(*named): _gang(book, named, effect.gangs[number, pos])
        for number, pos, attempt, _ in (effect.jobs if effect.gangs else ())
        if (number, pos) in effect.gangs
        for named in [(number, state.batches[number].index(pos), attempt)]
    }
    specs: dict[str, Any] = {}
    envs: dict[str, Any] = {}
    rows: list[list[Any]] = []
    alike: tuple[BatchState, int, Slot, list[Any]] | None = None
    for number, pos, attempt, slot in effect.jobs:
        if alike is not None:  # most jobs are as the one before, but for their number
            batch, template, known, row = alike
            if number == batch.id and slot is known and batch.template_of(pos) == template:
                rows.append([row[0], row[1], number, batch.index(pos), attempt, row[5], None])
                continue
        batch = state.batches[number]
        cores = slot.amounts.cores
        try:
            row = book.lease_row(batch, pos, attempt, slot.text, cores)
        except (TypeError, ValueError, LookupError, AttributeError):  # of an older release, which checked less
            log.exception("job %d.%d has no command that could be run", number, batch.index(pos))
            name = f"{number}.{batch.template_of(pos)}.{cores}"
            row = [slot.text, name, number, batch.index(pos), attempt, [NO_COMMAND], None]
        if batch.spec.ends is not None:
            row[6] = {**(row[6] or {}), "own": book.end_variables(state, batch)}
        name, variant = row[1], 0
        if batch.templates[batch.template_of(pos)].apart:
            named = (number, row[3], attempt)
            if (key := "{}.{}.{}".format(*named)) not in gangs:  # it is on one node, and told so as on several
                gangs[key] = _gang(book, named, (Member(effect.runner, host, "", slot),))
            if variant := book.variant(batch, pos, slot.amounts):
                name = row[1] = f"{name}.{variant}"
        template = batch.template_of(pos)
        given, known_as = batch.templates[template], sent.names.get(name)
        alike_as = (id(given), batch.env, cores, book.version)
        if known_as is None and batch.ranges is None and not variant and alike_as in sent.alike:
            known_as = sent.alike[alike_as][1]
        if known_as is None:
            spec = book.spec(batch, template, cores, site, host, variant)
            known_as = sent.name(name, spec, once=batch.count == 1)
            if batch.ranges is None and not variant:
                sent.alike[alike_as] = (given, known_as)
            if known_as == name:
                specs[name] = spec
            environment = spec["env"]
            if environment is not None and environment not in sent.environments:
                sent.environments.add(environment)
                envs[environment] = book.environment(environment)
        row[1] = known_as
        rows.append(row)
        alike = None
        if len(rows) == len(effect.jobs):
            break
        if row[5] != [NO_COMMAND] and not (batch.spec.ends is not None or given.apart):
            alike = (batch, template, slot, row) if book.are_alike(batch, template) else None
    message: dict[str, Any] = {
        "t": "lease",
        "session": effect.session,
        "n": effect.n,
        "clock": effect.clock,
        "slots": [(slot.text, count) for slot, count in effect.slots.items()],
        "jobs": rows,
    }
    if gangs:
        message["gangs"] = gangs
    if specs:
        message["specs"] = specs
    if envs:
        message["envs"] = envs
    return message

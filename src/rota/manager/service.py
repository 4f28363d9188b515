"""The manager's loop: drain what waits, step the core, commit, and only then act and answer."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

from rota import __version__
from rota.core import effects as ef
from rota.core import invariants
from rota.core.snapshot import restore, take_columns, take_snapshot
from rota.core.state import Settings, State
from rota.core.step import Core, Step
from rota.core.stimuli import Disconnected, Greet, Report, RunnerBye, SiteSeen, Stimulus, Tick, Touch
from rota.drivers.api import Driver
from rota.manager.asking import Asking
from rota.manager.intake import Intake
from rota.manager.jobbook import JobBook
from rota.manager.performing import POLL_S, Performer, now, report_rows
from rota.manager.queries import Queries
from rota.manager.watching import Watchers
from rota.manager.writer import Writer
from rota.model.errors import NoSpaceError, RotaError
from rota.model.events import Ended, Entry, Leased, Moved, Removed, Started, Submitted
from rota.model.job import Result
from rota.model.needs import Amounts
from rota.store.api import Column, Store
from rota.wire import messages
from rota.wire.peer import Peer

__all__ = ["Manager"]

log = logging.getLogger("rota")

CHECKPOINT_ENTRIES = 20_000
CHECKPOINT_S = 120.0
STOP_S = 15.0

Done = Callable[[Step | RotaError], None]


class Manager:
    """One manager: the core, its store, its runners and its clients."""

    def __init__(self, store: Store, settings: Settings, drivers: dict[str, Driver], *, home: str, setups: dict[str, str | None], tokens: Callable[[str], str | None], embedded: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self.home = home
        self.store = store
        self.settings = settings
        self.started = now()
        self.embedded = embedded
        self.writer = Writer(self.loop)
        self.book = JobBook(store, setups)
        self.queries = Queries(store, self.book)
        self.watchers = Watchers(self.queries, lambda: self.state)
        self.intake = Intake(store, self.writer)
        self.performer = Performer(self.book, drivers, self.tell, {"version": messages.VERSION, "touch_s": settings.touch_s, "start_by_s": settings.start_by_s, "grace_s": 10})
        self.asking = Asking(self)
        self.clients: set[Peer] = set()
        self.trouble: str | None = None
        """Why new work is refused, if it is."""
        self.stopped: asyncio.Future[int] = self.loop.create_future()
        self.stopping = False
        self._tokens = tokens
        self._inbox: list[tuple[Stimulus, Done | None]] = []
        self._after: list[Callable[[], None]] = []
        """Questions that wait for the commit under way, so that nothing is answered that is not on disk."""
        self._turning = False
        self._timer: asyncio.TimerHandle | None = None
        self._since_checkpoint = 0
        self._checkpoint_at = self.loop.time() + CHECKPOINT_S
        self._alone_since = self.loop.time()
        self.core = self._load()

    @property
    def state(self) -> State:
        """The core's state."""
        return self.core.state

    def _load(self) -> Core:
        loaded = self.store.load()
        state = restore(self.settings, secrets.randbits(64), loaded.snapshot, loaded.seq, [(c.batch, c.chunk, c.states, c.attempts) for c in loaded.columns], loaded.tail)
        return Core(self.settings, state=state)

    # ---- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up the work: sites first, then what the last life left open."""
        effects = self.core.restart(now())
        for name, driver in self.performer.drivers.items():
            facts = driver.facts()
            self.core.step(SiteSeen(at=now(), site=name, node=facts.node, tags=facts.tags, most=facts.most, linger_s=facts.linger_s))
        for effect in effects:
            self.performer.perform(self.state, effect)
        self.loop.create_task(self._poll())  # noqa: RUF006  lives as long as the loop
        self._tick()

    async def _poll(self) -> None:
        while not self.stopped.done():
            await asyncio.sleep(POLL_S)
            try:
                await self.performer.poll(self.state)
            except Exception:
                log.exception("polling failed")
            self._housekeeping()

    def _housekeeping(self) -> None:
        if self.trouble is not None:
            self._try_again()
        lonely = not self.clients and not any(batch.live for batch in self.state.batches.values())
        if not lonely:
            self._alone_since = self.loop.time()
        if self.embedded and lonely and self.loop.time() - self._alone_since > 10 and not self.stopping:
            self.stop(kill=False)
        if self.state.mode == "draining" and not self.stopping and not any(batch.live for batch in self.state.batches.values()):
            log.info("drained")
            self.stop(kill=False)

    def stop(self, kill: bool) -> None:
        """End this manager. Running jobs go on without it, unless they are to be killed."""
        if not self.stopping:
            self.stopping = True
            self.loop.create_task(self._stop(kill))  # noqa: RUF006

    async def _stop(self, kill: bool) -> None:
        if kill:
            for allocation in list(self.state.allocations.values()):
                if allocation.state.endswith("ING"):
                    self.performer.perform(self.state, ef.Allocate("terminate", allocation.id, allocation.site, allocation.tag))
            deadline = self.loop.time() + STOP_S
            while self.loop.time() < deadline and any(a.state.endswith("ING") for a in self.state.allocations.values()):
                await asyncio.sleep(0.02)
                await self.performer.poll(self.state)
        else:
            for runner in list(self.state.runners.values()):
                if not runner.jobs and runner.connected:
                    self.performer.perform(self.state, ef.Order(runner.id, runner.session, "close", []))
            await asyncio.sleep(0.05)
        while self._turning or self._inbox:
            await asyncio.sleep(0.005)
        self._turning = True  # nothing more is taken
        if self._timer is not None:
            self._timer.cancel()
        await self.performer.close()
        code = 0
        try:
            await self._checkpoint_now()
        except RotaError as error:
            log.error("the last checkpoint failed (nothing is lost, the next start takes longer): %s", error)
        self.writer.close()
        self.store.close()
        if not self.stopped.done():
            self.stopped.set_result(code)

    def _fail_stop(self, error: BaseException) -> None:
        """The store cannot be trusted: stop at once, acknowledge nothing more. Runners go on and keep their reports."""
        log.critical("stopping: %s", error)
        self.stopping = self._turning = True
        if not self.stopped.done():
            self.stopped.set_result(1)

    def lost_home(self) -> None:
        """Another manager has our home."""
        self._fail_stop(RotaError("another manager has taken over this home"))

    # ---- the loop ---------------------------------------------------------------------------------------------------

    def tell(self, stimulus: Stimulus, done: Done | None = None) -> None:
        """Something happened. `done` is called with the outcome once that is durable."""
        self._inbox.append((stimulus, done))
        if not self._turning:
            self._turning = True
            self.loop.call_soon(self._turn)

    def when_durable(self, question: Callable[[], None]) -> None:
        """Run a question when all that the state holds is on disk."""
        if self._turning:
            self._after.append(question)
        else:
            question()

    def _turn(self) -> None:
        inbox, self._inbox = self._inbox, []
        core = self.core
        seq = core.state.seq
        entries: list[Entry] = []
        results: list[Result] = []
        effects: list[ef.Effect] = []
        answers: list[tuple[Done, Step | RotaError]] = []
        try:
            for stimulus, done in inbox:
                try:
                    step = core.step(stimulus)
                except RotaError as error:
                    if done is not None:
                        answers.append((done, error))
                    continue
                for event in step.events:
                    seq += 1
                    entries.append(Entry(seq, stimulus.at.wall, stimulus.by, event))
                results += step.results
                effects += step.effects
                if done is not None:
                    answers.append((done, step))
            at = now()
            step = core.schedule(at)
            for event in step.events:
                seq += 1
                entries.append(Entry(seq, at.wall, "rota", event))
            effects += step.effects
        except Exception as error:
            log.exception("the core failed")
            self._fail_stop(error)
            return
        if entries or results:
            store = self.store
            self.writer.put(lambda: store.commit(entries, results), lambda error: self._committed(error, entries, effects, answers))
        else:
            self._committed(None, entries, effects, answers)

    def _committed(self, error: BaseException | None, entries: list[Entry], effects: list[ef.Effect], answers: list[tuple[Done, Step | RotaError]]) -> None:
        if isinstance(error, NoSpaceError):
            self._reload(error, answers)
        elif error is not None:
            self._fail_stop(error)
            return
        else:
            state = self.state
            perform = self.performer.perform
            for effect in effects:
                perform(state, effect)
            for done, outcome in answers:
                done(outcome)
            self._since_checkpoint += len(entries)
            changed = _changed(entries)
            if changed:
                self.watchers.changed(changed)
        after, self._after = self._after, []
        for question in after:
            question()
        self._next()

    def _next(self) -> None:
        if self._inbox:
            self.loop.call_soon(self._turn)
            return
        self._turning = False
        due = self._since_checkpoint >= CHECKPOINT_ENTRIES or (self._since_checkpoint and self.loop.time() >= self._checkpoint_at)
        if due and not self.stopping:
            self._turning = True
            self._checkpoint()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(self.core.next_deadline(now()), self._tick)

    def _tick(self) -> None:
        self.tell(Tick(at=now()))

    # ---- checkpoints, trouble ---------------------------------------------------------------------------------------

    def _snapshot(self) -> Callable[[], None]:
        state, store = self.state, self.store
        if os.environ.get("ROTA_DEBUG"):
            invariants.check(state)
        seq, snapshot = state.seq, take_snapshot(state)
        columns = [Column(batch, chunk, states, attempts) for batch, chunk, states, attempts in take_columns(state)]
        self._since_checkpoint = 0
        self._checkpoint_at = self.loop.time() + CHECKPOINT_S
        return lambda: store.checkpoint(seq, snapshot, columns)

    def _checkpoint(self) -> None:
        def done(error: BaseException | None) -> None:
            if isinstance(error, NoSpaceError):
                self._reload(error, [])
            elif error is not None:
                self._fail_stop(error)
                return
            self._next()

        self.writer.put(self._snapshot(), done)

    async def _checkpoint_now(self) -> None:
        await self.writer.run(self._snapshot())

    def _reload(self, error: NoSpaceError, answers: list[tuple[Done, Step | RotaError]]) -> None:
        """No space: what could not be written has not happened. Start again from what is on disk, as after a crash.

        Reports that were not acknowledged come again; requests are answered with the reason.
        """
        log.error("%s", error)
        self.trouble = str(error)
        for done, _ in answers:
            done(error)
        for stimulus, waiting in self._inbox:
            if waiting is not None:
                waiting(error)
            del stimulus
        self._inbox.clear()
        for peer in list(self.performer.peers.values()):
            peer.close()
        self.performer.peers.clear()
        sites = self.state.sites
        self.core = self._load()
        self.book.forget()
        self.state.sites = sites
        for site in sites:
            self.state.ensure_site_location(site)
        for effect in self.core.restart(now()):
            self.performer.perform(self.state, effect)

    def _try_again(self) -> None:
        """Is there space again?"""
        restore_reserve = getattr(self.store, "restore_reserve", None)
        try:
            self.intake.check_space()
        except NoSpaceError as error:
            self.trouble = str(error)
            return
        if restore_reserve is None or restore_reserve():
            log.info("there is space again: new work is taken")
            self.trouble = None

    # ---- what peers say ---------------------------------------------------------------------------------------------

    def on_client(self, peer: Peer, message: messages.Hello) -> None:
        """A client is there."""
        self.clients.add(peer)
        peer.send({
            "t": "welcome", "version": messages.VERSION,
            "manager": {"host": socket.gethostname(), "pid": os.getpid(), "version": __version__, "home": self.home, "started": self.started.wall},
        })

    def on_ask(self, peer: Peer, ask_id: int, op: str, body: bytes) -> None:
        """A client asks."""
        self.asking.ask(peer, ask_id, op, messages.decode_ask(op, body))

    def on_runner(self, peer: Peer, message: messages.Greet | messages.Report | messages.Touch | messages.Bye) -> None:
        """A runner speaks. What comes over a connection that is not its present one is dropped."""
        runner = peer.runner_id
        assert runner is not None
        if isinstance(message, messages.Greet):
            self._greet(peer, message)
            return
        current = self.performer.peers.get(runner)
        if current is not peer and self.performer.greeting.get(runner, (None, 0))[0] is not peer:
            return
        at = now()
        if isinstance(message, messages.Report):
            known = self.state.runners.get(runner)
            self.tell(Report(
                at=at, by=peer.principal, runner=runner, session=message.session, seq=message.seq, got=message.got, clock=message.clock,
                started=[(row[0], row[1], row[2]) for row in message.started],
                ended=report_rows(message.ended, known.output if known is not None else ""),
                disclaimed=message.disclaimed,
            ))
        elif isinstance(message, messages.Touch):
            self.tell(Touch(at=at, by=peer.principal, runner=runner, session=message.session, got=message.got, clock=message.clock))
        else:
            self.tell(RunnerBye(at=at, by=peer.principal, runner=runner, session=message.session, reason=message.reason))

    def _greet(self, peer: Peer, message: messages.Greet) -> None:
        self.performer.greeting[message.runner] = (peer, message.connect)
        at = now()
        self.tell(Greet(
            at=at, by=peer.principal, runner=message.runner, allocation=message.allocation, connect=message.connect, clock=message.clock, host=message.host,
            pid=message.pid, capacity=Amounts(message.cores, message.memory, message.disk, message.gpus), tags=tuple(message.tags),
            until=at.wall + message.until_s if message.until_s is not None else None, output=message.output, held=message.held,
        ))

    def on_gone(self, peer: Peer) -> None:
        """A connection is over."""
        self.clients.discard(peer)
        self.watchers.gone(peer)
        runner = peer.runner_id
        if runner is not None and self.performer.peers.get(runner) is peer:
            del self.performer.peers[runner]
            known = self.state.runners.get(runner)
            if known is not None:
                self.tell(Disconnected(at=now(), by=peer.principal, runner=runner, session=known.session))
                allocation = self.state.allocations.get(known.allocation or "")
                if allocation is not None and allocation.state.endswith("ING") and not self.stopped.done():
                    self.performer.perform(self.state, ef.Allocate("check", allocation.id, allocation.site, allocation.tag))
        if runner is not None and self.performer.greeting.get(runner, (None, 0))[0] is peer:
            del self.performer.greeting[runner]

    def token_for(self, allocation: str) -> str | None:
        """The token of an allocation that is alive, or of the clients."""
        known = self.state.allocations.get(allocation)
        if known is not None and not known.state.endswith("ING"):
            return None
        return self._tokens(allocation)


def _changed(entries: list[Entry]) -> set[int]:
    """Batches whose jobs moved."""
    out: set[int] = set()
    for entry in entries:
        event = entry.event
        if isinstance(event, Ended):
            out.update(row[0] for row in event.rows)
        elif isinstance(event, Moved | Submitted | Removed | Leased):
            out.add(event.batch)
        elif isinstance(event, Started):
            out.update(row[0] for row in event.rows)
    return out

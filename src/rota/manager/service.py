"""The manager's loop: drain what waits, step the core, commit, and only then act and answer."""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Mapping

from rota.core import effects as ef
from rota.core import invariants
from rota.core.decide.deadlines import is_busy
from rota.core.snapshot import restore, take_columns, take_snapshot
from rota.core.state import Settings, State
from rota.core.step import Core, Step
from rota.core.stimuli import SetMode, SiteSeen, Stimulus, Tick
from rota.core.turn import Done, Turn
from rota.manager.answers import Answers
from rota.manager.answers.running import Running
from rota.manager.housekeeping import Housekeeping, HousekeepingSettings
from rota.manager.inbound import Inbound, now
from rota.manager.intake import Intake
from rota.manager.jobbook import JobBook
from rota.manager.observing import POLL_S, RESTING_POLL_S, Observer
from rota.manager.once import Duplicates
from rota.manager.outbound import Outbound
from rota.manager.sites.api import Site
from rota.manager.writer import Writer
from rota.model.errors import NoSpaceError, RotaError, StoreError, UsageError
from rota.model.events import Ended, Entry, Leased, Moved, Pruned, Removed, Started, Submitted
from rota.model.site import SiteFacts
from rota.store.api import Column, Store
from rota.wire import auth, messages
from rota.wire.peer import Peer

__all__ = ["Manager"]

log = logging.getLogger("rota")

CHECKPOINT_ENTRIES = 20_000
CHECKPOINT_S = 120.0
STOP_S = 15.0
LEARN_S = 5.0
LEARN_MOST_S = 300.0
ALONE_S = 10.0
"""An embedded manager ends when nobody is connected and nothing has run for this long."""


class Manager:
    """One manager: the core, its store, its runners and its clients."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        sites: Mapping[str, Site],
        *,
        home: str,
        embedded: bool,
        housekeeping: HousekeepingSettings,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.home = home
        self.store = store
        self.settings = settings
        self.sites = sites
        self.started = now()
        self.embedded = embedded
        self.writer = Writer(self.loop)
        self.book = JobBook(store, {name: site.config.setup for name, site in sites.items()})
        self.running = Running()
        self.intake = Intake(store, self.writer)
        welcome = {
            "version": messages.VERSION,
            "touch_s": settings.touch_s,
            "start_by_s": settings.start_by_s,
            "grace_s": 10,
        }
        peers: dict[str, Peer] = {}
        self.observer = Observer(sites, self.book, peers, self.tell)
        self.outbound = Outbound(self.book, welcome, peers, self.observer.allocate)
        self.inbound = Inbound(self, lambda name: auth.find_token(home, name))
        self.duplicates = Duplicates(store)
        self.housekeeping = Housekeeping(self, housekeeping)
        self.answers = Answers(self)
        self.clients: set[Peer] = set()
        self.trouble: str | None = None
        """Why new work is refused, if it is."""
        self.stopped: asyncio.Future[int] = self.loop.create_future()
        self.stopping = False
        self.taken_down = False
        """Somebody wants no manager, not only another one."""
        self._inbox: list[tuple[Stimulus, Done | None]] = []
        self._after: list[Callable[[], None]] = []
        """Questions that wait for the commit under way, so that nothing is answered that is not on disk."""
        self._turning = False
        self._timer: asyncio.TimerHandle | None = None
        self._since_checkpoint = 0
        self._checkpoint_at = self.loop.time() + CHECKPOINT_S
        self._alone_since = self.loop.time()
        self._tasks: set[asyncio.Task[None]] = set()
        self.core = self._load()

    @property
    def state(self) -> State:
        """The core's state."""
        return self.core.state

    def _load(self) -> Core:
        loaded = self.store.load()
        state = restore(
            self.settings,
            secrets.randbits(64),
            loaded.snapshot,
            loaded.seq,
            [(c.batch, c.chunk, c.states, c.attempts) for c in loaded.columns],
            loaded.tail,
        )
        return Core(self.settings, state=state)

    # ---- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up the work: sites first, then what the last life left open."""
        effects = self.core.restart(now())
        for site in self.sites.values():
            site.watch(self.observer.woken.set)
            self.core.step(_site_seen(site.name, site.first_facts()))
            self._tasks.add(self.loop.create_task(self._learn(site)))
        for effect in effects:
            self.outbound.perform(self.state, effect)
        self.loop.create_task(self._poll())
        self.housekeeping.start()
        self._tick()

    async def _learn(self, site: Site) -> None:
        """Ask a site what it offers, until it says so."""
        wait = LEARN_S
        while not self.stopped.done():
            try:
                facts = await site.learn()
                if facts is not None:
                    self.tell(_site_seen(site.name, facts))
                return
            except RotaError as error:
                log.warning("%s", error)
                if wait == LEARN_S:  # it will say the same of submissions, and that is shown
                    self.tell(_site_seen(site.name, site.facts()))
            await asyncio.sleep(wait)
            wait = min(wait * 2, LEARN_MOST_S)

    async def _poll(self) -> None:
        while not self.stopped.done():
            wait = POLL_S if is_busy(self.state) or self.trouble else RESTING_POLL_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.observer.woken.wait(), wait)
            self.observer.woken.clear()
            try:
                await self.observer.poll(self.state)
            except Exception:
                log.exception("polling failed")
            self._housekeeping()

    def _housekeeping(self) -> None:
        if self.trouble is not None:
            self._try_again()
        if self.stopping:
            return
        self.housekeeping.look()
        busy = any(runner.jobs for runner in self.state.runners.values())
        if busy or self.clients:
            self._alone_since = self.loop.time()
        if self.embedded and self.loop.time() - self._alone_since > ALONE_S:
            self.stop(kill=False)
        elif self.state.mode == "draining" and not busy:
            log.info("drained")
            self.taken_down = True
            self.stop(kill=False)

    def stop(self, kill: bool) -> None:
        """End this manager. Running jobs go on without it, unless they are to be killed."""
        if not self.stopping:
            self.stopping = True
            self.loop.create_task(self._stop(kill))

    async def _stop(self, kill: bool) -> None:
        if kill:
            await self._end_allocations()
        else:
            for runner in list(self.state.runners.values()):
                if not runner.jobs and self.state.soft.contacts[runner.id].connected:
                    self.outbound.perform(self.state, ef.Order(runner.id, runner.session, "close", []))
            await asyncio.sleep(0.05)
        if self.state.mode == "draining":  # that was for this manager; the next one serves
            self.tell(SetMode(at=now(), mode="serving", holder=""))
        while self._turning or self._inbox:  # noqa: ASYNC110  a few times at most
            await asyncio.sleep(0.005)
        self._turning = True  # nothing more is taken
        if self._timer is not None:
            self._timer.cancel()
        await self.observer.close()
        await self.housekeeping.close()
        try:
            await self.writer.run(self._snapshot())
        except RotaError as error:
            log.error("the last checkpoint failed (nothing is lost, the next start takes longer): %s", error)
        self.writer.close()
        self.store.close()
        if not self.stopped.done():
            self.stopped.set_result(0)

    async def _end_allocations(self) -> None:
        """Tell every runner to end its jobs, report that and exit, and wait for it."""
        for allocation in list(self.state.allocations.values()):
            if allocation.state.endswith("ING"):
                terminate = ef.Allocate("terminate", allocation.id, allocation.site, allocation.tag)
                self.outbound.perform(self.state, terminate)
        deadline = self.loop.time() + STOP_S
        while self.loop.time() < deadline and any(a.state.endswith("ING") for a in self.state.allocations.values()):
            await asyncio.sleep(0.02)
            await self.observer.poll(self.state)

    def fail(self, error: BaseException) -> None:
        """The store cannot be trusted: stop at once, acknowledge nothing more. Runners go on and keep their reports."""
        self.stopping = self._turning = True
        if not self.stopped.done():
            log.critical("stopping at once: %s", error)
            self.stopped.set_result(1)

    def lost_home(self) -> None:
        """Another manager has our home."""
        self.fail(RotaError("another manager has taken over this home"))

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
        if self.stopped.done():
            return
        inbox, self._inbox = self._inbox, []
        turn = Turn(self.core)
        try:
            turn.take(inbox)
            if not self.stopping:
                turn.schedule(now())
        except Exception as error:
            log.exception("the core failed")
            self.fail(error)
            return
        if turn.entries or turn.results:
            self._commit(turn)
        else:
            self._committed(None, turn)

    def _commit(self, turn: Turn, again: bool = False) -> None:
        store = self.store
        self.writer.put(
            lambda: store.commit(turn.entries, turn.results), lambda error: self._committed(error, turn, again)
        )

    def _committed(self, error: BaseException | None, turn: Turn, again: bool = False) -> None:
        if self.stopped.done():
            return
        if isinstance(error, NoSpaceError) and not again and not _submits(turn.entries):
            self._in_trouble(error)
            self._commit(turn, again=True)  # the store has given up its reserve, so that accepted work can be written
            return
        if isinstance(error, NoSpaceError | UsageError):
            self._reload(error, turn.answers)
        elif error is not None:
            self.fail(error)
            return
        else:
            self._act(turn)
        after, self._after = self._after, []
        for question in after:
            question()
        self._next()

    def _act(self, turn: Turn) -> None:
        """The facts are on disk: do what follows from them, and answer."""
        state, perform = self.state, self.outbound.perform
        try:
            for effect in turn.effects:
                perform(state, effect)
        except StoreError as error:
            self.fail(error)
            return
        except Exception:  # a bug; what was not done is repeated by the runner's next touch or greeting
            log.exception("an effect failed")
        turn.answer()
        self._since_checkpoint += len(turn.entries)
        gone = {number for e in turn.entries if isinstance(e.event, Pruned) for number in e.event.batches}
        if gone:
            self.book.drop(gone)
        changed = _changed(turn.entries) | gone
        if changed:
            self.answers.watchers.changed(changed)

    def _next(self) -> None:
        if self._inbox:
            self.loop.call_soon(self._turn)
            return
        self._turning = False
        due = self._since_checkpoint >= CHECKPOINT_ENTRIES or (
            self._since_checkpoint and self.loop.time() >= self._checkpoint_at
        )
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
                self.fail(error)
                return
            self._next()

        self.writer.put(self._snapshot(), done)

    def _in_trouble(self, error: NoSpaceError) -> None:
        log.error("%s", error)
        self.trouble = f"{error}; no new work is taken until then, what was accepted goes on"

    def _reload(self, error: NoSpaceError | UsageError, answers: list[tuple[Done, Step | RotaError]]) -> None:
        """What could not be written has not happened. Start again from what is on disk, as after a crash.

        Reports that were not acknowledged come again; requests are answered with the reason.
        """
        if isinstance(error, NoSpaceError):
            self._in_trouble(error)
            error = NoSpaceError(self.trouble)
        inbox, self._inbox = self._inbox, []
        for done, outcome in [*answers, *((done, error) for _, done in inbox if done is not None)]:
            done(outcome if isinstance(outcome, RotaError) else error)
        outbound = self.outbound
        for peer in [*outbound.peers.values(), *(peer for peer, _ in outbound.greeting.values())]:
            peer.close()
        outbound.peers.clear()
        outbound.greeting.clear()
        sites = self.state.soft.sites
        try:
            self.core = self._load()
        except RotaError as problem:
            self.fail(problem)
            return
        self.book.forget()
        self.running.forget()
        for site, facts in sites.items():
            self.core.step(_site_seen(site, facts))
        for effect in self.core.restart(now()):
            outbound.perform(self.state, effect)

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


def _site_seen(name: str, facts: SiteFacts) -> SiteSeen:
    return SiteSeen(at=now(), site=name, facts=facts)


def _submits(entries: list[Entry]) -> bool:
    """Whether they take in new work."""
    return any(isinstance(entry.event, Submitted) for entry in entries)


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

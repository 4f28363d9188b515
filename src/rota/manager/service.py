"""The manager's loop: drain what waits, step the core, commit, and only then act and answer."""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from typing import Any

from rota.core.settled import put_all_away
from rota.core.state import Settings, State
from rota.core.step import Core, Step
from rota.core.stimuli import SetMode, Stimulus, Tick
from rota.core.turn import PUT_OFF_S, Done, Turn
from rota.manager.answers import Answers
from rota.manager.audit import Audit
from rota.manager.checkpoints import Checkpoints, state_of
from rota.manager.data.files import Files
from rota.manager.data.outputs import Outputs
from rota.manager.data.staging import Staging
from rota.manager.housekeeping import Housekeeping, HousekeepingSettings
from rota.manager.inbound import Inbound, now
from rota.manager.intake import Intake
from rota.manager.jobbook import JobBook
from rota.manager.observing import Observer, site_seen
from rota.manager.outbound import Outbound
from rota.manager.quarantine import Quarantine
from rota.manager.reloading import Reloader
from rota.manager.sites.api import Site
from rota.manager.writer import Writer
from rota.model.errors import NoSpaceError, RotaError, StoreError, UsageError
from rota.model.events import Entry, Pruned, RunnerGreeted, RunnerMoved, Submitted
from rota.store.api import Store
from rota.wire.auth import kept_secret, sweep_tokens
from rota.wire.peer import Peer
from rota.wire.tokens import Tokens

__all__ = ["Manager"]

log = logging.getLogger("rota")

STOP_S = 15.0
"""How long runners may take to end their jobs when the manager is to kill them."""
TIMER_SLACK_S = 0.001
"""How much too early a Tick may come, so that a timer need not be set anew for nothing."""
PASS_WAIT_S = 5.0
PASS_WAIT_MOST_S = 300.0
"""How long a scheduling pass that failed is left alone: doubled each time."""
FETCHED = 1_000
"""Settled batches that stay whole after a look, until the next checkpoint puts them away."""
SMALL = 8
"""Entries and results of a commit for which going to the writer's thread and back is not worth it."""
ALONE_S = 10.0
"""An embedded manager ends when nobody is connected and nothing has run for this long."""


class Manager:
    """One manager: the core, its store, its runners and its clients."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        sites: dict[str, Site],
        *,
        home: str,
        embedded: bool,
        pilot: bool = False,
        housekeeping: HousekeepingSettings,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.home = home
        self.store = store
        self.settings = settings
        self.sites = sites
        self.started = now()
        self.embedded = embedded
        self.pilot = pilot
        """Whether it ends, with all that runs, when its pilot is gone: it may have outlived their allocation."""
        self.tokens = Tokens(home)
        self.audit = Audit(os.path.join(home, "audit.jsonl"))
        self.writer = Writer(self.loop)
        self.book = JobBook(store, {name: site.config.setup for name, site in sites.items()}, home)
        for name, site in sites.items():
            self.book.tell(name, site.env_style, site.env)
        self.intake = Intake(store, self.writer)
        peers: dict[str, Peer] = {}
        self.observer = Observer(sites, self.book, peers, self.tell)
        self.outbound = Outbound(self.book, settings, peers, self.observer.allocate, kept_secret(home, "jobs"))
        files = Files(store, self.writer, sites, self.tell, home)
        self.staging = Staging(files, Outputs(files, self.writer, home), self.book, sites, peers, self.tell)
        self.outbound.staging = self.staging
        self.observer.promise = self.staging.promise
        self.inbound = Inbound(self)
        self.housekeeping = Housekeeping(self, housekeeping)
        self.answers = Answers(self)
        self.reloader: Reloader | None = None
        """Reads the configuration again; whoever made the sites gives it."""
        self.stopped: asyncio.Future[int] = self.loop.create_future()
        self.stopping = False
        self.taken_down = False
        """Whether somebody wants no manager any more, not only another one."""
        self._inbox: list[tuple[Stimulus, Done | None]] = []
        self._after: list[Callable[[], None]] = []
        """Questions that wait for the commit under way, so that nothing is answered that is not on disk."""
        self._turning = False
        self._owes_pass = False
        """Whether the scheduling pass of the last turn was put off."""
        self._pass_due: asyncio.TimerHandle | None = None
        """When there is to be a turn for such a pass, if nothing else brings one."""
        self._timer: asyncio.TimerHandle | None = None
        """Comes no later than the next Tick is due."""
        self._due = 0.0
        """When that is."""
        self._checkpoints = Checkpoints(store)
        self._quarantine = Quarantine(os.path.join(home, "quarantine"))
        self._pass_at = self._pass_wait_s = 0.0
        self._alone_since = self.loop.time()
        self.core = self._load()

    @property
    def state(self) -> State:
        """The core's state."""
        return self.core.state

    def _load(self) -> Core:
        return Core(self.settings, state=state_of(self.store.load(), self.settings, secrets.randbits(64)))

    # ---- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up the work: sites first, then what the last life left open."""
        effects = self.core.restart(now())
        live = {name for name, known in self.state.allocations.items() if known.state.endswith("ING")}
        sweep_tokens(self.home, live)
        for seen in self.observer.start():
            self.core.step(seen)
        self.staging.start(self.state)
        for effect in effects:
            self.outbound.perform(self.state, effect)
        self.outbound.flush()
        self.loop.create_task(self._poll())
        self.housekeeping.start()
        self._tick()

    async def _poll(self) -> None:
        while not self.stopped.done():
            await self.observer.rest(self.state, self.intake.trouble is not None)
            try:
                await self.observer.poll(self.state)
            except Exception:
                log.exception("polling failed")
            self.staging.tell_hosts(self.state)
            self.staging.files.tidy()
            self._housekeeping()

    def _housekeeping(self) -> None:
        self.intake.try_again()
        if self.stopping:
            return
        if self.state.batches.fetched > FETCHED:
            put_all_away(self.state.batches)
        self.housekeeping.look()
        if self.reloader is not None:
            self.reloader.look()
        busy = any(runner.jobs or runner.parts for runner in self.state.runners.values())
        if (busy and not self.pilot) or self.inbound.clients:
            self._alone_since = self.loop.time()
        if self.embedded and self.loop.time() - self._alone_since > ALONE_S:
            self.stop(kill=self.pilot)
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
            self.outbound.close_idle(self.state)
            await asyncio.sleep(0.05)
        if self.state.mode == "draining":  # that was for this manager; the next one serves
            self.tell(SetMode(at=now(), mode="serving", holder=""))
        while self._turning or self._inbox:  # noqa: ASYNC110  a few times at most
            await asyncio.sleep(0.005)
        self._turning = True  # nothing more is taken
        if self._timer is not None:
            self._timer.cancel()
        await self.staging.close()
        await self.observer.close()
        await self.housekeeping.close()
        try:
            await self.writer.run(self._checkpoints.take(self.state))
        except RotaError as error:
            log.error("the last checkpoint failed (nothing is lost, the next start takes longer): %s", error)
        self.writer.close()
        self.store.close()
        self.audit.close()
        if not self.stopped.done():
            self.stopped.set_result(0)

    async def _end_allocations(self) -> None:
        """Tell every runner to end its jobs, report that and exit, and wait for it.

        Told a second time, runners give their jobs no more grace: whoever ignores TERM is killed.
        """
        for _ in range(2):
            self.observer.terminate_all(self.state)
            deadline = self.loop.time() + STOP_S
            while self.loop.time() < deadline and any(a.state.endswith("ING") for a in self.state.allocations.values()):
                await asyncio.sleep(0.02)
                await self.observer.poll(self.state)

    def fail(self, error: BaseException) -> None:
        """Stop at once, since the store cannot be trusted: nothing more is acknowledged; runners keep their reports."""
        self.stopping = self._turning = True
        if not self.stopped.done():
            log.critical("stopping at once: %s", error)
            self.stopped.set_result(1)

    def lost_home(self) -> None:
        """Stop at once: another manager has our home."""
        self.fail(RotaError("another manager has taken over this home"))

    # ---- the loop ---------------------------------------------------------------------------------------------------

    def tell(self, stimulus: Stimulus, done: Done | None = None) -> None:
        """Tell the core what happened. `done` is called with the outcome once that is durable."""
        self._inbox.append((stimulus, done))
        if not self._turning:
            self._turning = True
            self.loop.call_soon(self._turn)

    def told(
        self, stimulus: Stimulus, reply: Callable[[Step], dict[str, Any]] = lambda step: step.reply
    ) -> asyncio.Future[dict[str, Any]]:
        """Tell the core of a stimulus; the reply to it, made as soon as that is durable."""
        future: asyncio.Future[dict[str, Any]] = self.loop.create_future()

        def done(outcome: Step | RotaError) -> None:
            if future.done():  # nobody waits any more
                return
            if isinstance(outcome, RotaError):
                future.set_exception(outcome)
            else:
                future.set_result(reply(outcome))

        self.tell(stimulus, done)
        return future

    async def durable(self) -> None:
        """Wait until all that the state holds is on disk."""
        future: asyncio.Future[None] = self.loop.create_future()
        self.when_durable(lambda: None if future.done() else future.set_result(None))
        await future

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
        turn = Turn(self.core, self._quarantined)
        turn.take(inbox)
        self._owes_pass = turn.puts_off(self._owes_pass)
        if not (self.stopping or turn.spoilt or self._owes_pass) and self.loop.time() >= self._pass_at:
            turn.schedule(now())
        if turn.entries or turn.results:
            self._commit(turn)
        else:
            self._committed(None, turn)

    def _commit(self, turn: Turn, again: bool = False) -> None:
        self.writer.put(
            lambda: self.store.commit(turn.entries, turn.results),
            lambda error: self._committed(error, turn, again),
            small=len(turn.entries) + len(turn.results) <= SMALL,
        )

    def _committed(self, error: BaseException | None, turn: Turn, again: bool = False) -> None:
        if self.stopped.done():
            return
        if isinstance(error, NoSpaceError) and not again and not _submits(turn.entries):
            self.intake.refuse(error)
            self._commit(turn, again=True)  # the store has given up its reserve, so that accepted work can be written
            return
        self.intake.stuck = isinstance(error, NoSpaceError) and again
        if isinstance(error, NoSpaceError | UsageError):
            self._reload(error, turn.answers)
        elif error is not None:
            self.fail(error)
            return
        elif turn.spoilt:
            turn.answer()
            self._inbox[:0] = turn.left
            self._checkpoints.entries += len(turn.entries)
            self._begin_again()
            self.answers.watchers.committed(turn.entries)
        else:
            self._act(turn)
        after, self._after = self._after, []
        for question in after:
            question()
        self._next()

    def _act(self, turn: Turn) -> None:
        """Do what follows from facts that are on disk, and answer."""
        state, perform = self.state, self.outbound.perform
        try:
            for effect in turn.effects:
                perform(state, effect)
        except StoreError as error:
            self.fail(error)
            return
        except Exception:  # a bug; what was not done is repeated by the runner's next touch or greeting
            log.exception("an effect failed")
        self.outbound.flush()
        if self.staging.is_busy and turn.results:
            self.staging.ended(state, turn.results)
        turn.answer()
        self.answers.flush()
        self.answers.watchers.committed(turn.entries)
        if not self._owes_pass:
            self.outbound.flush_acks()
        self.inbound.end_jobs()
        self._checkpoints.committed(self.state, turn.entries)
        for entry in turn.entries:
            if isinstance(entry.event, Pruned):
                self.book.drop(entry.event.batches)
            elif isinstance(entry.event, RunnerGreeted | RunnerMoved):
                self.staging.tell_hosts(state)

    def _next(self) -> None:
        if self._inbox:
            self.loop.call_soon(self._turn)
            return
        if self._owes_pass and self._pass_due is None:
            self._pass_due = self.loop.call_later(PUT_OFF_S, self._pass_now)
        self._turning = False
        if self._checkpoints.due and not self.stopping:
            self._turning = True
            self._checkpoint()
        self._arm()

    def _arm(self) -> None:
        """Have a Tick when one is due. A timer that comes before that is left: most deadlines only move on."""
        self._due = self.core.next_deadline(now())
        if self._timer is not None:
            if self._timer.when() <= self._due:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(self._due, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        if self.loop.time() < self._due - TIMER_SLACK_S:
            self._arm()
        else:
            self._tick()

    def _tick(self) -> None:
        self.tell(Tick(at=now()))

    def _pass_now(self) -> None:
        self._pass_due = None
        self.outbound.flush_acks()
        if self._owes_pass and not self._turning:
            self.tell(Tick(at=now()))

    def checkpoint_soon(self) -> None:
        """Take a checkpoint after this turn, or now if there is none."""
        self._checkpoints.hurry()
        self.tell(Tick(at=now()))

    def _checkpoint(self) -> None:
        def done(error: BaseException | None) -> None:
            if isinstance(error, NoSpaceError):
                self._reload(error, [])
            elif error is not None:
                self.fail(error)
                return
            self._next()

        self.writer.put(self._checkpoints.take(self.state), done)

    def _reload(self, error: NoSpaceError | UsageError, answers: list[tuple[Done, Step | RotaError]]) -> None:
        """Start again from what is on disk, as after a crash: what could not be written has not happened.

        Reports that were not acknowledged come again; requests are answered with the reason.
        """
        if isinstance(error, NoSpaceError):
            error = self.intake.refuse(error)
        inbox, self._inbox = self._inbox, []
        for done, outcome in [*answers, *((done, error) for _, done in inbox if done is not None)]:
            done(outcome if isinstance(outcome, RotaError) else error)
        self._begin_again()

    def _quarantined(self, what: Stimulus | str, error: Exception) -> RotaError:
        """Keep what made the core fail. The pass, which would fail again, is left alone for a while."""
        path = self._quarantine.keep(self.state.seq, what, error)
        if isinstance(what, str):
            self._pass_wait_s = min(self._pass_wait_s * 2 or PASS_WAIT_S, PASS_WAIT_MOST_S)
            self._pass_at = self.loop.time() + self._pass_wait_s
            self.loop.call_later(self._pass_wait_s, self._tick)
        return RotaError(f"the manager failed at this and has not done it: {type(error).__name__}; see {path}")

    def _begin_again(self) -> None:
        """Fold the state anew from what is on disk, and take up the work as after a restart."""
        self.outbound.forget()
        sites = self.state.soft.sites
        try:
            self.core = self._load()
        except RotaError as problem:
            self.fail(problem)
            return
        self.book.forget()
        self.answers.running.forget()
        for site, facts in sites.items():
            self.core.step(site_seen(site, facts))
        for effect in self.core.restart(now()):
            self.outbound.perform(self.state, effect)
        self.outbound.flush()


def _submits(entries: list[Entry]) -> bool:
    """Whether any of these entries takes in new work."""
    return any(isinstance(entry.event, Submitted) for entry in entries)

"""The real runner: one loop over the connection, the signals and the clock."""

from __future__ import annotations

import binascii
import os
import select
import signal
import time

from rota.runner import REFUSED, UNREACHED
from rota.runner.connection import ClosedError, Connection, Target
from rota.runner.lease import ProtocolError
from rota.runner.protocol import Runner
from rota.runner.spool import UNSENT, log, write_json

TYPE_CHECKING = False  # as in `typing`, which is not worth its load time before the greeting is out
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from rota.runner.devices import Gpus
    from rota.runner.handed import HandedOver
    from rota.runner.lease import Hold, Key, Order

__all__ = ["Agent"]

GREETING_S = 10.0
ECHO_S = 1.0
CHILD = bytes([signal.SIGCHLD])
FIRST_RETRY_S = 0.1
LAST_RETRY_S = 5.0
GIVE_UP_S = 24 * 3600.0
TAIL_MOST = 65536  # bytes of a running job's output in one answer
LAST_WORDS_S = 5.0  # how long an ending runner waits for its reports to be acknowledged
ROUNDS = 8  # of ends and starts between two looks at the connection
NEVER = float("inf")
# With what batch systems begin to end an allocation. URG is sent by drivers where TERM would end the shell above us.
STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGURG)
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)  # what batch systems send before an allocation ends
clock = time.monotonic


class Agent:
    """Keeps the connection, gives messages to the protocol and does what it orders."""

    def __init__(  # what it is told on its command line
        self,
        target: Target,
        runner: Runner,
        output: str,
        until_s: Optional[float] = None,
        launcher: str = "none",
        gpus: Optional[Gpus] = None,
    ) -> None:
        began = clock()
        self.target = target
        self.runner = runner
        self.output = output
        self._until = None if until_s is None else began + until_s
        self._trouble = ""  # why there is no connection
        self._epoll = select.epoll()
        self._wake, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals(write)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._connection: Optional[Connection] = None
        self._registered = 0
        self._retry_at = began
        self._retry_s = FIRST_RETRY_S
        self._alone_since = began
        self._greet_by = NEVER
        self._greeted = False
        self._stop_by: Optional[float] = None  # set once we only wait for acknowledgements
        self._stopping = False
        self._told_to_stop = False
        self.supervised = False  # signals to all processes of an allocation come twice: also from the supervisor
        self._told_at, self._told_by = 0.0, 0
        self._child = False
        self._restored: Dict[Key, None] = {}
        self._connect(began)  # the greeting first: the rest is loaded and made while the manager reads it
        from rota.runner.credentials import Credentials
        from rota.runner.environment import inherited
        from rota.runner.jobs import Jobs
        from rota.runner.plan import Plans
        from rota.runner.segments import Segments

        plans = Plans(inherited(os.environb), runner.runner_id, gpus)
        self._credentials = plans.credentials = Credentials(runner, target, output)
        self.jobs = Jobs(runner, Segments(output), plans)
        self.jobs.epoll = self._epoll
        self.jobs.began, self.jobs.until = began, NEVER if self._until is None else self._until
        self.jobs.children.adopt_orphans()
        self._launched = self.jobs.launched = self._who_starts(launcher, write)

    def _who_starts(self, launcher: str, wake: int) -> HandedOver[Any]:
        """Whom jobs are handed over to: the launcher where there is one, or can be, and starters otherwise."""
        if launcher != "none":
            from rota.runner.launcher_jobs import LauncherJobs

            launched = LauncherJobs(self.jobs, self._epoll, launcher)
            if launched.possible:
                return launched
        from rota.runner.starters import Starters

        return Starters(self.jobs, wake)

    def take_over(self, restored: Dict[Key, None]) -> None:
        """Remember which held attempts come from an earlier runner's unsent.json, to remove it once they are told."""
        self._restored = restored

    def _signals(self, write: int) -> None:
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *STOPS, *WARNINGS):  # no terminal's INT comes here: the session is our own
            signal.signal(number, lambda *_: None)

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until there is nothing left to do; returns the exit status."""
        runner = self.runner
        while True:
            for fd, events in self._poll(clock()):
                if fd == self._wake:
                    self._signalled()
                elif self._connection is not None and fd == self._connection.fd:
                    self._exchange(events)
                elif self.jobs.gangs is not None and self.jobs.gangs.serve(fd, clock()):
                    pass
                else:
                    self._launched.exchange(clock())
            now = clock()
            self._work(now)
            if self._connection is not None:
                self._speak(now)
            if self._connection is None or self._stopping or runner.leaving or runner.refused:
                if self._may_leave(now):
                    return self._leave()
                if self._connection is None and now >= self._retry_at and not self._quiet():
                    self._connect(now)

    def _poll(self, now: float) -> List[Any]:
        deadline = self.jobs.next_tick
        asked = self.runner.deadline(now)
        if asked is not None and asked < deadline:
            deadline = asked
        if self._connection is None:
            if not self._quiet():
                deadline = min(deadline, self._retry_at)
        elif self.runner.session is None:
            deadline = min(deadline, self._greet_by)
        if self._stop_by is not None:
            deadline = min(deadline, self._stop_by)
        pause = deadline - now
        return self._epoll.poll(0.0 if pause < 0.0 else pause if pause < 60.0 else 60.0)

    def _signalled(self) -> None:
        numbers = os.read(self._wake, 4096)
        self._child = True  # a look in vain costs little
        if not numbers.strip(CHILD):
            return  # most signals are SIGCHLD and no other
        stop = next((number for number in STOPS if number in numbers), None)
        if stop is not None:
            if not self._told_to_stop:
                self._told_at, self._told_by = clock(), stop
                self._stop(None, stop.name)
            elif (stop == self._told_by and not self.supervised) or clock() > self._told_at + ECHO_S:
                self._stop(0.0, stop.name)
        elif not self._stopping:
            for number in WARNINGS:
                if number in numbers:
                    self._warned(signal.Signals(number).name)

    def _work(self, now: float) -> None:
        jobs, runner = self.jobs, self.runner
        if self._child:
            self._child = False
            jobs.reap(now)
        self._launched.look(now)
        if now >= jobs.next_tick:
            jobs.tick(now)
        if runner.queued:
            self._start(now)
            # To start a job takes as long as a short one runs: what has ended meanwhile needs no further wake-up.
            for _ in range(0 if self._launched.ready else ROUNDS):
                now = clock()
                if not (runner.queued and jobs.reap(now) and self._start(now)):
                    break
            if not runner.queued:
                jobs.leave_directory()
        self._launched.flush(now)

    def _start(self, now: float) -> bool:
        """Start what has a place; whether there was any."""
        leases = self.runner.startable(now, self._launched.ahead)
        any_there = bool(leases)
        while leases and not self.jobs.start(leases, now):
            leases = self.runner.startable(now)  # those that could not be started have left their place
        return any_there

    def _warned(self, name: str) -> None:
        """A batch system says that the allocation ends soon."""
        log("told by %s that the allocation ends: taking no more work" % name)
        self._stopping = True
        self.runner.stop("runner-stopped")
        self.jobs.warn_all("its allocation ends (%s)" % name, clock())

    def _stop(self, grace_s: Optional[float], name: str) -> None:
        """A batch system, or the driver of this machine, ends the allocation; told again, at once."""
        if not self._told_to_stop:
            log("told to stop (%s)" % name)
        self._stopping = self._told_to_stop = True
        self.runner.stop("runner-stopped")
        note = "its allocation is being ended (%s)" % name
        if self.jobs.is_over(clock()) and self.jobs.began > -NEVER:
            note = "the time of its allocation is over: give --time, or the site a longer allocation_time"
        self.jobs.kill_all(grace_s, None, clock(), note)
        if self.jobs.gangs is not None:
            self.jobs.gangs.end_all(grace_s, clock())

    # -- the connection ------------------------------------------------------------------------------------------

    def _quiet(self) -> bool:
        """Is there no use in connecting again?"""
        return self.runner.refused is not None or self.runner.expired

    def _connect(self, now: float) -> None:
        try:
            self._connection = self.target.open()
        except (OSError, ValueError) as error:
            self._trouble = str(error)
            if self._retry_s == FIRST_RETRY_S:
                log("cannot connect to %s: %s" % (self.target.shown(), error))
            self._lost(now)
            return
        self._greeted = False
        self._greet_by = now + GREETING_S
        self._registered = self._connection.events
        self._epoll.register(self._connection.fd, self._registered)
        if self._connection.ready:
            self._greet(now)

    def _greet(self, now: float) -> None:
        connection = self._connection
        assert connection is not None
        self._greeted = True
        message = self.runner.greet(now, None if self._until is None else max(0.0, self._until - now))
        try:
            connection.greet(message)
        except ClosedError as problem:
            self._drop(str(problem))

    def _exchange(self, events: int) -> None:
        connection = self._connection
        assert connection is not None
        try:
            if events & select.EPOLLOUT:
                connection.flush()
            messages = connection.receive()
        except ClosedError as problem:
            self._drop(str(problem))
            return
        now = clock()
        if connection.ready and not self._greeted:
            self._greet(now)
        for message in messages:
            self._take(message, now)
            if self._connection is not connection:
                return  # dropped because of what it said
        if connection.broken:
            self._drop(connection.broken)

    def _take(self, message: Dict[str, Any], now: float) -> None:
        runner = self.runner
        before = runner.session
        if type(message) is dict and message.get("t") == "recall":
            self._launched.recall()
        try:
            orders = runner.receive(message, now)
        except ProtocolError as problem:
            self._drop("the manager broke the protocol: %s" % problem)
            return
        if before is None and runner.session is not None:
            self._retry_s = FIRST_RETRY_S
        for order in orders:
            self._obey(order, now)
        if self._restored:
            self._forget_restored()

    def _obey(self, order: Order, now: float) -> None:
        if order[0] == "kill":
            self.jobs.kill(
                order[1], order[2], "killed", now, "its runner was given up" if self.runner.expired else None
            )
        elif order[0] == "tail":
            self._tell_tail(order[1])
        elif order[0] == "hold":
            self._hold(order[1])
        elif order[0] == "release":
            self.jobs.open_gangs().release(order[1], order[2], now)
        else:
            log("leaving: %s" % order[1])
            if self.jobs.gangs is not None:
                self.jobs.gangs.end_all(None, now)
            if self.runner.refused:
                self._drop("refused")

    def _hold(self, hold: Hold) -> None:
        try:
            self.jobs.open_gangs().hold(hold)
        except OSError as error:
            log("cannot hold a part of job %d.%d: %s" % (*hold.key[:2], error))
            self.runner.released(hold.key)

    def _tell_tail(self, asked: Dict[str, Any]) -> None:
        """Answer what a job has written so far; null if it does not run: then its files may be another's."""
        connection = self._connection
        if connection is None:
            return
        try:
            offset, limit = int(asked["offset"]), min(int(asked["limit"]), TAIL_MOST)
            found = self.jobs.written(tuple(asked["job"]), asked["stream"] == "stderr", offset, limit)
            data = None if found is None else binascii.b2a_base64(found[0], newline=False).decode()
            told = {"data": data, "next": None if found is None else found[1]}
            connection.send({"t": "tail", "session": asked["session"], "ask": asked["ask"], **told})
        except (KeyError, TypeError, ValueError) as problem:
            self._drop("the manager broke the protocol: tail: %r" % problem)
        except ClosedError as problem:
            self._drop(str(problem))

    def _speak(self, now: float) -> None:
        connection = self._connection
        if connection is None:
            return
        if self.runner.session is None and now >= self._greet_by:
            self._drop("no answer to the greeting")
            return
        try:
            for message in self.runner.outgoing(now, self._stopping):
                connection.send(message)
        except ClosedError as problem:
            self._drop(str(problem))
            return
        if connection.events != self._registered:
            self._registered = connection.events
            self._epoll.modify(connection.fd, self._registered)

    def _drop(self, why: str) -> None:
        connection = self._connection
        assert connection is not None
        log("connection lost: %s" % why)
        self._trouble = why
        self._epoll.unregister(connection.fd)
        connection.close()
        self._connection = None
        self.runner.lost_connection()
        now = clock()
        if self._greeted and self._retry_s == FIRST_RETRY_S:
            self._alone_since = now
        self._lost(now)

    def _lost(self, now: float) -> None:
        self._retry_at = now + self._retry_s * (
            0.8 + os.urandom(1)[0] / 640
        )  # jitter: a thousand runners must not come at once
        self._retry_s = min(LAST_RETRY_S, self._retry_s * 2)

    # -- leaving -------------------------------------------------------------------------------------------------

    def _may_leave(self, now: float) -> bool:
        runner = self.runner
        if runner.finished:
            return True
        if self.jobs.busy:
            if self._connection is None and self.jobs.gangs and now - self._alone_since > GIVE_UP_S:
                self.jobs.gangs.end_all(None, now)  # nobody will release them any more
            return False
        if self._connection is None and not runner.queued:
            held = runner.occupied
            if self._stopping or self._quiet() or now - self._alone_since > (GIVE_UP_S if held else runner.linger_s):
                return True
        if not (self._stopping or self._quiet()):
            return False
        if self._stop_by is None:
            self._stop_by = now + LAST_WORDS_S
        return now >= self._stop_by

    def _leave(self) -> int:
        runner = self.runner
        if self._connection is not None:
            self._last_words()
        unsent = runner.unsent()
        if unsent["ended"] or unsent["disclaimed"]:
            write_json(self.output, UNSENT, unsent)
            log("wrote what was not acknowledged to %s" % os.path.join(self.output, UNSENT))
        self.jobs.segments.close()
        self._credentials.close()
        if runner.refused is not None:
            return REFUSED
        if self._stopping or runner.leaving is not None:
            return 0
        if not runner.welcomed:
            log("never got an answer from the manager at %s: %s" % (self.target.shown(), self._trouble))
            return 1
        log("no answer from the manager at %s any more: %s" % (self.target.shown(), self._trouble))
        return UNREACHED if self.supervised else 0

    def _last_words(self) -> None:
        """Send a buffered `bye`, without waiting long for it."""
        connection = self._connection
        assert connection is not None
        until = clock() + 1.0
        try:
            while connection.events & select.EPOLLOUT and clock() < until:
                connection.flush()
                time.sleep(0.01)
        except ClosedError:
            pass
        connection.close()

    def _forget_restored(self) -> None:
        for key in list(self._restored):
            if key not in self.runner._held:
                del self._restored[key]
        if not self._restored:
            try:
                os.unlink(os.path.join(self.output, UNSENT))
            except OSError:
                pass

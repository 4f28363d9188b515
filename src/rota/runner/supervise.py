"""The supervisor of a node: starts its runner, and another unless that was told to leave.

It is the witness for its node. A new runner names the one that it replaces only when everything which that had started
here has ended: then the manager may give those jobs to others. Each process has an id and an output directory of
its own, so that what a dead one left is never mixed with what the next one says.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager
from typing import Dict, Iterator, List, Optional, Tuple

from rota.runner import CRASHED, REFUSED, UNREACHED
from rota.runner.guard import marked
from rota.runner.kill import send
from rota.runner.measure import Process, become_subreaper, scan, start_of

__all__ = ["is_last", "run"]

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STEADY_S = 600.0  # after so long a life the next pause is the first again
LOOK_S = 0.05
STEP_S = 0.1
COMPLAIN_S = 30.0
FORWARDED = (
    *(signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGURG),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU),
)


def run(words: List[str], until: Optional[float]) -> int:
    """Supervise the runner of these options until it is told to leave; `until` is the end of the allocation (epoch)."""
    return Supervisor(words, until).run()


def is_last(status: int, first: bool) -> bool:
    """Whether a runner that ended so needs no successor: it was told to leave, or never known to the manager.

    Any other may have left behind, in the manager's books, what only a successor can vouch to be gone.
    """
    if not os.WIFEXITED(status):
        return False
    code = os.WEXITSTATUS(status)
    return code in (0, REFUSED) or (first and code not in (CRASHED, UNREACHED))


def _taken(words: List[str], name: str) -> Tuple[Optional[str], List[str]]:
    """The value of an option, and the words without it."""
    rest: List[str] = []
    value = None
    given = iter(words)
    for word in given:
        if word == name:
            value = next(given, None)
        elif word.startswith(name + "="):
            value = word[len(name) + 1 :]
        else:
            rest.append(word)
    return value, rest


class Supervisor:
    """One node's runner, again and again."""

    def __init__(self, words: List[str], until: Optional[float]) -> None:
        for name in ("--until", "--until-s", "--replaces"):  # the first two count from the supervisor's start
            _, words = _taken(words, name)
        name_, words = _taken(words, "--id")
        output, self._words = _taken(words, "--output")
        self._name = name_ or os.urandom(8).hex()
        self._output = os.path.abspath(output or ".")
        self._until = until
        self._child = 0
        self._stopping = False
        become_subreaper()  # what a dead runner leaves comes to us
        for number in FORWARDED:
            signal.signal(number, self._forward)

    def _forward(self, number: int, _: object) -> None:
        self._stopping = True
        if self._child:
            os.kill(self._child, number)  # not reaped, so it is still this one

    def run(self) -> int:
        """Start runners until one is told to leave; returns its status."""
        replaces: Optional[str] = None
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            runner = "%s.%s" % (self._name, os.urandom(4).hex())
            status = self._one(runner, replaces)
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            if is_last(status, replaces is None):
                return code
            how = "left, since it did not reach the manager" if code == UNREACHED else "died (%d)" % code
            _say("the runner %s %s" % (runner, how))
            self._clear(runner)
            if time.monotonic() - began > STEADY_S:
                pause_s = FIRST_PAUSE_S
            if not self._goes_on(pause_s):
                return code
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
            replaces = runner

    def _one(self, runner: str, replaces: Optional[str]) -> int:
        """Run one runner; returns its wait status."""
        entry = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
        words = [sys.executable, "-I", "-S", entry, *self._words, "--id", runner, "--supervised", "yes"]
        words += ["--output", os.path.join(self._output, runner.rpartition(".")[2])]
        if self._until is not None:
            words += ["--until", "%d" % self._until]
        if replaces is not None:
            words += ["--replaces", replaces]
        with _undisturbed():  # no signal may come before we know whom to forward it to
            try:
                self._child = os.posix_spawn(sys.executable, words, os.environ, setsigmask=())
            except OSError as error:
                _say("cannot start a runner: %s" % error)
                return CRASHED << 8
        while True:
            over = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            assert over is not None
            with _undisturbed():  # nor be forwarded to one that is reaped
                _, status = os.waitpid(over.si_pid, 0)
                if over.si_pid == self._child:
                    self._child = 0
                    return status

    def _clear(self, runner: str) -> None:
        """End everything that a dead runner had started on this node; returns when nothing of it is left.

        Or when we are told to stop and it cannot be ended: then there is no successor to vouch for it.
        """
        began = time.monotonic()
        complained = quiet = False
        mark = b"ROTA_RUNNER=" + os.fsencode(runner)
        while True:
            self._reap()
            found = _left(mark)
            if not found and quiet:
                return
            quiet = not found  # two looks: one alone can miss what is just being forked
            for pid, start in found.items():
                send(pid, start, signal.SIGKILL)
            if found and not complained and time.monotonic() - began > COMPLAIN_S:
                complained = True
                _say("cannot end what the runner %s started: processes %s" % (runner, " ".join(map(str, found))))
            if complained and self._stopping:
                return
            time.sleep(LOOK_S)

    def _reap(self) -> None:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    def _goes_on(self, pause_s: float) -> bool:
        """Whether there is to be another runner, after this pause."""
        if self._until is not None and time.time() + pause_s >= self._until:
            return False
        until = time.monotonic() + pause_s
        while not self._stopping and time.monotonic() < until:
            time.sleep(STEP_S)
        return not self._stopping


@contextmanager
def _undisturbed() -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


def _left(mark: bytes) -> Dict[int, int]:
    """Pid and start time of our descendants, and of all that carry the mark."""
    processes = scan()
    found: Dict[int, int] = {}
    for process in processes.values():
        if not process.zombie and _descends(process, processes):
            found[process.pid] = process.start
    for pid in marked(mark):
        start = start_of(pid)
        if start is not None:
            found[pid] = start
    return found


def _descends(process: Process, processes: Dict[int, Process]) -> bool:
    here, ours = process.parent, os.getpid()
    while here > 1 and here != ours:
        parent = processes.get(here)
        here = 0 if parent is None else parent.parent
    return here == ours


def _say(text: str) -> None:
    try:
        sys.stderr.write("%s rota-supervisor[%d] %s\n" % (time.strftime("%Y-%m-%d %H:%M:%S"), os.getpid(), text))
        sys.stderr.flush()
    except OSError:
        pass

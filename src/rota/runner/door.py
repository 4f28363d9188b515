"""The door of a node: where whoever knows the secret of an attempt has processes started within it.

Served by the runner's loop, which must never wait: what cannot be read or written now waits in small buffers, and who
does not prove himself soon is dropped.
"""

from __future__ import annotations

import json
import os
import resource
import select
import socket
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from rota.runner.channel import (
    DATA,
    ERR,
    ERROR,
    EXIT,
    IN,
    LIMIT,
    OUT,
    START,
    USAGE,
    ChannelError,
    DoorChannel,
    keep_alive,
)
from rota.runner.kill import TreeKill
from rota.runner.plan import StartError

if TYPE_CHECKING:
    from rota.runner.gang import Gangs
    from rota.runner.lease import Key

__all__ = ["Door"]

STRANGERS = 64  # connections that have not proved themselves
STRANGER_S = 10.0
COMMANDS = 1024  # that may run at once, if there are descriptors for so many
DESCRIPTORS = 4  # of each
OTHERS = 128  # descriptors for all else that a runner does
PAUSE_S = 0.1  # between looks whether there is room for another connection
BUFFER = 8 * DATA
NEVER = float("inf")
FAILED = 255


class Caller:
    """One connection, and the process that was started through it."""

    __slots__ = ("channel", "input", "input_ended", "over", "pid", "pipes", "since", "sock", "status", "stdin")

    def __init__(self, sock: socket.socket, channel: DoorChannel, since: float) -> None:
        self.sock = sock
        self.channel = channel
        self.since = since
        self.pid = 0
        self.status: Optional[int] = None  # of wait, once it is over
        self.stdin = -1
        self.pipes: Dict[int, bytes] = {}  # descriptor -> OUT or ERR
        self.input = bytearray()
        self.input_ended = False
        self.over = False  # the last word is in the buffer


class Door:
    """A listening socket, and all that came in by it."""

    def __init__(self, gangs: Gangs, epoll: select.epoll) -> None:
        self._gangs = gangs
        self._epoll = epoll
        self._watched: Dict[int, int] = {}
        self._callers: Dict[int, Caller] = {}  # by each of their descriptors
        self._by_pid: Dict[int, Caller] = {}
        self._deserted: Dict[int, TreeKill] = {}  # by pid: whose caller went away
        self._most = min(COMMANDS, max(1, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHERS) // DESCRIPTORS))
        self._listen_at = NEVER  # when to accept again, if not now
        self._listener = _listen()
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._watch(self._listener.fileno(), select.EPOLLIN)

    def close(self) -> None:
        """Close everything; what runs is ended by who closes."""
        for caller in {id(caller): caller for caller in self._callers.values()}.values():
            self._drop(caller, 0.0, desert=False)
        self._watch(self._listener.fileno(), 0)
        self._listener.close()

    def drop(self, key: Key, now: float) -> None:
        """Close the connections of an attempt."""
        for caller in {id(caller): caller for caller in self._callers.values()}.values():
            if caller.channel.proved and caller.channel.key == key:
                self._drop(caller, now, desert=False)

    def _watch(self, fd: int, events: int) -> None:
        before = self._watched.get(fd, 0)
        if events == before:
            return
        if not before:
            self._epoll.register(fd, events)
        elif not events:
            self._epoll.unregister(fd)
        else:
            self._epoll.modify(fd, events)
        if events:
            self._watched[fd] = events
        else:
            del self._watched[fd]

    # -- the loop ------------------------------------------------------------------------------------------------

    def serve(self, fd: int, now: float) -> bool:
        """Do what a descriptor is ready for; False if it is none of ours."""
        if fd == self._listener.fileno():
            self._accept(now)
            return True
        caller = self._callers.get(fd)
        if caller is None:
            return fd in self._watched
        try:
            if fd == caller.sock.fileno():
                self._receive(caller, now)
            elif fd == caller.stdin:
                self._feed(caller)
            else:
                self._read(caller, fd)
            self._arrange(caller, now)
        except (OSError, ChannelError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._drop(caller, now)
        return True

    def _accept(self, now: float) -> None:
        """Let in who waits, as far as there is room; the others wait on, or come to see that we cannot."""
        callers = [caller for fd, caller in self._callers.items() if fd == caller.sock.fileno()]
        room = STRANGERS - sum(not caller.channel.proved for caller in callers)
        for _ in range(min(room, self._most + STRANGERS - len(callers))):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # out of descriptors or memory: who waits would wake us again at once
                break
            sock.setblocking(False)
            keep_alive(sock)
            caller = self._callers[sock.fileno()] = Caller(sock, DoorChannel(self._gangs.secret_of), now)
            self._gangs.due(now + STRANGER_S)
            self._arrange(caller, now)
        self._watch(self._listener.fileno(), 0)
        self._listen_at = now + PAUSE_S
        self._gangs.due(self._listen_at)

    def _receive(self, caller: Caller, now: float) -> None:
        try:
            data = caller.sock.recv(1 << 16)
        except BlockingIOError:
            return
        if not data:
            raise ChannelError("gone")
        for kind, content in caller.channel.feed(data):
            if kind == IN and caller.pid:
                caller.input += content
                caller.input_ended = caller.input_ended or not content
                self._feed(caller)
            elif kind == START and not caller.pid and not caller.over:
                self._start(caller, json.loads(content.decode("ascii")))
            elif kind == LIMIT:
                self._gangs.exceeded(caller.channel.key, content.decode("utf-8", "replace"), now)
                caller.channel.send(LIMIT)
            elif kind == USAGE:
                caller.channel.send(USAGE, json.dumps(self._gangs.usage(caller.channel.key)).encode("ascii"))

    def _start(self, caller: Caller, request: Dict[str, Any]) -> None:
        ends: List[Tuple[int, int]] = []
        try:
            if len(self._by_pid) >= self._most:
                raise StartError("start", "%d commands run here by rota rsh: there can be no more" % len(self._by_pid))
            for _ in range(3):
                ends.append(os.pipe2(os.O_CLOEXEC))
            (his_in, in_), (out, his_out), (err, his_err) = ends
            caller.pid, notes = self._gangs.start(caller.channel.key, request, (his_in, his_out, his_err))
        except BaseException as problem:
            for pair in ends:
                os.close(pair[0])
                os.close(pair[1])
            if not isinstance(problem, (StartError, OSError)):
                raise  # nonsense was asked for: the connection is dropped
            note = problem.note if isinstance(problem, StartError) else str(problem)
            caller.channel.send(ERROR, note.encode("utf-8", "replace"))
            code = problem.exit_code if isinstance(problem, StartError) else None
            self._say_over(caller, code or FAILED)
            return
        for fd in (his_in, his_out, his_err):
            os.close(fd)
        for fd in (in_, out, err):
            os.set_blocking(fd, False)
            self._callers[fd] = caller
        caller.stdin, caller.pipes = in_, {out: OUT, err: ERR}
        self._by_pid[caller.pid] = caller
        for note in notes:
            caller.channel.send(ERROR, note.encode("utf-8", "replace"))

    def _feed(self, caller: Caller) -> None:
        """Write what came for standard input."""
        if caller.stdin < 0:
            caller.input.clear()
            return
        try:
            while caller.input:
                del caller.input[: os.write(caller.stdin, caller.input[:DATA])]
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            caller.input_ended = True
            caller.input.clear()
        if caller.input_ended:
            self._forget(caller.stdin)
            caller.stdin = -1

    def _read(self, caller: Caller, fd: int) -> None:
        try:
            data = os.read(fd, DATA)
        except BlockingIOError:
            return
        if data:
            caller.channel.send(caller.pipes[fd], data)
        else:
            del caller.pipes[fd]
            self._forget(fd)

    def _arrange(self, caller: Caller, now: float) -> None:
        """Send what can be sent, and say what to wait for."""
        if caller.status is not None and not caller.pipes and not caller.over:
            self._say_over(caller, _exit_status(caller.status))
        channel, sock = caller.channel, caller.sock
        try:
            while channel.out:
                del channel.out[: sock.send(channel.out)]
        except BlockingIOError:
            pass
        if caller.over and not channel.out:
            self._drop(caller, now, desert=False)
            return
        ready = select.EPOLLIN if len(caller.input) < BUFFER else select.EPOLLHUP
        self._watch(sock.fileno(), ready | (select.EPOLLOUT if channel.out else 0))
        for fd in caller.pipes:
            self._watch(fd, select.EPOLLIN if len(channel.out) < BUFFER else 0)
        if caller.stdin >= 0:
            self._watch(caller.stdin, select.EPOLLOUT if caller.input else 0)

    def _say_over(self, caller: Caller, status: int) -> None:
        caller.over = True
        caller.channel.send(EXIT, b"%d" % status)

    def _forget(self, fd: int) -> None:
        self._watch(fd, 0)
        self._callers.pop(fd, None)
        os.close(fd)

    def _drop(self, caller: Caller, now: float, desert: bool = True) -> None:
        """Close a connection; what runs for it is ended, unless it has left its first process."""
        fd = caller.sock.fileno()
        self._watch(fd, 0)
        self._callers.pop(fd, None)
        caller.sock.close()
        for pipe in (*caller.pipes, *([caller.stdin] if caller.stdin >= 0 else [])):
            self._forget(pipe)
        caller.pipes, caller.stdin = {}, -1
        if caller.pid and caller.status is None:
            self._by_pid.pop(caller.pid, None)
            if desert:
                self._deserted[caller.pid] = TreeKill(now, self._gangs.grace_s)
                self._gangs.due(now)

    def ended(self, pid: int, status: int, now: float) -> bool:
        """Take note of the end of a process; False if none was started through here."""
        if pid in self._deserted:
            return True
        caller = self._by_pid.pop(pid, None)
        if caller is None:
            return False
        caller.status = status
        try:
            for fd in list(caller.pipes):
                self._read(caller, fd)
            self._arrange(caller, now)
        except OSError:
            self._drop(caller, now)
        return True

    def tick(self, now: float) -> float:
        """Drop who did not prove himself, end what was deserted; returns when to come back."""
        if now >= self._listen_at:
            self._listen_at = NEVER
            self._watch(self._listener.fileno(), select.EPOLLIN)
        times = [self._listen_at]
        for caller in list(self._callers.values()):
            if not caller.channel.proved:
                if now >= caller.since + STRANGER_S:
                    self._drop(caller, now)
                else:
                    times.append(caller.since + STRANGER_S)
        due = [pid for pid, ending in self._deserted.items() if ending.next_at <= now]
        if due:
            # By descent and session alone: what has become a daemon belongs to the attempt, and goes on.
            alive = self._gangs.members({pid: (b"-", b"%d" % pid) for pid in due})
            for pid in due:
                if self._deserted[pid].step(now, alive[pid]):
                    del self._deserted[pid]
        times.extend(ending.next_at for ending in self._deserted.values())
        return min(times)


def _exit_status(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _listen() -> socket.socket:
    """A socket for all addresses of this node, of both kinds where it has both."""
    if socket.has_ipv6:
        try:
            sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
            try:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                sock.bind(("::", 0))
                sock.listen(128)
                return sock
            except OSError:
                sock.close()
        except OSError:
            pass
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("", 0))
    sock.listen(128)
    return sock

"""Start a command on another node of a gang, as ssh would: its streams here, its exit status ours.

MPI launchers call this in place of ssh (`rota rsh`, or the script `rsh` that a runner puts beside the job). It finds
the gang by ROTA_GANG, a file that only the job's user can read.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from rota.runner.channel import DATA, ERR, ERROR, EXIT, IN, OUT, START, CallingChannel, ChannelError, keep_alive

if TYPE_CHECKING:
    from rota.runner.lease import Key

__all__ = ["FAILED", "ask", "call", "main", "parse"]

FAILED = 255  # as ssh: not the command's own status
CONNECT_S = 30.0
TRIES_S = (0.1, 0.5, 2.0)
WITH_VALUE = "BbcDEeFIiJLlmOopQRSWw"  # options of ssh that take a value; the others stand alone
USAGE_TEXT = "usage: rota rsh [options of ssh, ignored] HOST COMMAND…"


class RshError(Exception):
    """A command could not be started on another node."""


def parse(words: List[str]) -> Tuple[str, List[str], bool]:
    """Host, words of the command, and whether standard input is left alone; options may stand around the host."""
    host, no_input, rest = "", False, list(words)
    while rest:
        word = rest[0]
        if word == "--":
            del rest[0]
            if host:
                break
            continue
        if not word.startswith("-") or word == "-":
            if host:
                break
            host = rest.pop(0).rpartition("@")[2]
            continue
        del rest[0]
        for at, letter in enumerate(word[1:], 2):
            no_input = no_input or letter == "n"
            if letter in WITH_VALUE:
                if at == len(word) and rest:
                    del rest[0]
                break
    if not host or not rest:
        raise RshError("a host and a command are needed\n%s" % USAGE_TEXT)
    return host, rest, no_input


def _gang() -> Dict[str, Any]:
    path = os.environ.get("ROTA_GANG")
    if not path:
        raise RshError("this is no job on several nodes (--nodes): ROTA_GANG is not set")
    try:
        with open(path, encoding="utf-8") as file:
            gang: Dict[str, Any] = json.load(file)
    except (OSError, ValueError) as problem:
        raise RshError("cannot read %s: %s" % (path, problem)) from None
    return gang


def _address(gang: Dict[str, Any], host: str) -> str:
    """Where the runner of a host listens: by its name, its short name or its address."""
    nodes = gang["nodes"]
    for node in nodes:
        if node["host"] == host:
            return str(node["address"])
    for node in nodes:
        if node["host"].partition(".")[0] == host.partition(".")[0]:
            return str(node["address"])
    try:
        asked = {item[4][0] for item in socket.getaddrinfo(host, None)}
    except OSError:
        asked = set()
    for node in nodes if asked else ():
        try:
            if asked & {item[4][0] for item in socket.getaddrinfo(node["host"], None)}:
                return str(node["address"])
        except OSError:
            continue
    raise RshError("%s is no node of this job; these are: %s" % (host, " ".join(node["host"] for node in nodes)))


def connect(address: str, timeout_s: float) -> socket.socket:
    """A connection to the runner of a node."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    keep_alive(sock)
    return sock


def _prove(sock: socket.socket, channel: CallingChannel) -> None:
    while not channel.proved:
        data = sock.recv(4096)
        if not data:
            raise ChannelError("it does not let us in: the attempt is over there, or was never there")
        channel.feed(data)
        if channel.out:
            sock.sendall(channel.out)
            channel.out.clear()


def ask(address: str, gang: Tuple[Key, str], kind: bytes, content: bytes, timeout_s: float) -> bytes:
    """What the runner of another node answers to a frame, within an attempt; raises OSError or ChannelError."""
    channel = CallingChannel(*gang)
    until = time.monotonic() + timeout_s
    with connect(address, timeout_s) as sock:
        _prove(sock, channel)
        channel.send(kind, content)
        sock.sendall(channel.out)
        while time.monotonic() < until:
            data = sock.recv(4096)
            if not data:
                break
            for answered, answer in channel.feed(data):
                if answered == kind:
                    return answer
    raise ChannelError("no answer")


def _open(address: str, key: Key, secret: str) -> Tuple[socket.socket, CallingChannel]:
    for pause_s in (*TRIES_S, None):
        channel = CallingChannel(key, secret)
        try:
            sock = connect(address, CONNECT_S)
        except ConnectionRefusedError:
            raise
        except OSError:
            if pause_s is None:
                raise
            time.sleep(pause_s)
            continue
        try:
            _prove(sock, channel)
        except BaseException:
            sock.close()
            raise
        return sock, channel
    raise AssertionError


def call(host: str, words: List[str], no_input: bool = False) -> int:
    """Run a command on a node of this job's gang; returns its exit status, 128 + signal if one ended it."""
    gang = _gang()
    key: Key = tuple(gang["job"])
    address = _address(gang, host)
    try:
        sock, channel = _open(address, key, gang["secret"])
        request = {
            "argv": ["/bin/sh", "-c", " ".join(words)],  # as ssh: the words become one line for a shell
            "env": dict(os.environ),
            "cwd": _here(),
            "nodes": gang["nodes"],
        }
        channel.send(START, json.dumps(request).encode("ascii"))
        with sock:
            return _relay(sock, channel, no_input)
    except (OSError, ChannelError) as problem:
        raise RshError("cannot start anything on %s (%s): %s" % (host, address, problem)) from None


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _relay(sock: socket.socket, channel: CallingChannel, no_input: bool) -> int:
    """Carry the streams to and fro until the command is over."""
    sock.setblocking(False)
    reading = not no_input and _readable(0)
    if not reading:
        channel.send(IN)
    status: Optional[int] = None
    while status is None:
        poll = select.poll()  # not epoll: standard input may be a file
        poll.register(sock, select.POLLIN | (select.POLLOUT if channel.out else 0))
        if reading and len(channel.out) < DATA:
            poll.register(0, select.POLLIN)
        for fd, _ in poll.poll():
            if fd == 0:
                data = os.read(0, DATA)
                channel.send(IN, data)
                reading = bool(data)
        _flush(sock, channel)
        try:
            data = sock.recv(1 << 16)
        except BlockingIOError:
            continue
        if not data:
            raise RshError("the connection was lost: the command was ended, or will be")
        for kind, content in channel.feed(data):
            if kind in (OUT, ERR):
                _write(1 if kind == OUT else 2, content)
            elif kind == ERROR:
                _write(2, b"rota rsh: " + content + b"\n")
            elif kind == EXIT:
                status = int(content)
    return status


def _readable(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _flush(sock: socket.socket, channel: CallingChannel) -> None:
    try:
        while channel.out:
            del channel.out[: sock.send(channel.out)]
    except BlockingIOError:
        pass


def _write(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            select.select([], [fd], [])


def main(words: List[str]) -> int:
    """Do what `rota rsh` does; returns the exit status."""
    try:
        return call(*parse(words))
    except RshError as problem:
        sys.stderr.write("rota rsh: %s\n" % problem)
        return FAILED
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141

"""What is asked of a host of an ssh farm: one request as JSON on standard input, one answer on standard output.

Where files are sent or received, the request is an argument, and they go by standard output or input.

It says what the host has, starts a runner that outlives the connection, looks after it, and ends what it left. Each
request may be repeated: a runner that is there already is not started again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, Callable, Dict, List, Optional

from rota.runner import host, staging
from rota.runner.kill import send
from rota.runner.measure import start_of
from rota.runner.spool import UNSENT
from rota.runner.sweep import find, sweep

__all__ = ["main"]

OUTPUT = "out"
LINE = 300
TAG = 12
"""Characters of a tag, which is the name of a runner's directory."""
UNSENT_MOST = 8 << 20
READ_MOST = 4 << 20
SECRETS = ("token", "ca.pem", "notice")
"""What nobody needs once a runner is over."""


def main(words: List[str]) -> int:
    """Answer one request."""
    request = json.loads(words[0]) if words else json.load(sys.stdin)
    try:
        answer = REQUESTS[request["what"]](request)
    except staging.StagingError as error:
        answer = {"error": error.code, "words": str(error)}
    if answer is None:
        return 0
    json.dump(answer, sys.stdout)
    sys.stdout.write("\n")
    return 0


def _probe(request: Dict[str, Any]) -> Dict[str, Any]:
    """What the host has."""
    free = os.statvfs(request["directory"])
    names = os.listdir("/dev")
    return {
        "cores": host.cores(),
        "memory": host.memory(),
        "disk": free.f_bavail * free.f_frsize,
        "gpus": sum(name.startswith("nvidia") and name[6:].isdigit() for name in names),
        "host": os.uname().nodename,
        "boot": _boot(),
        "caller": os.environ.get("SSH_CONNECTION", "").partition(" ")[0],
    }


def _boot() -> str:
    return host.read_text("/proc/sys/kernel/random/boot_id").strip()


def _start(request: Dict[str, Any]) -> Dict[str, Any]:
    """Start the script of a runner in a session of its own, unless a runner with its tag is here."""
    tag, directory = request["tag"], request["directory"]
    running = find(os.fsencode(tag))[0]
    if running:
        pid = min(running)
        return {"pid": pid, "start": running[pid], "boot": _boot()}
    os.makedirs(directory, 0o700, exist_ok=True)
    for name, text in request["files"].items():
        path = os.path.join(directory, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(text)
    read, write = os.pipe()
    first = os.fork()
    if not first:
        _become(request, directory, read, write)
    os.close(write)
    os.waitpid(first, 0)
    with os.fdopen(read, "rb") as answer:
        told = answer.read()
    if not told.startswith(b"+"):
        raise SystemExit("rota: the runner cannot be started: %s" % told.decode("utf-8", "replace"))
    pid = int(told[1:])
    return {"pid": pid, "start": start_of(pid) or 0, "boot": _boot()}


def _become(request: Dict[str, Any], directory: str, read: int, write: int) -> None:
    """In a child: leave it, and become the script; says its pid, or why not."""
    try:
        os.close(read)
        os.setsid()
        if os.fork():
            os._exit(0)
        os.set_inheritable(write, False)
        null = os.open("/dev/null", os.O_RDONLY)
        out = os.open(os.path.join(directory, OUTPUT), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for fd, number in ((null, 0), (out, 1), (out, 2)):
            os.dup2(fd, number)
        os.chdir("/")
        for number in (signal.SIGPIPE, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
    except OSError as error:
        os.write(write, str(error).encode())
        os._exit(1)
    os.write(write, b"+%d" % os.getpid())
    try:
        script = os.path.join(directory, request["script"])
        kept = {name: value for name, value in os.environ.items() if name not in ("LC_ALL", "TZ")}  # set for us
        os.execve("/bin/sh", ["/bin/sh", script], {**kept, "ROTA_ELEMENT": "0"})
    finally:
        os._exit(127)


def _look(request: Dict[str, Any]) -> Dict[str, Any]:
    """How the runners are that were started here; what one that is gone has left is ended before it is called so."""
    return {tag: _look_at(tag, known, request["directory"]) for tag, known in request["tags"].items()}


def _look_at(tag: str, known: Optional[Dict[str, Any]], directory: str) -> Dict[str, Any]:
    boot = _boot()
    if known is None:
        running = find(os.fsencode(tag))[0]
        if running:
            pid = min(running)
            return {"state": "run", "pid": pid, "start": running[pid], "boot": boot}
    elif known["boot"] == boot and start_of(known["pid"]) == known["start"]:
        return {"state": "run"}
    place = os.path.join(directory, tag)
    if known is not None and known["boot"] != boot:
        _tidy(place)
        return {"state": "rebooted", "unsent": _unsent(place), "last": None, "there": os.path.isdir(place)}
    if sweep(tag) != 0:
        return {"state": "stuck"}
    _tidy(place)
    return {"state": "over", "unsent": _unsent(place), "last": _last(place)}


def _tidy(place: str) -> None:
    """Remove what let a runner that is over speak in our name."""
    for name in SECRETS:
        try:
            os.unlink(os.path.join(place, name))
        except FileNotFoundError:
            continue


def _clean(request: Dict[str, Any]) -> Dict[str, Any]:
    """Remove the directories of runners that are over, and of which nothing is wanted any more."""
    import shutil

    gone = []
    for place in request["places"]:
        tag = os.path.basename(place)
        if len(tag) != TAG or not tag.isalnum() or os.path.islink(place) or any(find(os.fsencode(tag))):
            continue
        shutil.rmtree(place, ignore_errors=True)
        if not os.path.lexists(place):
            gone.append(place)
    return {"gone": gone}


def _unsent(place: str) -> Dict[str, str]:
    """Directory of a runner → the reports that it could not send."""
    found: Dict[str, str] = {}
    for at, _, names in os.walk(place):
        if UNSENT in names and not os.path.islink(os.path.join(at, UNSENT)):
            with open(os.path.join(at, UNSENT), encoding="ascii", errors="replace") as file:
                found[at] = file.read(UNSENT_MOST)
    return found


def _last(place: str) -> Optional[str]:
    """The last line that the runner wrote."""
    lines = host.read_text(os.path.join(place, OUTPUT)).strip().splitlines()
    return lines[-1][-LINE:] if lines else None


def _end(request: Dict[str, Any]) -> Dict[str, Any]:
    """Tell a runner to end its jobs, to report that, and to leave."""
    if request["boot"] == _boot():
        send(request["pid"], request["start"], signal.SIGTERM)
    return {}


def _read(request: Dict[str, Any]) -> Dict[str, Any]:
    """A stretch of a file that is ours."""
    import base64

    fd = os.open(request["path"], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.getuid():
            raise SystemExit("rota: %s is not ours" % request["path"])
        data = os.pread(fd, min(request["limit"], READ_MOST), request["offset"])
        return {"data": base64.b64encode(data).decode("ascii"), "size": found.st_size}
    finally:
        os.close(fd)


# ---- files -----------------------------------------------------------------------------------------------------------


def _files(request: Dict[str, Any]) -> Dict[str, Any]:
    """What is at these paths, and what these patterns match; makes the directory in which a job begins."""
    if "cwd" in request and (problem := _make_cwd(request["cwd"])):
        return problem
    bad: Dict[str, str] = {}
    files = staging.look(request.get("paths", []), bad)
    return {"files": files, "bad": bad, "matches": staging.match(request.get("patterns", []))}


def _checksum(request: Dict[str, Any]) -> Dict[str, Any]:
    """The digest of what is at a path."""
    try:
        return {"sha256": staging.checksum(request["path"])}
    except FileNotFoundError:
        return {"error": "gone", "words": "%s is not there" % request["path"]}


def _send(request: Dict[str, Any]) -> None:
    """Send what is at a path."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # nobody takes it any more
    staging.send(request["path"], request["offset"], sys.stdout.buffer)


def _received(request: Dict[str, Any]) -> Dict[str, Any]:
    """How much of a file is here already."""
    return {"bytes": staging.received(request["path"], request["ident"])}


def _receive(request: Dict[str, Any]) -> Dict[str, Any]:
    """Take what is sent to a path."""
    return staging.receive(request["path"], request["ident"], request["offset"], sys.stdin.buffer, request.get("most"))


def _discard(request: Dict[str, Any]) -> Dict[str, Any]:
    """Remove what lies here of transfers that will not go on."""
    for path, ident in request["parts"]:
        staging.discard(path, ident)
    return {}


def _remove(request: Dict[str, Any]) -> Dict[str, Any]:
    """Remove what was brought here, as far as it is still that."""
    return {"gone": [row[0] for row in request["rows"] if staging.remove(*row)]}


def _arrange(request: Dict[str, Any]) -> Dict[str, Any]:
    """Make the directory in which a job begins, and links to what it reads."""
    problem = _make_cwd(request["cwd"])
    try:
        for path, target in () if problem else request["links"]:
            staging.link(path, target)
    except OSError as error:
        return {"error": "denied", "words": "%s: %s" % (error.filename, error.strerror)}
    return problem


def _make_cwd(path: str) -> Dict[str, Any]:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        return {"error": "denied", "words": "%s: %s" % (error.filename, error.strerror)}
    return {}


REQUESTS: Dict[str, Callable[[Dict[str, Any]], Optional[Dict[str, Any]]]] = {
    "files": _files,
    "checksum": _checksum,
    "send": _send,
    "received": _received,
    "receive": _receive,
    "discard": _discard,
    "remove": _remove,
    "arrange": _arrange,
    "probe": _probe,
    "start": _start,
    "look": _look,
    "clean": _clean,
    "end": _end,
    "read": _read,
}

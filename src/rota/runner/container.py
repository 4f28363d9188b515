"""What stands between a runner and a job in a container: finds an engine, brings the image, runs the command there.

It is the job's first process, started in its directory with its environment; ROTA_CONTAINER has the request. Why it
could not run the command it writes to a file of the runner's, so that this is not taken for the command's own exit.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    _here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.path.dirname(os.path.dirname(_here)), *(part for part in sys.path if part != _here)]

import fcntl
import glob
import hashlib
import json
import resource
import signal
import stat
import subprocess
import time
from typing import Any, Dict, List, NoReturn, Tuple

from rota.runner.engines import (
    ENGINES,
    FILES,
    INSIDE_PATH,
    NAMED,
    Mount,
    Request,
    command_line,
    image_command,
    known_file,
)
from rota.runner.measure import start_of

__all__ = ["VARIABLE", "main"]

VARIABLE = "ROTA_CONTAINER"
REFUSED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127
ASK_S = 120.0
BRING_S = 3600.0
SWEEP_S = 600.0


class ContainerError(Exception):
    """The command cannot be run in its container; the note is for the person whose job it is."""

    def __init__(self, note: str, reason: str = "container", code: int = REFUSED) -> None:
        super().__init__(note)
        self.reason, self.note, self.code = reason, note, code


def main() -> int:
    """Run the words of our command line in the container that the environment asks for."""
    spec = json.loads(os.environ.pop(VARIABLE))
    try:
        request = Request(spec, sys.argv[1:], os.getcwd())
        engine = _engine(spec.get("engine") or "auto", request.image, os.environ.get("PATH", ""))
        request.mounts += _files(spec, request)
        _check_mounts(request)
        os.environ.setdefault("USER", _user())
        image = _prepared(engine, request)
        _check_inside(engine, request, image)
        words = command_line(engine, request, image, os.environ, _limits())
        if engine not in NAMED:
            os.execvp(words[0], words)
        _write(spec, {"remove": [engine, "rm", "--force", request.name]})
        code = _named(engine, request, words)
        os.unlink(spec["word"])
        return code
    except ContainerError as problem:
        _tell(spec, problem)
        return problem.code
    except OSError as error:
        _tell(spec, ContainerError("cannot start the container: %s" % error))
        return REFUSED


def _tell(spec: Dict[str, Any], problem: ContainerError) -> None:
    print("rota: %s" % problem.note, file=sys.stderr, flush=True)
    _write(spec, {"reason": problem.reason, "note": problem.note})


def _write(spec: Dict[str, Any], word: Dict[str, Any]) -> None:
    """Tell the runner: what has to be removed should we be killed, or why the command was not run."""
    try:
        with open(spec["word"], "w", encoding="utf-8") as file:
            json.dump(word, file)
    except OSError:
        pass  # a full disk: the exit code, and what we print, tell as much


def _engine(asked: str, image: str, path: str) -> str:
    """The engine to use: the one that was asked for, else the first that is here and takes such an image."""
    fit: Tuple[str, ...] = FILES if known_file(image) else ENGINES
    if known_file(image) and os.path.isfile(image) and image.endswith((".sif", ".img", ".simg")):
        fit = ("apptainer", "singularity")
    for engine in fit if asked == "auto" else (asked,):
        if any(os.access(os.path.join(part or ".", engine), os.X_OK) for part in path.split(":")):
            if engine not in fit:
                raise ContainerError("%s takes no image like %s: that is for %s" % (engine, image, " or ".join(fit)))
            return engine
    host = os.uname().nodename
    if asked != "auto":
        raise ContainerError("%s is not on %s: its PATH has no such program (a --module may bring it)" % (asked, host))
    raise ContainerError("no container engine on %s for %s: none of %s is in the PATH" % (host, image, ", ".join(fit)))


def _files(spec: Dict[str, Any], request: Request) -> List[Mount]:
    """What a job reads and where it writes, under its own path, unless that is seen inside already.

    An object is where a link in the job's directory leads.
    """
    more: List[Mount] = []
    for path in spec.get("outputs") or ():
        directory = os.path.dirname(path)
        while glob.has_magic(directory):
            directory = os.path.dirname(directory)
        if "://" not in path and not _is_seen(directory, request.mounts + more):
            os.makedirs(directory, exist_ok=True)
            more.append(Mount(directory, directory))
    for path in spec.get("inputs") or ():
        if "://" in path:
            path = os.path.join(request.cwd, path.rpartition("/")[2])
        seen = request.mounts + more
        if any(_is_below(path, mount.inside) for mount in seen):
            path = os.path.realpath(path)  # it may be a link to what is not seen
        if not _is_seen(path, seen):
            more.append(Mount(path, path, True))
    return sorted(more, key=lambda mount: mount.inside)  # one that is in another comes after it


def _is_seen(path: str, mounts: List[Mount]) -> bool:
    """Whether a path can be seen inside, or the user has said where it is to be seen."""
    return any(_is_below(path, mount.inside) or _is_below(path, mount.outside) for mount in mounts)


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _check_mounts(request: Request) -> None:
    for mount in request.mounts:
        if not os.path.exists(mount.outside):
            raise ContainerError("cannot mount %s: it is not there on %s" % (mount.outside, os.uname().nodename))
        if not mount.inside.startswith("/"):
            raise ContainerError("cannot mount %s at %s: give an absolute path" % (mount.outside, mount.inside))


def _user() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return str(os.getuid())


def _limits() -> Dict[str, Tuple[int, int]]:
    """The limits of this process, for engines that would set others."""
    most = 32768  # podman lowers its own to the largest pid, and could not raise it again
    try:
        with open("/proc/sys/kernel/pid_max") as file:
            most = int(file.read())
    except (OSError, ValueError):
        pass
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    found = {"nofile": resource.getrlimit(resource.RLIMIT_NOFILE), "nproc": (_least(soft, most), _least(hard, most))}
    return {name: pair for name, pair in found.items() if min(pair) >= 0}


def _least(limit: int, most: int) -> int:
    return most if limit == resource.RLIM_INFINITY else min(limit, most)


# -- the image ---------------------------------------------------------------------------------------------------------


def _prepared(engine: str, request: Request) -> str:
    """What to give the engine as the image, which is on this node now: brought once, whoever asks meanwhile waits."""
    image = request.image
    if known_file(image):
        if not os.path.exists(image):
            raise ContainerError("there is no image %s on %s" % (image, os.uname().nodename))
        return os.path.abspath(image)
    kept = _kept()
    key = hashlib.sha256(("%s %s" % (engine, image)).encode()).hexdigest()[:24]
    into = os.path.join(kept, key + (".sif" if engine in ("apptainer", "singularity") else ""))
    with open(os.path.join(kept, key + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if engine in NAMED:
            _sweep(engine, kept)
        there, bringing = image_command(engine, image, into + ".new")
        if (there is None and os.path.exists(into)) or (there is not None and _answer(there)[0] == 0):
            return image if there is not None else into
        if there is None:
            _remove(into + ".new")
        for words in bringing:
            print("rota: bringing the image %s: %s" % (image, " ".join(words[:2])), file=sys.stderr, flush=True)
            code, said = _answer(words, BRING_S)
            if code:
                raise ContainerError(
                    "the image %s cannot be had: %s" % (image, _last_line(said) or "%s failed" % words[0])
                )
        if there is None:
            os.rename(into + ".new", into)
        return image if there is not None else into


def _sweep(engine: str, kept: str) -> None:
    """Now and then remove containers whose keeper was killed with its runner: nothing runs in them any more."""
    stamp = os.path.join(kept, "swept-" + engine)
    try:
        if 0 <= time.time() - os.stat(stamp).st_mtime < SWEEP_S:
            return
    except OSError:
        pass
    open(stamp, "w").close()
    words = [engine, "ps", "--all", "--filter", "label=rota.keeper", "--filter", "status=exited"]
    code, said = _answer([*words, "--format", '{{.Names}} {{index .Labels "rota.keeper"}}'])
    for line in said.splitlines() if code == 0 else ():
        name, _, keeper = line.partition(" ")
        pid, _, start = keeper.partition(".")
        if pid.isdigit() and str(start_of(int(pid))) != start:
            _answer([engine, "rm", name])


def _kept() -> str:
    """A directory of ours on this node, for images and locks."""
    base = os.environ.get("ROTA_IMAGES") or os.path.join("/var/tmp", "rota-images-%d" % os.getuid())
    try:
        os.mkdir(base, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(base)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ContainerError("%s is not a directory that only we can write to: set ROTA_IMAGES to another" % base)
    return base


def _remove(path: str) -> None:
    import shutil

    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)


def _answer(words: List[str], limit_s: float = ASK_S) -> Tuple[int, str]:
    try:
        done = subprocess.run(
            words,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
        )
    except FileNotFoundError:
        return NOT_FOUND, "there is no %s here" % words[0]
    except subprocess.TimeoutExpired:
        return REFUSED, "%s did not answer within %g s" % (words[0], limit_s)
    return done.returncode, done.stdout.decode(errors="replace")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][-300:] if lines else ""


def _check_inside(engine: str, request: Request, image: str) -> None:
    """Say what ch-run would end with 1 for, as if it were the command's own exit: targets and programs not there."""
    if engine != "ch-run" or not os.path.isdir(image):
        return
    for mount in request.mounts:
        if not os.path.exists(image + mount.inside):
            raise ContainerError(
                "cannot mount %s at %s: there is no such place in the image %s" % (mount.outside, mount.inside, image)
            )
    for name in ("/etc/passwd", "/etc/group"):
        if not os.path.lexists(image + name):
            raise ContainerError("the image %s has no %s, which ch-run needs" % (image, name))
    command = request.words[0]
    places = [command] if "/" in command else [os.path.join(part, command) for part in INSIDE_PATH.split(":")]
    known = command.startswith("/") or "/" not in command
    if known and not _is_mounted(command, request) and not any(os.path.lexists(image + place) for place in places):
        raise ContainerError("no such command in the image %s: %s" % (image, command), "not-found", NOT_FOUND)


def _is_mounted(command: str, request: Request) -> bool:
    return any(_is_below(command, mount.inside) for mount in request.mounts)


# -- engines that have a client ----------------------------------------------------------------------------------------


def _named(engine: str, request: Request, words: List[str]) -> int:
    """Run the client and tell its own failures from the command's; the container is removed afterwards."""
    # Who ends a job signals all of its processes, the command among them; we stay to clean up. A handler and not
    # SIG_IGN, which the command would inherit.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    code = subprocess.Popen(words).wait()
    code = 128 - code if code < 0 else code
    started = code not in (REFUSED, NOT_EXECUTABLE, NOT_FOUND) or _has_run(engine, request.name)
    _answer([engine, "rm", "--force", request.name])
    if started:
        return code
    if code == NOT_FOUND:
        raise ContainerError(
            "no such command in the image %s: %s" % (request.image, request.words[0]), "not-found", code
        )
    raise ContainerError("%s could not start the container, and says above why" % engine)


def _has_run(engine: str, name: str) -> bool:
    """Whether the command of a container was started: then its exit is its own."""
    code, said = _answer([engine, "inspect", "--format", "{{.State.Status}}", name])
    return code == 0 and said.strip() == "exited"


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end(main())

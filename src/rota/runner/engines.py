"""The container engines: how each is told to run a command in an image, and what it needs for that. Pure.

Two kinds. `apptainer`, `singularity` and `ch-run` become the command: what runs inside is in the job's own tree.
`podman` and `docker` have a client that waits while the command runs below somebody else, so a container there has a
name, by which it is found and removed after any end.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from rota.runner.measure import start_of

__all__ = [
    "ENGINES",
    "FILES",
    "INSIDE_PATH",
    "NAMED",
    "Mount",
    "Request",
    "command_line",
    "image_command",
    "known_file",
    "passed_on",
]

ENGINES = ("podman", "docker", "apptainer", "singularity", "ch-run")
"""In the order in which they are looked for."""
NAMED = ("podman", "docker")
FILES = ("apptainer", "singularity", "ch-run")
INSIDE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOST_ONLY = frozenset(
    """PATH HOME SHELL PWD OLDPWD SHLVL _ TMPDIR TMP TEMP LD_LIBRARY_PATH LD_PRELOAD PYTHONPATH PYTHONHOME VIRTUAL_ENV
    CONDA_PREFIX MANPATH MODULEPATH LOADEDMODULES LMOD_CMD MODULESHOME XDG_RUNTIME_DIR XDG_SESSION_ID
    DBUS_SESSION_BUS_ADDRESS SSH_AUTH_SOCK ROTA_TOKEN_FILE ROTA_CONTAINER""".split()  # noqa: SIM905
)
"""Variables that speak of files and programs of the host."""


class Mount:
    """A directory or file of the host that is seen inside."""

    __slots__ = ("inside", "outside", "read_only")

    def __init__(self, outside: str, inside: str, read_only: bool = False) -> None:
        self.outside = outside
        self.inside = inside
        self.read_only = read_only

    @classmethod
    def read(cls, text: str) -> "Mount":
        """The mount of `SRC`, `SRC:DST` or `SRC:DST:ro`."""
        outside, _, rest = text.partition(":")
        inside, _, mode = rest.partition(":")
        return cls(outside, inside or outside, mode == "ro")


class Request:
    """What is to be run in a container, and how."""

    __slots__ = ("cwd", "gpus", "image", "keeper", "mounts", "name", "owner", "said", "words")

    def __init__(self, spec: Mapping[str, Any], words: List[str], cwd: str) -> None:
        self.image: str = spec["image"]
        self.name: str = spec["name"]
        self.keeper = "%d.%s" % (os.getpid(), start_of(os.getpid()))  # who looks after the container
        self.said: List[str] = list(spec.get("said") or ())  # names of variables that the user set
        self.gpus: Optional[str] = spec.get("gpus")  # their numbers, as in "0,2"
        self.cwd = cwd
        self.words = words
        self.owner: Tuple[int, int] = (os.getuid(), os.getgid())
        mounts = [Mount.read(text) for text in spec.get("mounts") or ()]
        if not any(mount.inside == cwd for mount in mounts):
            mounts.insert(0, Mount(cwd, cwd))
        self.mounts = mounts


def known_file(image: str) -> bool:
    """Whether an image is named by its path: a .sif or SquashFS file, or a directory with a file system."""
    return image.startswith(("/", "./", "../"))


def passed_on(environ: Mapping[str, str], said: List[str]) -> List[str]:
    """The names of variables that are the same inside: those of the job, without what speaks of the host."""
    return sorted(
        name
        for name in environ
        if name in said or not (name in HOST_ONLY or name.startswith(("BASH_FUNC_", "__", "CONTAINERS_", "DOCKER_")))
    )


def image_command(engine: str, image: str, into: str) -> Tuple[Optional[List[str]], List[List[str]]]:
    """(a command that succeeds if the image is there, what brings it if not); `into` is where a file of it goes."""
    if engine in NAMED:
        there = [engine, "image", "inspect", "--format", "{{.Id}}", image]
        return there, [[engine, "pull", "--quiet", image]]
    source = image if "://" in image else "docker://" + image
    if engine == "ch-run":
        name = image.partition("://")[2] or image
        return None, [["ch-image", "pull", name], ["ch-convert", "-o", "dir", name, into]]
    return None, [[engine, "pull", into, source]]


def command_line(
    engine: str, request: Request, image: str, environ: Mapping[str, str], limits: Dict[str, Any]
) -> List[str]:
    """The words that run a command in a container; `image` is what was prepared."""
    if engine in NAMED:
        return _named(engine, request, image, environ, limits)
    if engine == "ch-run":
        return _ch_run(request, image, environ)
    words = [engine, "exec", "--pwd", request.cwd]
    for mount in request.mounts:
        words += ["--bind", "%s:%s%s" % (mount.outside, mount.inside, ":ro" if mount.read_only else "")]
    if request.gpus is not None:
        words.append(
            "--rocm" if "ROCR_VISIBLE_DEVICES" in environ and "CUDA_VISIBLE_DEVICES" not in environ else "--nv"
        )
    return [*words, image, *request.words]


def _named(engine: str, request: Request, image: str, environ: Mapping[str, str], limits: Dict[str, Any]) -> List[str]:
    uid, gid = request.owner
    words = [engine, "run", "--name", request.name, "--label", "rota.keeper=" + request.keeper, "--init"]
    words += ["--network", "host", "--workdir", request.cwd]
    for name, (soft, hard) in sorted(limits.items()):  # those of any job: an engine may try to raise them
        words += ["--ulimit", "%s=%d:%d" % (name, soft, hard)]
    if uid:  # files are the user's, as outside
        words += ["--userns", "keep-id"] if engine == "podman" else ["--user", "%d:%d" % (uid, gid)]
    else:
        words += ["--user", "0:0"]
    if engine == "docker" and environ.get("ROTA_CORE_IDS"):  # its daemon starts the command, not we who are bound
        words += ["--cpuset-cpus", environ["ROTA_CORE_IDS"]]
    if request.gpus is not None:
        if engine == "docker":
            words += ["--gpus", '"device=%s"' % request.gpus]
        else:
            for number in request.gpus.split(","):
                words += ["--device", "nvidia.com/gpu=" + number]
    for mount in request.mounts:
        words += _volume(mount)
    for name in passed_on(environ, request.said):
        words += ["--env", name]
    words += ["--pull", "never", "--entrypoint", "", image] if engine == "podman" else ["--entrypoint", "", image]
    return [*words, *request.words]


def _volume(mount: Mount) -> List[str]:
    """A mount of podman or docker: the one form splits at colons, the other at commas."""
    if ":" not in mount.outside + mount.inside:
        return ["--volume", "%s:%s%s" % (mount.outside, mount.inside, ":ro" if mount.read_only else "")]
    fields = "type=bind,source=%s,target=%s" % (mount.outside, mount.inside)
    return ["--mount", fields + (",readonly" if mount.read_only else "")]


def _ch_run(request: Request, image: str, environ: Mapping[str, str]) -> List[str]:
    words = ["ch-run", "--cd", request.cwd]
    for mount in request.mounts:
        words += ["--bind", "%s:%s" % (mount.outside, mount.inside)]
    kept = passed_on(environ, request.said)
    for name in sorted(environ):
        if name not in kept and name not in ("HOME", "USER"):
            words += ["--unset-env", name]
    if "PATH" not in kept:
        words += ["--set-env=PATH=" + INSIDE_PATH]
    return [*words, image, "--", *request.words]

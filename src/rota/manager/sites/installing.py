"""The copy of the runner that nodes start: where it is, that nobody else can change it, and how a node checks that.

Its place can be guessed, and what is there is run as the user on every node. So the place, and every directory above
it, must be such that nobody else can put anything there; what is found there is compared with what it should be; and
the script that starts it, which the batch system carries, has the digest of what it may start.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator

from rota.manager.paths import own_directory
from rota.model.errors import DeniedError

__all__ = ["install_runner", "runner_digest", "runner_files", "runner_place"]

RUNNER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "runner")


def runner_digest() -> str:
    """The digest of the runner's files, names and contents. `script.CHECK` computes the same on a node."""
    digest = hashlib.sha256()
    for name, content in runner_files():
        digest.update(b"%s\0%d\0" % (name.encode(), len(content)) + content)
    return digest.hexdigest()


def runner_files() -> Iterator[tuple[str, bytes]]:
    """(name, content) of the runner's files."""
    for name in sorted(os.listdir(RUNNER)):
        if name.endswith((".py", ".c")):
            with open(os.path.join(RUNNER, name), "rb") as file:
                yield name, file.read()


def runner_place(home: str) -> str:
    """Where the copy of the runner for the nodes is, or would be: named by its contents."""
    return os.path.join(home, "lib", f"runner-{runner_digest()[:16]}", "rota", "runner")


def install_runner(home: str) -> str:
    """Make a copy of the runner where the nodes can see it: it needs nothing but a Python."""
    place = runner_place(home)
    target = os.path.dirname(os.path.dirname(place))
    own_directory(home)
    own_directory(os.path.dirname(target))
    if os.path.lexists(target):
        _see_ours(target)
        if _is_whole(place):
            return place
        spoilt = f"{target}.bad-{os.urandom(4).hex()}"
        os.rename(target, spoilt)
        shutil.rmtree(spoilt, ignore_errors=True)
    fresh = f"{target}.{os.urandom(4).hex()}"
    package = os.path.join(fresh, "rota", "runner")
    for directory in (fresh, os.path.dirname(package), package):
        os.mkdir(directory, 0o700)
    for path, content in [
        (os.path.join(fresh, "rota", "__init__.py"), b""),
        *((os.path.join(package, name), content) for name, content in runner_files()),
    ]:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(content)
    try:
        os.rename(fresh, target)
    except OSError:  # another was quicker
        shutil.rmtree(fresh, ignore_errors=True)
        _see_ours(target)
    return place


def _see_ours(target: str) -> None:
    """Refuse what is there if anything in it is a link, belongs to somebody else, or can be written by others."""
    paths = [target]
    for directory, names, files in os.walk(target):
        paths += [os.path.join(directory, name) for name in (*names, *files)]
    for path in paths:
        try:
            found = os.lstat(path)
        except FileNotFoundError:  # a Python that starts here renames what it has compiled
            continue
        ours = found.st_uid == os.getuid() and not found.st_mode & 0o022
        if not ours or not (stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)):
            raise DeniedError(
                f"{path} is a link, not yours (uid {found.st_uid}), or can be written by others (mode "
                f"{found.st_mode & 0o7777:04o}): nodes would run it as you. Remove {target}, or have it removed, and "
                "find out who made it"
            )


def _is_whole(place: str) -> bool:
    """Whether the copy is what it should be, to the last byte, and nothing beside it could be taken for a part."""
    wanted = dict(runner_files())
    if {name for name in os.listdir(place) if name != "__pycache__"} != set(wanted):
        return False
    for name, content in wanted.items():
        with open(os.path.join(place, name), "rb") as file:
            if file.read() != content:
                return False
    return os.path.getsize(os.path.join(os.path.dirname(place), "__init__.py")) == 0

"""rota itself as a package that another host can run: this installation's own files, with those of what it needs."""

import functools
import hashlib
import io
import os
import platform
import re
import sys
import tarfile
from collections.abc import Iterator
from importlib import metadata

import rota

__all__ = ["Package", "pack_rota"]

NAME = re.compile(r"[A-Za-z0-9._-]+")


class Package:
    """Files for a Python of one version on one kind of machine."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files
        """Name in the package → path here."""
        self.python = f"{sys.version_info[0]}.{sys.version_info[1]} {platform.machine()}"

    @functools.cached_property
    def name(self) -> str:
        """By its content."""
        digest = hashlib.sha256(self.python.encode())
        for name, path in sorted(self._files.items()):
            digest.update(f"{name}\0".encode())
            with open(path, "rb") as file:
                digest.update(hashlib.sha256(file.read()).digest())
        return digest.hexdigest()[:16]

    @functools.cache  # noqa: B019 - one for a command, which ends soon
    def data(self) -> bytes:
        """A compressed tar."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w:gz", compresslevel=3) as tar:
            for name, path in sorted(self._files.items()):
                tar.add(path, name, recursive=False)
        return out.getvalue()


@functools.cache
def pack_rota(extra: str) -> Package:
    """This installation, with what an extra needs."""
    files = dict(_own_files())
    for name in _needed("rota", {extra}):
        files |= _files_of(name)
    return Package(files)


def _own_files() -> Iterator[tuple[str, str]]:
    (root,) = rota.__path__
    for place, directories, names in os.walk(root):
        directories[:] = [name for name in directories if name != "__pycache__"]
        for name in names:
            path = os.path.join(place, name)
            yield os.path.join("rota", os.path.relpath(path, root)), path


def _needed(name: str, extras: set[str]) -> set[str]:
    """The names of all distributions that one needs here, without itself."""
    seen: set[str] = set()
    waiting = [(name, extras)]
    while waiting:
        each, with_extras = waiting.pop()
        try:
            requires = metadata.distribution(each).requires or []
        except metadata.PackageNotFoundError:
            continue  # for another Python or system
        for line in requires:
            needed, _, marker = line.partition(";")
            asked = re.findall(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
            if asked and not with_extras.intersection(asked):
                continue
            found = NAME.match(needed.strip())
            if found is None or found[0] in seen:
                continue
            more = re.search(r"\[([^\]]*)\]", needed)
            seen.add(found[0])
            waiting.append((found[0], {word.strip() for word in more[1].split(",")} if more else set()))
    return seen


def _files_of(name: str) -> dict[str, str]:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return {}
    out = {}
    for file in found.files or []:
        path = str(found.locate_file(file))
        if not str(file).startswith("..") and "__pycache__" not in str(file) and os.path.isfile(path):
            out[str(file)] = path
    return out

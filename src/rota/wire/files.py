"""What runners and jobs leave in files, read as what comes over the wire is: with its types and its bounds.

Jobs can write these files, so whatever is in them is taken for nothing worse than a file that says nothing.
"""

import os
import stat
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from rota.model.errors import RotaError
from rota.wire.frames import check_depth
from rota.wire.messages import Count, DisclaimedRow, EndedRow, File, Line, Ref, Wall

__all__ = ["BadFileError", "Left", "Started", "bad_words", "decode_left", "decode_started", "read_bounded", "set_aside"]

T = TypeVar("T")

MOST = 64 << 20
"""Bytes of such a file."""
BAD = ".bad"
"""Put behind the name of one that is none."""


class BadFileError(RotaError):
    """A file that is not what its name says, whatever is done about it."""


class Left(Struct):
    """Reports that were left in a file: `report.json` of a direct job, `unsent.json` of a runner."""

    ended: Annotated[list[EndedRow], Meta(max_length=100_000)]
    disclaimed: Annotated[list[DisclaimedRow], Meta(max_length=100_000)] = []
    host: Line | None = None


class Started(Struct):
    """What a direct job says when it starts: `started.json`."""

    job: Ref
    host: Line
    pid: Count
    started: Wall
    scratch: File | None = None


_LEFT: msgspec.json.Decoder[Left] = msgspec.json.Decoder(Left)
_STARTED: msgspec.json.Decoder[Started] = msgspec.json.Decoder(Started)


def decode_left(data: bytes) -> Left:
    """Reports from the bytes of a file."""
    return _decode(_LEFT, data)


def decode_started(data: bytes) -> Started:
    """The words of a start from the bytes of a file."""
    return _decode(_STARTED, data)


def _decode(decoder: "msgspec.json.Decoder[T]", data: bytes) -> T:
    try:
        check_depth(data)
        return decoder.decode(data)
    except (RotaError, msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadFileError(str(error) or type(error).__name__) from None


def read_bounded(path: str, most: int = MOST) -> bytes | None:
    """A file that is ours; None: there is none. A pipe is not waited for, and a link not followed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            raise BadFileError("it is a symbolic link") from None
        if not stat.S_ISREG(mode):
            raise BadFileError("it is not a file") from None
        raise error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            raise BadFileError(f"not a file of ours (uid {found.st_uid}, mode {found.st_mode:o})")
        if found.st_size > most:
            raise BadFileError(f"it has {found.st_size} bytes, and {most} are the most")
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(most)
    finally:
        os.close(fd)


def set_aside(path: str) -> None:
    """Move a bad file out of the way, and keep it as evidence."""
    try:
        os.rename(path, path + BAD)
    except OSError:
        pass  # it is refused again the next time


def bad_words(path: str) -> str | None:
    """What to say if such a file was moved aside."""
    name = os.path.basename(path)
    return f"its {name} was not one and is kept as {path}{BAD}" if os.path.lexists(path + BAD) else None

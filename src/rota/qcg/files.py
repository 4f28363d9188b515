"""QCG's request files: a JSON array of requests, all checked before anything is done."""

import datetime
import os
from typing import Any

import msgspec

from rota.model.errors import UsageError
from rota.qcg.requests import Request, WrongRequestError, read_request, request_variables
from rota.qcg.translating import Room, too_large, translate

__all__ = ["check_requests", "read_file"]

MOST = 1 << 30
"""Bytes of a file."""


def read_file(path: str) -> list[Any]:
    """The requests of a file, as they stand there."""
    try:
        size = os.stat(path).st_size
        if size > MOST:
            raise UsageError(f"{path}: has {size:,} bytes, and the most is {MOST:,}")
        with open(path, "rb") as file:
            data = msgspec.json.decode(file.read(MOST))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except RecursionError:
        raise UsageError(f"{path}: it is nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(f"{path}: it is not JSON: {error}") from None
    if not isinstance(data, list):
        raise UsageError(f'{path}: the file must be a JSON list of requests: [{{"request": "submit", …}}]')
    if not data:
        raise UsageError(f"{path}: there is no request in it")
    return data


def check_requests(path: str, data: list[Any], room: Room) -> list[Request]:
    """Check all requests of a file. What is wrong is named by file, path and rule, and nothing is done then."""
    seen: dict[str, str] = {}
    out = []
    try:
        for at, each in enumerate(data):
            request = read_request(each, request_variables(at + 1, datetime.datetime.now()), f"[{at}]")
            if request.name == "removeJob":
                for name in request.names:
                    seen.pop(name, None)
            for job in request.jobs:
                if job.name in seen:
                    raise WrongRequestError(f"{job.path}.name", f"'{job.name}' is the name of {seen[job.name]} too")
                seen[job.name] = job.path
            fail = too_large(request.jobs, room)
            fitting = [job for job in request.jobs if job.name not in fail]
            translate(fitting, room, _Others({job.name for job in request.jobs}))
            out.append(request)
    except RecursionError:
        raise UsageError(f"{path}: it is nested too deeply") from None
    except WrongRequestError as error:
        raise UsageError(f"{path}: {error}") from None
    return out


class _Others:
    """Stands for jobs of other requests, which are not there yet."""

    def __init__(self, own: set[str]) -> None:
        self._own = own

    def __call__(self, word: str) -> str | None:
        return None if word.partition(":")[0] in self._own else "1"

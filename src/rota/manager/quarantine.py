"""What made the core fail: kept with its trace, refused, and shown by `rota doctor`. A manager goes on without it."""

import json
import logging
import os
import time
import traceback

from rota.core.stimuli import Stimulus
from rota.model.errors import RotaError
from rota.wire.home import private_directory, write_private

__all__ = ["Quarantine"]

log = logging.getLogger("rota")

MOST = 100
"""Files that are kept; of what comes after them only the log tells."""
MOST_TEXT = 200_000


class Quarantine:
    """The directory `quarantine` of a home."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def keep(self, seq: int, what: Stimulus | str, error: Exception) -> str:
        """Keep what came after entry `seq` and could not be dealt with; where that is."""
        kind = what if isinstance(what, str) else type(what).__name__
        path = self._free(seq)
        log.error(
            "the core failed at %s after entry %d: %r; kept as %s", kind, seq, error, path or "nothing", exc_info=error
        )
        if path is None:
            return self._directory
        row = {
            "at": time.time(),
            "seq": seq,
            "kind": kind,
            "by": "" if isinstance(what, str) else what.by,
            "stimulus": (what if isinstance(what, str) else repr(what))[:MOST_TEXT],
            "error": repr(error)[:MOST_TEXT],
            "trace": "".join(traceback.format_exception(error))[-MOST_TEXT:],
        }
        try:
            private_directory(self._directory)
            write_private(path, json.dumps(row, indent=1).encode() + b"\n")
        except (OSError, RotaError) as problem:
            log.error("%s cannot be written: %s", path, problem)
        return path

    def _free(self, seq: int) -> str | None:
        try:
            there = set(os.listdir(self._directory))
        except FileNotFoundError:
            there = set()
        if len(there) >= MOST:
            return None
        names = (f"{seq}.json", *(f"{seq}-{number}.json" for number in range(2, MOST + 2)))
        return os.path.join(self._directory, next(name for name in names if name not in there))

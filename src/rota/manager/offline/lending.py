"""Lending an allocation to a manager: what is done where the allocation is (`rota pilot --join`)."""

import contextlib
import os
import re
import signal
import subprocess
import time

from msgspec.json import encode

from rota.drivers.allocation import HERE
from rota.drivers.given import RECORD, SCRIPT, SWEEP, SWEEP_S
from rota.drivers.lent import BEGUN, END, ENDED, Ended
from rota.manager.sites.given import Pilot
from rota.manager.sites.lent import LENT, lent_path
from rota.model.errors import RefusedError
from rota.wire.home import private_directory, write_private

__all__ = ["Lender"]

AGAIN_S = 5.0
"""Between two tries to end what has been told to end."""


class Lender:
    """One allocation, lent to the manager of a home."""

    def __init__(self, home: str, pilot: Pilot) -> None:
        given = pilot.given
        word = given.job if given.job is not None else f"{pilot.here}-{os.getpid()}"
        self.name = f"{LENT}-{re.sub('[^A-Za-z0-9-]', '-', word)}"
        """The name of the site that the manager has in it."""
        self._pilot = pilot
        self._path = lent_path(home, self.name)
        self._directory = os.path.join(home, "sites", self.name)
        self._child: subprocess.Popen[bytes] | None = None
        self._tag = ""
        self._told_at = 0.0

    def offer(self) -> None:
        """Write down what is lent, for the manager to read."""
        private_directory(os.path.dirname(self._path))
        if os.path.exists(self._path):
            raise RefusedError(f"this allocation is lent already, as {self.name} ({self._path})")
        write_private(self._path, encode(self._pilot))

    def withdraw(self) -> None:
        """Take it back."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def look(self, ends: bool) -> bool:
        """Start what the manager has asked for, end what it, or the time, says; whether it is over."""
        stop_at = self._pilot.stop_at
        ends = ends or (stop_at is not None and time.time() >= stop_at)
        if self._child is None:
            return self._begin() and False if not ends else True
        ends = ends or os.path.exists(os.path.join(self._directory, self._tag, END))
        code = self._child.poll()
        if code is not None:
            self._note_end(code)
            return True
        if ends and time.monotonic() - self._told_at > AGAIN_S:
            self._told_at = time.monotonic()
            self._end()
        return False

    def _begin(self) -> bool:
        """Start the launcher if the manager has written its script."""
        with contextlib.suppress(FileNotFoundError):
            for tag in sorted(os.listdir(self._directory)):
                place = os.path.join(self._directory, tag)
                if os.path.exists(os.path.join(place, RECORD)) and not os.path.exists(os.path.join(place, BEGUN)):
                    write_private(os.path.join(place, BEGUN), b"")
                    with open(os.path.join(place, f"{tag}.out"), "ab") as output:
                        self._child = subprocess.Popen(
                            ["/bin/sh", os.path.join(place, SCRIPT)],
                            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/",
                            env={**os.environ, "ROTA_ELEMENT": "0"},
                        )  # fmt: skip
                    self._tag = tag
                    return True
        return False

    def _end(self) -> bool:
        """TERM to all runners; whether every node has been reached."""
        assert self._child is not None
        if self._pilot.given.spread == HERE:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, signal.SIGTERM)
            return False
        path = os.path.join(self._directory, self._tag, SWEEP)
        try:
            done = subprocess.run(
                ["/bin/sh", path],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=SWEEP_S,
                start_new_session=True, env={**os.environ, "ROTA_ELEMENT": "0"}, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def _note_end(self, code: int) -> None:
        here = self._pilot.given.spread == HERE
        swept = code != 0 and not here and self._end()
        ended = Ended(0 if here else code, swept)  # here the launcher is the runner: with it all is over
        write_private(os.path.join(self._directory, self._tag, ENDED), encode(ended))

"""`rota pilot --join`: lend the allocation that we are in to a manager that is up, as long as it lasts."""

import signal
import sys
import time

from rota.cli.run import Interrupts
from rota.model.errors import RotaError
from rota.wire.client import Connection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rota.manager.offline.piloting import Pilot

LOOK_S = 0.5


def lend(home: str, pilot: "Pilot", quiet: bool) -> int:
    """Lend it until it ends, or nobody has used it for long; the exit status."""
    from rota.manager.offline.lending import Lender

    lender = Lender(home, pilot)
    with Interrupts(signal.SIGUSR1) as interrupts:
        with Connection.connect(home):  # there is somebody to lend it to
            lender.offer()
        try:
            _reload(home)
            for line in pilot.away:
                _say(f"{line}; the others go on")
            if not quiet:
                _say(f"lent to the manager in {home}, as site {lender.name}")
            ends = False
            while True:
                try:
                    if lender.look(ends):
                        return 0
                    time.sleep(LOOK_S)
                except KeyboardInterrupt:
                    interrupts.disarm()
                    ends = True
                    _say("the allocation ends: what runs there is ended, and stays queued")
        finally:
            lender.withdraw()
            try:
                _reload(home)
            except RotaError as error:
                _say(f"the manager was not told that this is over: {error}")


def _reload(home: str) -> None:
    with Connection.connect(home) as connection:
        connection.ask("reload")


def _say(line: str) -> None:
    print(f"rota: {line}", file=sys.stderr)

"""`python -m bench.watching HOME COUNT`: a process with so many clients that follow all jobs, until it is ended."""

import sys
import threading

from rota.model.errors import RotaError
from rota.wire.client import Connection


def watch(home: str) -> None:
    """Read whatever comes."""
    try:
        with Connection.connect(home) as connection:
            for _ in connection.notes("follow", sel=[]):
                pass
    except (RotaError, OSError):
        return


if __name__ == "__main__":
    threads = [threading.Thread(target=watch, args=(sys.argv[1],)) for _ in range(int(sys.argv[2]))]
    for thread in threads:
        thread.start()

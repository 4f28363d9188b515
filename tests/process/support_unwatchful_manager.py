"""A manager that never looks around by itself: `python support_unwatchful_manager.py --home HOME`."""

import sys

from rota.manager import __main__ as manager
from rota.manager import observing

if __name__ == "__main__":
    observing.POLL_S = observing.RESTING_POLL_S = 3600.0
    sys.exit(manager.main())

"""A manager on a disk that fails: `python support_faulty_manager.py HOME KIND COUNTED N COUNT`.

The N-th of the COUNTED operations (write, sync) of the store, and COUNT - 1 after it, fail: KIND is `broken` (an I/O
error) or `full`.
"""

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import store_faults
from rota.manager import __main__ as manager
from rota.store.sqlite import SqliteStore


def main() -> int:
    """Be that manager."""
    home, kind, counted, first, count = sys.argv[1:]
    disk = store_faults.Disk()
    disk.counted, disk.fail_at, disk.fail_count = tuple(counted.split(",")), int(first), int(count)
    disk.error = getattr(store_faults, kind)
    manager.SqliteStore = functools.partial(SqliteStore, connect=disk.connect)
    sys.argv = ["rota.manager", "--home", home]
    return manager.main()


if __name__ == "__main__":
    sys.exit(main())

"""The runner: the process that turns a node into executed attempts.

Standard library only and Python 3.8 or newer, because it runs on whatever a compute node has.
"""

CRASHED, UNREACHED, REFUSED = 70, 75, 77
"""Exit statuses: of a bug; of a supervised runner whose manager is not there any more; of one that it turned away."""

"""Brokerage: which of many queues get the jobs of a task, with filters, weights and reasons (docs/howto/brokerage.md).

`config` has every threshold, `task`, `queue` and `world` what is decided about, `decision` what comes out; the checks
are in one file per subject, and the flows (`production`, `analysis`) put them in order.
"""

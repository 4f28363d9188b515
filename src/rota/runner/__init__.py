"""The runner: the process that turns a node into executed attempts.

Standard library only and Python 3.8 or newer, because it runs on whatever a compute node has.
"""

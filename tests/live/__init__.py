"""Scenarios on live batch systems: `make live`."""

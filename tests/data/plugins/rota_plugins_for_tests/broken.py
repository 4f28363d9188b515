"""A module that cannot be imported."""

raise SystemExit("I do not want to be imported")

"""A package with parts of policies, good and bad, found by its entry points when this directory is on the path."""

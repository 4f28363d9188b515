"""Measurements of the budgets in the design. `python -m bench` runs them all."""

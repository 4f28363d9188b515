"""The pure state machine: decide, evolve, react; the only place that decides."""

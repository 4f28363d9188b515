"""The real shell around the core: the loop, effects, configuration, the daemon."""

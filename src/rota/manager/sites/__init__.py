"""Sites: what gives allocations, each kind of it in a module."""

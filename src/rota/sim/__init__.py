"""The second shell: the real core and the real runner protocol in a simulated world with faults."""

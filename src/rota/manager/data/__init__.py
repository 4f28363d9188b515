"""Data: which files are where, and how they get to where jobs read them."""

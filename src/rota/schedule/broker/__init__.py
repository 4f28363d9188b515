"""Brokerage over many sites, as filters and scorers for the one scheduling loop."""

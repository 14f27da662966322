"""Measurements and models whose numbers stand in docs/records."""

"""Measurements for developers, and models whose numbers stand in docs/records."""

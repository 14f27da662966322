"""Caches of fewer keys and of fewer bits, compared across attention types."""

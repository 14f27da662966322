"""Runners put together: matched models trained, compared and reported."""

"""Matched models on real text."""

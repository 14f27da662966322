"""Searches in long contexts: needles, pairs, and where attention goes."""

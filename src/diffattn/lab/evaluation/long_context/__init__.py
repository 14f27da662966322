"""Protocols that search long contexts: needles, key-value pairs, and attention to them."""

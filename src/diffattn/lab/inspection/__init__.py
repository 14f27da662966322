"""Attention maps of models on a text, shown on a page."""

"""Attention maps of models on one text, as an HTML page."""

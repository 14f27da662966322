"""Attention layers, head norm and feed-forward network as modules, on torch and ops only."""

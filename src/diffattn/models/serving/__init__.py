"""Adapters for servers of language models."""

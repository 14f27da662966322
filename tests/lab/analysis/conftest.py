"""Tiny language models."""

from language_models import build, build_windowed, text, tokenizer

__all__ = ["build", "build_windowed", "text", "tokenizer"]

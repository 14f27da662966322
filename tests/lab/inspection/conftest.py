"""Models of every kind, of tests/language_models.py."""

from language_models import build, build_windowed, models, text, tokenizer

__all__ = ["build", "build_windowed", "models", "text", "tokenizer"]

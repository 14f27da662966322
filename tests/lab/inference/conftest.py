"""Language models small enough to read in a test."""

from language_models import build, build_windowed, model, models, text, tokenizer

__all__ = ["build", "build_windowed", "model", "models", "text", "tokenizer"]

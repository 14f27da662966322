"""Language models small enough for many trials."""

from language_models import build, models, text, tokenizer

__all__ = ["build", "models", "text", "tokenizer"]

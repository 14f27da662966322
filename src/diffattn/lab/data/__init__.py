"""Text, tokenizers and packed token files."""

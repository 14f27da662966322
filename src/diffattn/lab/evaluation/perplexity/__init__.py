"""Losses on running text: by position, in sliding windows, per word, on repeated n-grams."""

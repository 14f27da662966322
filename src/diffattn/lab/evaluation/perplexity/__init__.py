"""Losses on running text: by position, in a sliding window, per word, where tokens repeat."""

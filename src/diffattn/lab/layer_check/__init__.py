"""Compare a user's attention layer with the published formula, and name known mistakes."""

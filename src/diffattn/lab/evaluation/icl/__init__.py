"""In-context learning: many shots, their order, other labels."""

"""Models and recipes by name."""

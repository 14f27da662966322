"""RULER's thirteen task types."""

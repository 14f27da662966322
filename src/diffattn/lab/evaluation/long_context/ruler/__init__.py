"""RULER's thirteen tasks."""

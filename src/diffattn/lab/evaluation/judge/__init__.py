"""Verdicts on recorded outputs by another model."""

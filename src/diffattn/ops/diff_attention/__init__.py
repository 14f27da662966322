"""Differential attention: one definition, and the backends measured against it."""

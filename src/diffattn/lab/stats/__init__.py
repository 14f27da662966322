"""Means, intervals, paired differences and tests."""

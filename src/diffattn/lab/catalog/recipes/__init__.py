"""Experiments: functions that return a full configuration."""

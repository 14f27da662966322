"""Signals, measurements, trackers and policies of the guard during a run."""

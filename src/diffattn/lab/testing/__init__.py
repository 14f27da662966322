"""Inputs, assertions and bounds of rounding, shared by tests and benchmarks. Imports ops only."""

"""Inputs, assertions and marks shared by tests and benchmarks. Imports ops only."""

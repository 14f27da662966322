"""Timing of kernels by their developers."""

"""Gluon kernels for GPUs of compute capability 9.0 (Hopper)."""

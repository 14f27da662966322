"""Gluon kernels for GPUs of capability 9.0."""

"""Triton kernels of differential attention, and of softmax attention built the same way."""

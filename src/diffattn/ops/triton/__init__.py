"""Triton kernels of differential attention, and of softmax attention by the same kernels."""

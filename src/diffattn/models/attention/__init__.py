"""Attention inside the model: caches, masks and kernels of transformers' interface."""

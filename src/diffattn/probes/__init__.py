"""Measurements of a running model: λ, attention maps, activations and gradients."""

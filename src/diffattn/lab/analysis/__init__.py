"""Statistics of attention maps, of activations and of λ."""

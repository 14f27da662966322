"""A causal language model being read: above the models, below every protocol."""

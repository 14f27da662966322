"""What is read off a running model: λ per layer, attention maps of one example."""

"""Whether what a model writes is supported by what it read."""

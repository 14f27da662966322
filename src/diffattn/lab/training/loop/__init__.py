"""The loop: from a batch to its update."""

"""Studies: train matched models, compare them, and write the report."""

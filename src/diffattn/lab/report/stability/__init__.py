"""The page of a stability study."""

"""The page of a recall study."""

"""The page of a scaling study."""

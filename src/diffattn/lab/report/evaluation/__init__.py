"""The page of an evaluation folder."""

"""The page of a study of models on text."""

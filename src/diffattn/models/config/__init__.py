"""Configuration of the models, and the checks of its values."""

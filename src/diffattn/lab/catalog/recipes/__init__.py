"""One experiment per file: a function that returns a full configuration."""

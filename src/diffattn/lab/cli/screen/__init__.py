"""Progress, tables and unexpected errors on the terminal."""

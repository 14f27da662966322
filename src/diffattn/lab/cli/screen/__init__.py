"""What the terminal shows: progress, tables and unexpected errors."""

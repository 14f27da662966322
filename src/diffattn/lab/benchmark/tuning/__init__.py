"""The search for tiles: candidates, processes that check them, and the table that they make."""

"""Write files and folders whole or not at all, and detect damage by hashes."""

"""Files that are whole or absent, and hashes that tell whether they changed."""

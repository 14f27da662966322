"""The attention viewer: maps in, one page out."""

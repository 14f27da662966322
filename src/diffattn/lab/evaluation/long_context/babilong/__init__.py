"""BABILong: bAbI's stories inside long texts."""

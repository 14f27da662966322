"""BABILong: short stories in the manner of bAbI, spread over long texts."""

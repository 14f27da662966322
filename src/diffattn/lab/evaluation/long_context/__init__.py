"""Finding what a long context hides: needles, pairs, and where attention goes."""

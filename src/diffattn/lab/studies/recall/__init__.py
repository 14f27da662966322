"""Which attention types learn to recall, and when."""

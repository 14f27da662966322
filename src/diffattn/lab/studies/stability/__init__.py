"""Which attention types train stably, and up to which learning rate."""

"""Our models in engines that serve them."""

"""In-context learning: many demonstrations, their order, and labels without meaning."""

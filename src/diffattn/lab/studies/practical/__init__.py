"""What small models can do: look up, refuse, classify from examples."""

"""Studies of small models' practical tasks: look up, refuse, classify from examples."""

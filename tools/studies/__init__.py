"""Studies that are not verbs of the command line."""

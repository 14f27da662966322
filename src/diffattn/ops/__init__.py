"""Pure functions on tensors, without parameters. Imports torch only."""

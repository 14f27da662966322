"""The papers' evaluations, as protocols, for any causal language model."""

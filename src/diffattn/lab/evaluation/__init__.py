"""The papers' evaluations, one protocol per file, for any causal language model."""

"""Run causal language models: generate, score and read text. Protocols are built on this."""

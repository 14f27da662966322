"""Triton kernels and their launchers, one per file. Needs triton; nothing else imports it."""

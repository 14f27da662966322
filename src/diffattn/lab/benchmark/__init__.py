"""Benchmarks of attention operators, decoding and whole models. Each is checked, then timed."""

"""Benchmarks: attention operators, decoding and whole models, checked first and then timed."""

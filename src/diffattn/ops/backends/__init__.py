"""Implementations of differential attention; none imports another."""

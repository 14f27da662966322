"""Implementations of differential attention. No backend imports another backend."""

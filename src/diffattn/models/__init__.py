"""Hugging Face models for every attention type, with Hugging Face's names of arguments."""

"""Hugging Face models for every attention type. The only folder that speaks Hugging Face."""

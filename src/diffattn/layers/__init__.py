"""Attention layers and their neighbours as plain PyTorch modules. Imports torch and ops only."""

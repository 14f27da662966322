"""Conversion from and to other layouts of weights, and from pretrained softmax models."""

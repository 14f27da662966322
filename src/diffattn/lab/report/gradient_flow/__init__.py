"""The page of a gradient-flow study."""

"""Do differential and softmax attention have the same gradients, up to a constant factor?"""

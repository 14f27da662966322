"""Whether differential attention's gradients are those of softmax attention, up to a constant."""

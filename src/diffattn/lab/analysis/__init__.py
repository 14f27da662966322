"""What models attend to, how large their activations are, and their λ."""

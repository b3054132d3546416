"""What the PyTorch paths of ops share on a CPU: constants, activations. Knows no op."""

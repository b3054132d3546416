"""What the PyTorch paths of ops share on a CPU: casts, constants, activations, captured branches. Knows no op."""

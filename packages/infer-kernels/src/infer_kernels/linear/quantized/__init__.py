"""Products with weights of four and eight bits: which kernel multiplies, and the kernels."""

"""Measures infer-kernels: what the compiler made of it, and how fast it is on a CPU and on a GPU."""

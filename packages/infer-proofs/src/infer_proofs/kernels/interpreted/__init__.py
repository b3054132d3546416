"""Triton's interpreter made faithful: bf16, e4m3, sums in a fixed order, assembly, addresses of the kernel's own."""

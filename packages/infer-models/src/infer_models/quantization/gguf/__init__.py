"""Quantized layers of GGUF files."""

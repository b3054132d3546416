"""Llama 3.x."""

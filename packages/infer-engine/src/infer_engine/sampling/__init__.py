"""Chooses each request's next token from logits. Knows sampling parameters and tensors; knows no model."""

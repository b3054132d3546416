"""Qwen 3, dense."""

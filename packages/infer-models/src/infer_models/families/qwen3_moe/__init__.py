"""Qwen 3 with experts."""

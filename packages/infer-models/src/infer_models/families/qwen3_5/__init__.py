"""Qwen 3.5, dense and with experts, and Qwen3-Next."""

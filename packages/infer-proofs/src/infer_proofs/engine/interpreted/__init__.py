"""Engines, captured graphs and ranks over interpreted kernels, for tests without a GPU."""

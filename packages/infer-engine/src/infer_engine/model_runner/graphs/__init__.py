"""Captured steps: recorded once, proven, and replayed for batches that fit."""

"""Proves captured steps before they are used: `graph_check.py`, over made-up batches, keys, values and states."""

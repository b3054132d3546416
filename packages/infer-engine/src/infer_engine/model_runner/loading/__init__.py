"""Loads a model: its dtypes, its weights, the memory of its steps, and the launches before the first request."""

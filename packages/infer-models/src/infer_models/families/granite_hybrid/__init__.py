"""Granite 4."""

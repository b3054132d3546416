"""Granite 3."""

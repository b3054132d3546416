"""The page at `/` and the live view behind it."""

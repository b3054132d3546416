"""What all APIs that generate text share: one engine request each, whatever its shape."""

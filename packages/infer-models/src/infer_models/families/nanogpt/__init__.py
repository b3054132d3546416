"""NanoGPT."""

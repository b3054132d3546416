"""Soaks a server: an hour of mixed, hostile and disconnecting traffic with killed cores. Measures no single feature."""

"""Benchmarks of the engine in this process, without a server."""

"""Benchmarks over HTTP: workloads, streaming, the ablation, peers."""

"""Servers that are measured: starts ours, reads what any of them tells. Sends no workload."""

"""Asks servers and times their answers: HTTP, event streams, workloads, summaries. Knows no engine."""

"""What many replicas do, on paper: our scheduler, cache and router on a simulated clock."""

"""`/v1/completions`: its body, its replies, its route."""

"""`/v1/chat/completions`: its body, its replies, its route."""

"""Child processes: how they start and end, their processors, memory, logs and heartbeats."""

"""Executes schedules on a device: input buffers, forward pass, captured steps, memory profile. Knows no queue."""

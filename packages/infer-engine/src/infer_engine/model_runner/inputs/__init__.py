"""The inputs of a step, on the host and on the device: token ids, positions, slots, block tables."""

"""Random inputs of ops: batches over a paged cache, rows to sample, experts, quantized weights."""
